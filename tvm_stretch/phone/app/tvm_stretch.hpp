// The C++ interface of tvm_stretch: a thin layer over tvm_stretch.h that throws its errors.
//
//   tvm_stretch::Model model("resnet18.so");
//   std::vector<float> pixels(3 * 224 * 224), scores(1000);
//   model.run({tvm_stretch::buffer(pixels)}, {tvm_stretch::buffer(scores)});
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tvm_stretch.h"

namespace tvm_stretch {

// What a function of tvm_stretch.h failed with.
class Error : public std::runtime_error {
 public:
  Error(TvmStretchStatus status, const std::string& text)
      : std::runtime_error(text), status_(status) {}
  TvmStretchStatus status() const noexcept { return status_; }

 private:
  TvmStretchStatus status_;
};

using Buffer = TvmStretchBuffer;
using Buffers = std::vector<Buffer>;

// The memory of a std::vector, std::array or std::span.
template <typename Container>
Buffer buffer(Container& values) {
  return {values.data(), values.size() * sizeof(*values.data())};
}

struct Tensor {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
  size_t bytes;
};

class Model {
 public:
  explicit Model(const std::string& path) { Check(tvm_stretch_load(path.c_str(), Out())); }
  // Kernels in an artifact, the network as data; see tvm_stretch_load_with_data.
  Model(const std::string& path, const std::string& data) {
    Check(tvm_stretch_load_with_data(path.c_str(), data.c_str(), Out()));
  }
  static Model from_memory(const void* data, size_t bytes) {
    Model model;
    Check(tvm_stretch_load_memory(data, bytes, model.Out()));
    return model;
  }
  static Model from_descriptor(int descriptor, int64_t offset, int64_t bytes) {
    Model model;
    Check(tvm_stretch_load_descriptor(descriptor, offset, bytes, model.Out()));
    return model;
  }

  // A model with the same weights that runs at the same time.
  Model clone() const {
    Model model;
    Check(tvm_stretch_clone(model_.get(), model.Out()));
    return model;
  }

  std::vector<Tensor> inputs() const { return Ports(tvm_stretch_input); }
  std::vector<Tensor> outputs() const { return Ports(tvm_stretch_output); }

  void run(const Buffers& inputs, const Buffers& outputs) {
    Check(tvm_stretch_run(model_.get(), inputs.data(), inputs.size(), outputs.data(),
                          outputs.size()));
  }

  // The future is ready when the run is over; the buffers have to stay until then.
  std::future<void> run_async(const Buffers& inputs, const Buffers& outputs) {
    auto promise = std::make_unique<std::promise<void>>();
    std::future<void> over = promise->get_future();
    const auto tell = [](void* user, TvmStretchStatus status, const char* error) {
      const std::unique_ptr<std::promise<void>> own(static_cast<std::promise<void>*>(user));
      if (status == TVM_STRETCH_OK) return own->set_value();
      own->set_exception(std::make_exception_ptr(Error(status, error)));
    };
    Check(tvm_stretch_run_async(model_.get(), inputs.data(), inputs.size(), outputs.data(),
                                outputs.size(), tell, promise.get()));
    promise.release();  // the callback has it now
    return over;
  }

  void cancel() { Check(tvm_stretch_cancel(model_.get())); }

  // The lengths for which the model was compiled, such as "n=64"; "" if there are no others.
  std::vector<std::string> lengths() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < tvm_stretch_length_count(model_.get()); ++i) {
      names.emplace_back(tvm_stretch_length_name(model_.get(), i));
    }
    return names;
  }
  void use_length(size_t number) { Check(tvm_stretch_use_length(model_.get(), number)); }

  // Takes inputs of this size of a named dimension from now on; see tvm_stretch.h.
  void use_size(const std::string& name, int64_t size) {
    Check(tvm_stretch_use_size(model_.get(), name.c_str(), size));
  }

  void reset() { Check(tvm_stretch_reset(model_.get())); }

  // Reads tokens and chooses others, each of which `go_on` may refuse; see tvm_stretch.h.
  void generate(const std::vector<int64_t>& tokens, size_t most,
                const std::function<bool(int64_t)>& go_on) {
    const TvmStretchTokenCallback ask = [](void* user, int64_t token) -> int {
      return (*static_cast<const std::function<bool(int64_t)>*>(user))(token) ? 0 : 1;
    };
    void* user = const_cast<std::function<bool(int64_t)>*>(&go_on);
    Check(tvm_stretch_generate(model_.get(), tokens.data(), tokens.size(), most, ask, user));
  }

  std::vector<std::string> plans() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < tvm_stretch_plan_count(model_.get()); ++i) {
      names.emplace_back(tvm_stretch_plan_name(model_.get(), i));
    }
    return names;
  }
  void use_plan(size_t number) { Check(tvm_stretch_use_plan(model_.get(), number)); }
  void adapt() { Check(tvm_stretch_adapt(model_.get())); }
  void set_cores(const std::string& cores) {
    Check(tvm_stretch_set_cores(model_.get(), cores.c_str()));
  }

  // JSON; see tvm_stretch.h.
  std::string statistics() {
    const char* json = nullptr;
    Check(tvm_stretch_statistics(model_.get(), &json));
    return json;
  }
  std::string trace(const Buffers& inputs, const Buffers& outputs) {
    const char* json = nullptr;
    Check(tvm_stretch_trace(model_.get(), inputs.data(), inputs.size(), outputs.data(),
                            outputs.size(), &json));
    return json;
  }

 private:
  struct Free {
    void operator()(TvmStretchModel* model) const { tvm_stretch_free(model); }
  };
  // Takes over what a C function writes to it.
  class Target {
   public:
    explicit Target(Model* owner) : owner_(owner) {}
    ~Target() { owner_->model_.reset(made_); }
    operator TvmStretchModel**() { return &made_; }

   private:
    Model* owner_;
    TvmStretchModel* made_ = nullptr;
  };

  Model() = default;
  Target Out() { return Target(this); }

  static void Check(TvmStretchStatus status) {
    if (status != TVM_STRETCH_OK) throw Error(status, tvm_stretch_last_error());
  }

  template <typename Get>
  std::vector<Tensor> Ports(Get get) const {
    std::vector<Tensor> found;
    for (size_t i = 0; const TvmStretchTensor* port = get(model_.get(), i); ++i) {
      found.push_back(
          {port->name, port->type, {port->shape, port->shape + port->dimensions}, port->bytes});
    }
    return found;
  }

  std::unique_ptr<TvmStretchModel, Free> model_;
};

// Memory of somebody else for inputs and outputs of runs; see tvm_stretch_map.
class Mapping {
 public:
  explicit Mapping(const TvmStretchRows& rows) { Check(tvm_stretch_map(&rows, &mapping_)); }
  explicit Mapping(void* hardware_buffer) {
    Check(tvm_stretch_map_hardware_buffer(hardware_buffer, &mapping_));
  }
  ~Mapping() { tvm_stretch_unmap(mapping_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  TvmStretchBuffer begin(int access) {
    TvmStretchBuffer buffer;
    Check(tvm_stretch_begin(mapping_, access, &buffer));
    return buffer;
  }
  void end() { Check(tvm_stretch_end(mapping_)); }

 private:
  static void Check(TvmStretchStatus status) {
    if (status != TVM_STRETCH_OK) throw Error(status, tvm_stretch_last_error());
  }

  TvmStretchMapping* mapping_ = nullptr;
};

}  // namespace tvm_stretch
