set(MUSL_MACHINE x86_64)
include("${CMAKE_CURRENT_LIST_DIR}/zig.cmake")
