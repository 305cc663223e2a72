// The native methods of tvm.stretch.Model, on the C interface.
#include <dlfcn.h>
#include <jni.h>
#include <tvm_stretch.h>

#include <csignal>
#include <vector>

namespace {

// The C interface. It is not linked but opened, so that we can put back the handler for SIGSEGV
// that libtvm_ffi.so replaces while it is loaded: Java needs its own to notice null pointers.
struct Interface {
  decltype(&::tvm_stretch_load) load;
  decltype(&::tvm_stretch_load_with_data) load_with_data;
  decltype(&::tvm_stretch_load_descriptor) load_descriptor;
  decltype(&::tvm_stretch_clone) clone;
  decltype(&::tvm_stretch_free) free;
  decltype(&::tvm_stretch_input_count) input_count;
  decltype(&::tvm_stretch_output_count) output_count;
  decltype(&::tvm_stretch_input) input;
  decltype(&::tvm_stretch_output) output;
  decltype(&::tvm_stretch_run) run;
  decltype(&::tvm_stretch_run_async) run_async;
  decltype(&::tvm_stretch_cancel) cancel;
  decltype(&::tvm_stretch_plan_count) plan_count;
  decltype(&::tvm_stretch_plan_name) plan_name;
  decltype(&::tvm_stretch_use_plan) use_plan;
  decltype(&::tvm_stretch_adapt) adapt;
  decltype(&::tvm_stretch_length_count) length_count;
  decltype(&::tvm_stretch_length_name) length_name;
  decltype(&::tvm_stretch_use_length) use_length;
  decltype(&::tvm_stretch_use_size) use_size;
  decltype(&::tvm_stretch_reset) reset;
  decltype(&::tvm_stretch_generate) generate;
  decltype(&::tvm_stretch_set_sampling) set_sampling;
  decltype(&::tvm_stretch_fork) fork;
  decltype(&::tvm_stretch_statistics) statistics;
  decltype(&::tvm_stretch_map) map;
  decltype(&::tvm_stretch_map_hardware_buffer) map_hardware_buffer;
  decltype(&::tvm_stretch_begin) begin;
  decltype(&::tvm_stretch_end) end;
  decltype(&::tvm_stretch_unmap) unmap;
  decltype(&::tvm_stretch_last_error) last_error;
} tvm_stretch;

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool OpenInterface() {
  struct sigaction handler{};
  sigaction(SIGSEGV, nullptr, &handler);
  void* library = dlopen("libtvm_stretch_runtime.so", RTLD_NOW | RTLD_LOCAL);
  sigaction(SIGSEGV, &handler, nullptr);
  if (library == nullptr) return false;
  return Find(library, "tvm_stretch_load", &tvm_stretch.load) &&
         Find(library, "tvm_stretch_load_with_data", &tvm_stretch.load_with_data) &&
         Find(library, "tvm_stretch_load_descriptor", &tvm_stretch.load_descriptor) &&
         Find(library, "tvm_stretch_clone", &tvm_stretch.clone) &&
         Find(library, "tvm_stretch_free", &tvm_stretch.free) &&
         Find(library, "tvm_stretch_input_count", &tvm_stretch.input_count) &&
         Find(library, "tvm_stretch_output_count", &tvm_stretch.output_count) &&
         Find(library, "tvm_stretch_input", &tvm_stretch.input) &&
         Find(library, "tvm_stretch_output", &tvm_stretch.output) &&
         Find(library, "tvm_stretch_run", &tvm_stretch.run) &&
         Find(library, "tvm_stretch_run_async", &tvm_stretch.run_async) &&
         Find(library, "tvm_stretch_cancel", &tvm_stretch.cancel) &&
         Find(library, "tvm_stretch_plan_count", &tvm_stretch.plan_count) &&
         Find(library, "tvm_stretch_plan_name", &tvm_stretch.plan_name) &&
         Find(library, "tvm_stretch_use_plan", &tvm_stretch.use_plan) &&
         Find(library, "tvm_stretch_adapt", &tvm_stretch.adapt) &&
         Find(library, "tvm_stretch_length_count", &tvm_stretch.length_count) &&
         Find(library, "tvm_stretch_length_name", &tvm_stretch.length_name) &&
         Find(library, "tvm_stretch_use_length", &tvm_stretch.use_length) &&
         Find(library, "tvm_stretch_use_size", &tvm_stretch.use_size) &&
         Find(library, "tvm_stretch_reset", &tvm_stretch.reset) &&
         Find(library, "tvm_stretch_generate", &tvm_stretch.generate) &&
         Find(library, "tvm_stretch_set_sampling", &tvm_stretch.set_sampling) &&
         Find(library, "tvm_stretch_fork", &tvm_stretch.fork) &&
         Find(library, "tvm_stretch_statistics", &tvm_stretch.statistics) &&
         Find(library, "tvm_stretch_map", &tvm_stretch.map) &&
         Find(library, "tvm_stretch_map_hardware_buffer", &tvm_stretch.map_hardware_buffer) &&
         Find(library, "tvm_stretch_begin", &tvm_stretch.begin) &&
         Find(library, "tvm_stretch_end", &tvm_stretch.end) &&
         Find(library, "tvm_stretch_unmap", &tvm_stretch.unmap) &&
         Find(library, "tvm_stretch_last_error", &tvm_stretch.last_error);
}

constexpr const char* kModel = "tvm/stretch/Model";
constexpr const char* kPending = "tvm/stretch/Model$Pending";

JavaVM* machine = nullptr;
// Found once: a thread of the model has no class loader of the app.
jclass exception_class, tensor_class;
jmethodID new_exception, new_tensor, finish;

TvmStretchModel* At(jlong handle) { return reinterpret_cast<TvmStretchModel*>(handle); }
jlong Handle(TvmStretchModel* model) { return reinterpret_cast<jlong>(model); }

void Throw(JNIEnv* env, TvmStretchStatus status, const char* text) {
  const jstring message = env->NewStringUTF(text);
  if (message == nullptr) return;  // an OutOfMemoryError is pending
  const jobject error =
      env->NewObject(exception_class, new_exception, static_cast<jint>(status), message);
  if (error != nullptr) env->Throw(static_cast<jthrowable>(error));
}

void Check(JNIEnv* env, TvmStretchStatus status) {
  if (status != TVM_STRETCH_OK) Throw(env, status, tvm_stretch.last_error());
}

// The memory of direct buffers. Returns false with a pending exception if one is not direct.
bool Read(JNIEnv* env, jobjectArray buffers, std::vector<TvmStretchBuffer>* found) {
  const jsize count = env->GetArrayLength(buffers);
  for (jsize i = 0; i < count; ++i) {
    const jobject buffer = env->GetObjectArrayElement(buffers, i);
    void* data = buffer == nullptr ? nullptr : env->GetDirectBufferAddress(buffer);
    if (data == nullptr) {
      Throw(env, TVM_STRETCH_INVALID,
            "expected direct buffers, got another one; Tensor.newBuffer() makes them");
      return false;
    }
    found->push_back({data, static_cast<size_t>(env->GetDirectBufferCapacity(buffer))});
    env->DeleteLocalRef(buffer);
  }
  return true;
}

// The text of a string, as long as this lives; nullptr with a pending exception without memory.
struct Text {
  Text(JNIEnv* env, jstring string)
      : env(env), string(string), characters(env->GetStringUTFChars(string, nullptr)) {}
  ~Text() {
    if (characters != nullptr) env->ReleaseStringUTFChars(string, characters);
  }
  Text(const Text&) = delete;

