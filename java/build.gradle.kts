// An Android library (.aar), with what `make phone-android` puts beside this file: see README.md.
plugins { id("com.android.library") version "8.7.0" }

android {
    namespace = "tvm.stretch"
    compileSdk = 35
    defaultConfig {
        minSdk = 26
        consumerProguardFiles("consumer-rules.pro")
        ndk { abiFilters += listOf("arm64-v8a", "x86_64") }
        externalNativeBuild {
            cmake { arguments += "-Dtvm_stretch_ROOT=${projectDir}" }
        }
    }
    // Artifacts are mapped where they lie in the package, so they must not be compressed.
    androidResources { noCompress += "so" }
    externalNativeBuild { cmake { path = file("CMakeLists.txt") } }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_11
        targetCompatibility = JavaVersion.VERSION_11
    }
}
