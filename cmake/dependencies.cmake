# What the core needs; parts that are optional find theirs where they are built.
find_package(Threads REQUIRED)
find_package(hwy REQUIRED)
find_package(fmt REQUIRED)
if(TUTTI_WHEEL)
  set(OPENSSL_USE_STATIC_LIBS ON)
endif()
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
