// Calls of the C interface, on a real artifact: `model.so` beside this program (seeds.py writes
// it). Each byte is a call, the bytes after it are its arguments. Nothing that is freed is used.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tvm_stretch/phone/app/tvm_stretch.h"

namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t bytes) : next_(data), end_(data + bytes) {}
  bool is_over() const { return next_ == end_; }
  uint8_t Byte() { return is_over() ? 0 : *next_++; }
  int64_t Number() {
    int64_t value = 0;
    const uint8_t kind = Byte();
    if (kind < 128) return kind % 64;
    for (int i = 0; i < 8; ++i)
      value = static_cast<int64_t>(static_cast<uint64_t>(value) << 8 | Byte());
    return value;
  }
  std::string Text() {
    std::string text;
    for (size_t left = Byte() % 40; left > 0 && !is_over(); --left)
      text += static_cast<char>(Byte());
    return text;
  }

 private:
  const uint8_t *next_, *end_;
};

void Check(TvmStretchStatus status) {
  if (status == TVM_STRETCH_OK) return;
  if (status == TVM_STRETCH_INTERNAL || strstr(tvm_stretch_last_error(), "expected ") == nullptr) {
    std::fprintf(stderr, "status %d: %s\n", status, tvm_stretch_last_error());
    std::abort();
  }
}

// Buffers of the right sizes, or of others.
struct Buffers {
  Buffers(Input* input, TvmStretchModel* model, bool outputs) {
    const size_t count = 1 + (input->Byte() % 16 == 15);
    for (size_t i = 0; i < count; ++i) {
      const TvmStretchTensor* port =
          outputs ? tvm_stretch_output(model, i) : tvm_stretch_input(model, i);
      const uint8_t way = input->Byte();
      const size_t bytes = way >= 240 ? way - 240 : port == nullptr ? 0 : port->bytes;
      memory.emplace_back(bytes);
      all.push_back({way == 239 ? nullptr : memory.back().data(), bytes});
    }
  }
  std::vector<std::vector<char>> memory;
  std::vector<TvmStretchBuffer> all;
};

std::string ModelPath() {
  char path[1024] = "";
  if (readlink("/proc/self/exe", path, sizeof(path) - 1) <= 0) std::abort();
  const std::string program = path;
  return program.substr(0, program.rfind('/')) + "/model.so";
}

void Call(Input* input, TvmStretchModel** model) {
  const char* json = nullptr;
  TvmStretchModel* other = nullptr;
  switch (input->Byte() % 12) {
    case 0: {
      Buffers from(input, *model, false), to(input, *model, true);
      return Check(
          tvm_stretch_run(*model, from.all.data(), from.all.size(), to.all.data(), to.all.size()));
    }
    case 1: {
      Buffers from(input, *model, false), to(input, *model, true);
      return Check(tvm_stretch_trace(*model, from.all.data(), from.all.size(), to.all.data(),
                                     to.all.size(), &json));
    }
    case 2:
      return Check(tvm_stretch_use_length(*model, static_cast<size_t>(input->Number())));
    case 3: {
      const std::string name = input->Byte() % 4 == 0 ? input->Text() : "n";
      return Check(tvm_stretch_use_size(*model, name.c_str(), input->Number()));
    }
    case 4:
      return Check(tvm_stretch_use_plan(*model, static_cast<size_t>(input->Number())));
    case 5:
      return Check(tvm_stretch_set_cores(*model, input->Text().c_str()));
    case 6:
      return Check(tvm_stretch_reset(*model));
    case 7:
      return Check(tvm_stretch_adapt(*model));
    case 8:
      return Check(tvm_stretch_statistics(*model, &json));
    case 9:
      return Check(tvm_stretch_cancel(*model));
    case 10:
      Check(tvm_stretch_clone(*model, &other));
      if (other == nullptr) return;
      tvm_stretch_free(*model);
      *model = other;
      return;
    default:
      tvm_stretch_find_input(*model, input->Text().c_str());
      tvm_stretch_plan_name(*model, static_cast<size_t>(input->Number()));
      tvm_stretch_length_name(*model, static_cast<size_t>(input->Number()));
      tvm_stretch_input(*model, static_cast<size_t>(input->Number()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static TvmStretchModel* const first = [] {
    TvmStretchModel* made = nullptr;
    if (tvm_stretch_load(ModelPath().c_str(), &made) != TVM_STRETCH_OK) {
      std::fprintf(stderr, "%s\n", tvm_stretch_last_error());
      std::abort();
    }
    return made;
  }();
  TvmStretchModel* model = nullptr;
  Check(tvm_stretch_clone(first, &model));
  Input input(data, bytes);
  for (int calls = 0; calls < 50 && !input.is_over(); ++calls) Call(&input, &model);
  tvm_stretch_free(model);
  return 0;
}