  JNIEnv* env;
  jstring string;
  const char* characters;
};

jlong LoadFile(JNIEnv* env, jclass, jstring path) {
  const Text text(env, path);
  if (text.characters == nullptr) return 0;
  TvmStretchModel* model = nullptr;
  Check(env, tvm_stretch.load(text.characters, &model));
  return Handle(model);
}

jlong LoadWithData(JNIEnv* env, jclass, jstring kernels, jstring data) {
  const Text library(env, kernels), network(env, data);
  if (library.characters == nullptr || network.characters == nullptr) return 0;
  TvmStretchModel* model = nullptr;
  Check(env, tvm_stretch.load_with_data(library.characters, network.characters, &model));
  return Handle(model);
}

jlong LoadDescriptor(JNIEnv* env, jclass, jint descriptor, jlong offset, jlong bytes) {
  TvmStretchModel* model = nullptr;
  Check(env, tvm_stretch.load_descriptor(descriptor, offset, bytes, &model));
  return Handle(model);
}

jlong Clone(JNIEnv* env, jclass, jlong model) {
  TvmStretchModel* clone = nullptr;
  Check(env, tvm_stretch.clone(At(model), &clone));
  return Handle(clone);
}

void Free(JNIEnv*, jclass, jlong model) { tvm_stretch.free(At(model)); }

jint Count(JNIEnv*, jclass, jlong model, jboolean inputs) {
  return static_cast<jint>(inputs ? tvm_stretch.input_count(At(model))
                                  : tvm_stretch.output_count(At(model)));
}

jobject Describe(JNIEnv* env, jclass, jlong model, jboolean inputs, jint number) {
  const auto index = static_cast<size_t>(number);
  const TvmStretchTensor* tensor =
      inputs ? tvm_stretch.input(At(model), index) : tvm_stretch.output(At(model), index);
  const auto dimensions = static_cast<jsize>(tensor->dimensions);
  const jlongArray shape = env->NewLongArray(dimensions);
  if (shape == nullptr) return nullptr;
  static_assert(sizeof(jlong) == sizeof(int64_t));
  env->SetLongArrayRegion(shape, 0, dimensions, reinterpret_cast<const jlong*>(tensor->shape));
  const jstring name = env->NewStringUTF(tensor->name), type = env->NewStringUTF(tensor->type);
  if (name == nullptr || type == nullptr) return nullptr;
  return env->NewObject(tensor_class, new_tensor, name, type, shape,
                        static_cast<jlong>(tensor->bytes));
}

void Run(JNIEnv* env, jclass, jlong model, jobjectArray inputs, jobjectArray outputs) {
  std::vector<TvmStretchBuffer> read, written;
  if (!Read(env, inputs, &read) || !Read(env, outputs, &written)) return;
  Check(env, tvm_stretch.run(At(model), read.data(), read.size(), written.data(), written.size()));
}

// Runs on a thread of the model, which Java may not know yet.
void Finish(void* user, TvmStretchStatus status, const char* error) {
  JNIEnv* env = nullptr;
  void** out = reinterpret_cast<void**>(&env);
  const bool is_new = machine->GetEnv(out, JNI_VERSION_1_6) == JNI_EDETACHED;
#ifdef __ANDROID__
  if (is_new && machine->AttachCurrentThreadAsDaemon(&env, nullptr) != JNI_OK) return;
#else
  if (is_new && machine->AttachCurrentThreadAsDaemon(out, nullptr) != JNI_OK) return;
#endif
  const auto pending = static_cast<jobject>(user);
  env->CallVoidMethod(pending, finish, static_cast<jint>(status), env->NewStringUTF(error));
  if (env->ExceptionCheck()) env->ExceptionDescribe();  // of what the app does then
  env->DeleteGlobalRef(pending);
  if (is_new) machine->DetachCurrentThread();
}

void RunAsync(JNIEnv* env, jclass, jlong model, jobjectArray inputs, jobjectArray outputs,
              jobject pending) {
  std::vector<TvmStretchBuffer> read, written;
  if (!Read(env, inputs, &read) || !Read(env, outputs, &written)) return;
  const jobject kept = env->NewGlobalRef(pending);
  const TvmStretchStatus status = tvm_stretch.run_async(
      At(model), read.data(), read.size(), written.data(), written.size(), Finish, kept);
  if (status != TVM_STRETCH_OK) env->DeleteGlobalRef(kept);
  Check(env, status);
}

void Cancel(JNIEnv* env, jclass, jlong model) { Check(env, tvm_stretch.cancel(At(model))); }

template <typename Count, typename Name>
jobjectArray Names(JNIEnv* env, jlong model, Count count_of, Name name_of) {
  const auto count = static_cast<jsize>(count_of(At(model)));
  const jobjectArray names =
      env->NewObjectArray(count, env->FindClass("java/lang/String"), nullptr);
  for (jsize i = 0; names != nullptr && i < count; ++i) {
    const char* name = name_of(At(model), static_cast<size_t>(i));
    env->SetObjectArrayElement(names, i, env->NewStringUTF(name));
  }
  return names;
}

jobjectArray Plans(JNIEnv* env, jclass, jlong model) {
  return Names(env, model, tvm_stretch.plan_count, tvm_stretch.plan_name);
}

jobjectArray Lengths(JNIEnv* env, jclass, jlong model) {
  return Names(env, model, tvm_stretch.length_count, tvm_stretch.length_name);
}

void UseLength(JNIEnv* env, jclass, jlong model, jint number) {
  Check(env, tvm_stretch.use_length(At(model), static_cast<size_t>(number)));
}

void UseSize(JNIEnv* env, jclass, jlong model, jstring name, jlong size) {
  const Text text(env, name);
  Check(env, tvm_stretch.use_size(At(model), text.characters, size));
}

void Reset(JNIEnv* env, jclass, jlong model) { Check(env, tvm_stretch.reset(At(model))); }

// A LongPredicate of Java, which is asked about each token.
struct GoOn {
  JNIEnv* env;
  jobject predicate;
  jmethodID test;

