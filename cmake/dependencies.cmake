# What the core needs; parts that are optional find theirs where they are built.
find_package(Threads REQUIRED)
find_package(hwy REQUIRED)
find_package(fmt REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
