# The compilers of the package `ziglang`, for MUSL_MACHINE: another C library and another C++ library
# than those of the wheels. What breaks here breaks on Android.
find_program(ZIG zig PATHS ENV ZIG_HOME NO_CMAKE_FIND_ROOT_PATH REQUIRED)
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${MUSL_MACHINE})
set(CMAKE_C_COMPILER "${ZIG}" cc)
set(CMAKE_CXX_COMPILER "${ZIG}" c++)
set(CMAKE_C_COMPILER_TARGET ${MUSL_MACHINE}-linux-musl)
set(CMAKE_CXX_COMPILER_TARGET ${MUSL_MACHINE}-linux-musl)
# zig builds its C and C++ library for each level of optimisation; those of CMake's own checks count.
set(CMAKE_C_FLAGS_INIT -Os)
set(CMAKE_CXX_FLAGS_INIT -Os)
set(CMAKE_TRY_COMPILE_CONFIGURATION MinSizeRel)
# A phone has no musl: its loader lies beside the programs, which start in their own folder.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-pie -Wl,--dynamic-linker=ld-musl-${MUSL_MACHINE}.so.1")
set(TVM_STRETCH_FROM_SOURCE ON)
