# tvm-ffi and TVM's runtime for machines that there is no wheel for, from the sources that the wheels
# ship: Android's and musl's. With ours they become one library, which has the C++ library inside:
# exceptions could not pass between several of such libraries. To programs errors pass as data.
set(FFI "${TVM_SITE}/tvm_ffi")
set(RUNTIME "${TVM_DIR}/src/runtime")
set(PARTS "${ROOT}/tvm_stretch/phone/tvm_runtime")
set(GENERATED "${CMAKE_CURRENT_BINARY_DIR}/from_source")

# A program calls functions of the library by their C interface, which catches errors. By default the
# header takes a shorter way for functions in C++, through which exceptions pass.
set(SHORT_WAY "this->cpp_call ? reinterpret_cast<FCall>(this->cpp_call) : CppCallDedirectToSafeCall")
file(READ "${FFI}/include/tvm/ffi/function.h" header)
string(FIND "${header}" "${SHORT_WAY}" found)
if(found EQUAL -1)
  message(FATAL_ERROR "expected the known CallPacked in tvm/ffi/function.h, got another one; "
    "see what calls functions of other libraries there")
endif()
string(REPLACE "${SHORT_WAY}" "CppCallDedirectToSafeCall" header "${header}")
file(CONFIGURE OUTPUT "${GENERATED}/tvm/ffi/function.h" CONTENT "${header}" @ONLY)

# Headers that TVM's wheel leaves out, by the names that its sources have for them.
foreach(name tvm/support/io.h tvm/support/serializer.h support/arena.h support/base64.h
    support/bytes_io.h support/ring_buffer.h support/utils.h)
  file(CONFIGURE OUTPUT "${GENERATED}/${name}" CONTENT "#include \"${PARTS}/support.h\"\n")
endforeach()
file(MAKE_DIRECTORY "${GENERATED}/runtime/rpc")  # where "../../support" leads from

# The types of errors are visible to all, those of the C++ library's exceptions are not: a library
# that used a program's error type would not find its base.
add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:-Wl,-Bsymbolic>)

# A phone gets what it needs: no symbols for debuggers; and Android 15 has pages of 16 KB.
add_link_options(-s -Wl,-z,max-page-size=16384 -Wl,-z,noexecstack -Wl,--hash-style=gnu)

file(GLOB FFI_SOURCES "${FFI}/src/ffi/*.cc" "${FFI}/src/ffi/extra/*.cc")
add_library(tvm_ffi OBJECT ${FFI_SOURCES})
target_include_directories(tvm_ffi SYSTEM PUBLIC "${GENERATED}" "${FFI}/include"
  "${FFI}/3rdparty/dlpack/include")
target_compile_definitions(tvm_ffi PUBLIC TVM_FFI_CMAKE_LITTLE_ENDIAN=1)
target_compile_definitions(tvm_ffi PRIVATE TVM_FFI_USE_LIBBACKTRACE=0
  TVM_FFI_BACKTRACE_ON_SEGFAULT=0)

set(RUNTIME_FILES cpu_device_api device_api file_utils logging module tensor thread_pool
  threading_backend timer workspace_pool rpc/rpc_channel rpc/rpc_device_api rpc/rpc_endpoint
  rpc/rpc_local_session rpc/rpc_module rpc/rpc_server_env rpc/rpc_session)
list(TRANSFORM RUNTIME_FILES PREPEND "${RUNTIME}/")
list(TRANSFORM RUNTIME_FILES APPEND ".cc")
add_library(tvm_runtime OBJECT ${RUNTIME_FILES} "${PARTS}/serve.cc")
target_include_directories(tvm_runtime SYSTEM PRIVATE "${TVM_INCLUDE_DIR}" "${TVM_DIR}/src"
  "${GENERATED}/runtime" "${GENERATED}/runtime/rpc")
target_link_libraries(tvm_runtime PRIVATE tvm_ffi)
foreach(name tvm_ffi tvm_runtime)
  target_compile_options(${name} PRIVATE -fvisibility=hidden -ffunction-sections -fdata-sections)
endforeach()
set(FROM_SOURCE $<TARGET_OBJECTS:tvm_ffi> $<TARGET_OBJECTS:tvm_runtime>)

# Only the headers: the objects are in libtvm_stretch_runtime.so.
add_library(tvm_ffi_headers INTERFACE)
add_library(tvm_ffi::shared ALIAS tvm_ffi_headers)
target_include_directories(tvm_ffi_headers SYSTEM INTERFACE
  $<TARGET_PROPERTY:tvm_ffi,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(tvm_ffi_headers INTERFACE TVM_FFI_CMAKE_LITTLE_ENDIAN=1)
