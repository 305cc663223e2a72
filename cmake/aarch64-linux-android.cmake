# Android, by an NDK: its own toolchain file with what our libraries need. All three libraries have
# to be built with c++_shared, or errors could not pass between them.
if(NOT DEFINED ENV{ANDROID_NDK_HOME})
  message(FATAL_ERROR "expected the folder of an Android NDK for ANDROID_NDK_HOME, got none; set it")
endif()
set(ANDROID_ABI arm64-v8a)
set(ANDROID_PLATFORM android-24)
set(ANDROID_STL c++_shared)
include("$ENV{ANDROID_NDK_HOME}/build/cmake/android.toolchain.cmake")
