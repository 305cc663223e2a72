# Boards and phones with aarch64 Linux, by Debian's cross compiler (g++-aarch64-linux-gnu), whose
# C++ library is the one that the wheels of TVM use.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
