# An Android NDK's own toolchain file, for ANDROID_ABI. Each library has the C++ library inside, so
# an app carries no libc++_shared.so that other libraries of it may want in another version.
if(NOT DEFINED ENV{ANDROID_NDK_HOME})
  message(FATAL_ERROR "expected the folder of an Android NDK for ANDROID_NDK_HOME, got none; set it")
endif()
set(ANDROID_PLATFORM android-26)
set(ANDROID_STL c++_static)
set(TVM_STRETCH_FROM_SOURCE ON)
include("$ENV{ANDROID_NDK_HOME}/build/cmake/android.toolchain.cmake")