  static int Ask(void* user, int64_t token) {
    const auto& own = *static_cast<const GoOn*>(user);
    const bool goes_on =
        own.env->CallBooleanMethod(own.predicate, own.test, static_cast<jlong>(token)) == JNI_TRUE;
    return goes_on && own.env->ExceptionCheck() == JNI_FALSE ? 0 : 1;
  }
};

void Generate(JNIEnv* env, jclass, jlong model, jlongArray tokens, jlong most, jobject predicate) {
  std::vector<jlong> given(static_cast<size_t>(env->GetArrayLength(tokens)));
  env->GetLongArrayRegion(tokens, 0, static_cast<jsize>(given.size()), given.data());
  const std::vector<int64_t> own(given.begin(), given.end());
  const jmethodID test = env->GetMethodID(env->GetObjectClass(predicate), "test", "(J)Z");
  if (test == nullptr) return;
  GoOn go_on{env, predicate, test};
  const TvmStretchStatus status = tvm_stretch.generate(
      At(model), own.data(), own.size(), static_cast<size_t>(most), GoOn::Ask, &go_on);
  if (env->ExceptionCheck() == JNI_FALSE) Check(env, status);  // the predicate's comes first
}

void SetSampling(JNIEnv* env, jclass, jlong model, jdouble temperature, jlong top_k, jdouble top_p,
                 jdouble min_p, jlong seed) {
  Check(env, tvm_stretch.set_sampling(At(model), temperature, top_k, top_p, min_p, seed));
}

jlong Fork(JNIEnv* env, jclass, jlong model) {
  TvmStretchModel* fork = nullptr;
  Check(env, tvm_stretch.fork(At(model), &fork));
  return Handle(fork);
}

void UsePlan(JNIEnv* env, jclass, jlong model, jint number) {
  // A negative number becomes one that is too large.
  Check(env, tvm_stretch.use_plan(At(model), static_cast<size_t>(number)));
}

void Adapt(JNIEnv* env, jclass, jlong model) { Check(env, tvm_stretch.adapt(At(model))); }

jstring Statistics(JNIEnv* env, jclass, jlong model) {
  const char* json = nullptr;
  const TvmStretchStatus status = tvm_stretch.statistics(At(model), &json);
  Check(env, status);
  return status == TVM_STRETCH_OK ? env->NewStringUTF(json) : nullptr;
}

TvmStretchMapping* MappingAt(jlong handle) { return reinterpret_cast<TvmStretchMapping*>(handle); }

jlong Map(JNIEnv* env, jclass, jint descriptor, jlong offset, jlong rows, jlong row_bytes,
          jlong stride) {
  TvmStretchMapping* mapping = nullptr;
  // Negative sizes become sizes that are too large.
  const TvmStretchRows wanted{descriptor, offset, static_cast<size_t>(rows),
                              static_cast<size_t>(row_bytes), static_cast<size_t>(stride)};
  Check(env, tvm_stretch.map(&wanted, &mapping));
  return reinterpret_cast<jlong>(mapping);
}

jlong MapHardwareBuffer(JNIEnv* env, jclass, jobject buffer) {
  void* library = dlopen("libandroid.so", RTLD_NOW | RTLD_LOCAL);
  void* (*from)(JNIEnv*, jobject) = nullptr;
  if (library == nullptr || !Find(library, "AHardwareBuffer_fromHardwareBuffer", &from)) {
    Throw(env, TVM_STRETCH_INVALID,
          "expected Android 8 or later for hardware buffers, got another system; map a descriptor");
    return 0;
  }
  TvmStretchMapping* mapping = nullptr;
  Check(env,
        tvm_stretch.map_hardware_buffer(buffer == nullptr ? nullptr : from(env, buffer), &mapping));
  return reinterpret_cast<jlong>(mapping);
}

jobject BeginMapping(JNIEnv* env, jclass, jlong mapping, jint access) {
  TvmStretchBuffer buffer{};
  const TvmStretchStatus status = tvm_stretch.begin(MappingAt(mapping), access, &buffer);
  Check(env, status);
  return status != TVM_STRETCH_OK
             ? nullptr
             : env->NewDirectByteBuffer(buffer.data, static_cast<jlong>(buffer.bytes));
}

void EndMapping(JNIEnv* env, jclass, jlong mapping) {
  Check(env, tvm_stretch.end(MappingAt(mapping)));
}

void Unmap(JNIEnv*, jclass, jlong mapping) { tvm_stretch.unmap(MappingAt(mapping)); }

template <typename Function>
JNINativeMethod Method(const char* name, const char* signature, Function function) {
  return {const_cast<char*>(name), const_cast<char*>(signature), reinterpret_cast<void*>(function)};
}

template <size_t count>
bool Register(JNIEnv* env, jclass owner, const JNINativeMethod (&methods)[count]) {
  return env->RegisterNatives(owner, methods, static_cast<jint>(count)) == JNI_OK;
}

jclass Keep(JNIEnv* env, const char* name) {
  const jclass found = env->FindClass(name);
  return found == nullptr ? nullptr : static_cast<jclass>(env->NewGlobalRef(found));
}

}  // namespace

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* vm, void*) {
  machine = vm;
  JNIEnv* env = nullptr;
  if (vm->GetEnv(reinterpret_cast<void**>(&env), JNI_VERSION_1_6) != JNI_OK) return JNI_ERR;
  if (!OpenInterface()) {
    const char* fault = dlerror();
    env->ThrowNew(env->FindClass("java/lang/UnsatisfiedLinkError"),
                  fault == nullptr ? "a function of tvm_stretch.h is missing" : fault);
    return JNI_ERR;
  }
  exception_class = Keep(env, "tvm/stretch/StretchException");
  tensor_class = Keep(env, "tvm/stretch/Tensor");
  const jclass pending = env->FindClass(kPending), model = env->FindClass(kModel);
  const jclass mapping = env->FindClass("tvm/stretch/Mapping");
  if (mapping == nullptr) return JNI_ERR;
  if (exception_class == nullptr || tensor_class == nullptr || pending == nullptr) return JNI_ERR;
  new_exception = env->GetMethodID(exception_class, "<init>", "(ILjava/lang/String;)V");
  new_tensor =
      env->GetMethodID(tensor_class, "<init>", "(Ljava/lang/String;Ljava/lang/String;[JJ)V");
  finish = env->GetMethodID(pending, "finish", "(ILjava/lang/String;)V");
  if (new_exception == nullptr || new_tensor == nullptr || finish == nullptr) return JNI_ERR;
  const JNINativeMethod methods[] = {
      Method("loadFile", "(Ljava/lang/String;)J", LoadFile),
      Method("loadWithData", "(Ljava/lang/String;Ljava/lang/String;)J", LoadWithData),
      Method("loadDescriptor", "(IJJ)J", LoadDescriptor),
      Method("cloneModel", "(J)J", Clone),
      Method("free", "(J)V", Free),
      Method("count", "(JZ)I", Count),
      Method("tensor", "(JZI)Ltvm/stretch/Tensor;", Describe),
      Method("run", "(J[Ljava/nio/ByteBuffer;[Ljava/nio/ByteBuffer;)V", Run),
      Method("runAsync",
             "(J[Ljava/nio/ByteBuffer;[Ljava/nio/ByteBuffer;Ltvm/stretch/Model$Pending;)V",
             RunAsync),
      Method("cancel", "(J)V", Cancel),
      Method("plans", "(J)[Ljava/lang/String;", Plans),
      Method("usePlan", "(JI)V", UsePlan),
      Method("adapt", "(J)V", Adapt),
      Method("lengths", "(J)[Ljava/lang/String;", Lengths),
      Method("useLength", "(JI)V", UseLength),
      Method("useSize", "(JLjava/lang/String;J)V", UseSize),
      Method("reset", "(J)V", Reset),
      Method("generate", "(J[JJLjava/util/function/LongPredicate;)V", Generate),
      Method("setSampling", "(JDJDDJ)V", SetSampling),
      Method("forkModel", "(J)J", Fork),
      Method("statistics", "(J)Ljava/lang/String;", Statistics),
  };
  const JNINativeMethod of_mappings[] = {
      Method("map", "(IJJJJ)J", Map),
      Method("mapHardwareBuffer", "(Ljava/lang/Object;)J", MapHardwareBuffer),
      Method("begin", "(JI)Ljava/nio/ByteBuffer;", BeginMapping),
      Method("end", "(J)V", EndMapping),
      Method("unmap", "(J)V", Unmap),
  };
  const bool known = Register(env, model, methods) && Register(env, mapping, of_mappings);
  return known ? JNI_VERSION_1_6 : JNI_ERR;
}
