# For apps in C and C++: find_package(tvm_stretch) gives the target tvm_stretch::runtime.
#
#   cmake -B build -Dtvm_stretch_ROOT="$(tvm-stretch where)"
get_filename_component(_tvm_stretch "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
# In what `make phone-android` makes, tvm-ffi is in our library.
find_library(TVM_STRETCH_FFI tvm_ffi
  HINTS "${_tvm_stretch}/lib" "${_tvm_stretch}/../tvm_ffi/lib" NO_CMAKE_FIND_ROOT_PATH)
find_package(Threads REQUIRED)
if(NOT TARGET tvm_stretch::runtime)
  add_library(tvm_stretch::runtime SHARED IMPORTED)
  set_target_properties(tvm_stretch::runtime PROPERTIES
    IMPORTED_LOCATION "${_tvm_stretch}/lib/libtvm_stretch_runtime.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tvm_stretch}/include"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
  if(TVM_STRETCH_FFI)
    set_target_properties(tvm_stretch::runtime PROPERTIES
      IMPORTED_LINK_DEPENDENT_LIBRARIES "${TVM_STRETCH_FFI}"
      INTERFACE_LINK_LIBRARIES "${TVM_STRETCH_FFI};Threads::Threads")
  endif()
endif()
