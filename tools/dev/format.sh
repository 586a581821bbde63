# ./dev format
install_packages clang-format-14
git ls-files -co --exclude-standard '*.h' '*.cc' | xargs clang-format-14 -i
