// The functions of tvm_stretch.h: null pointers are refused, exceptions become statuses.
#include <tvm/ffi/error.h>

#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "announced_runs.h"
#include "guarded.h"
#include "mapping.h"
#include "model.h"
#include "tvm_stretch.h"

struct TvmStretchModel {
  // A run in progress keeps it, too, so that a callback may free its model.
  std::shared_ptr<tvm_stretch::app::Model> model;
};

struct TvmStretchMapping {
  std::unique_ptr<tvm_stretch::app::Mapping> mapping;
};

namespace tvm_stretch::app {
namespace {

// Faults within an artifact are errors of the file, not of an argument.
template <typename Open>
TvmStretchStatus Load(TvmStretchModel** model, Open open, const char* data = nullptr) {
  const TvmStretchStatus status = Guarded([&] {
    Require(model, "the model");
    *model = nullptr;
    auto file = std::make_shared<const ArtifactFile>(open());
    try {
      *model = new TvmStretchModel{std::make_shared<Model>(std::move(file), data)};
    } catch (const ffi::Error& error) {
      RequireMemory(error);
      const bool is_ours = error.kind() == kRunError || error.kind() == kDeviceError;
      if (is_ours || error.kind() == kArtifactError) throw;
      throw ffi::Error(kArtifactError, error.message(), "");
    }
  });
  return status;
}

// For methods of a model: `call` gets it.
template <typename Call>
TvmStretchStatus With(TvmStretchModel* model, Call call) {
  return Guarded([&] {
    Require(model, "the model");
    call(*model->model);
  });
}

template <typename Make>
TvmStretchStatus Map(TvmStretchMapping** mapping, const void* memory, Make make) {
  return Guarded([&] {
    Require(mapping, "the mapping");
    *mapping = nullptr;
    Require(memory, "the memory");
    *mapping = new TvmStretchMapping{make()};
  });
}

Buffers Checked(const TvmStretchBuffer* inputs, size_t input_count, const TvmStretchBuffer* outputs,
                size_t output_count) {
  if (input_count > 0) Require(inputs, "the inputs");
  if (output_count > 0) Require(outputs, "the outputs");
  return {inputs, input_count, outputs, output_count};
}

using Ports = std::vector<std::unique_ptr<Port>>;

int64_t Find(const Ports& ports, const char* name) {
  for (size_t i = 0; i < ports.size() && name != nullptr; ++i) {
    if (std::strcmp(ports[i]->shown.name, name) == 0) return static_cast<int64_t>(i);
  }
  return -1;
}

const TvmStretchTensor* Shown(const Ports& ports, size_t number) {
  return number < ports.size() ? &ports[number]->shown : nullptr;
}

// An asynchronous run: it owns the lists of buffers, which the caller's call does not outlive.
struct AsyncRun {
  std::shared_ptr<Model> model;
  std::vector<TvmStretchBuffer> inputs, outputs;
  TvmStretchCallback callback;
  void* user;
  int64_t number;
  TvmStretchStatus status = TVM_STRETCH_OK;

  void Run() {
    status = Guarded([this] {
      AnnounceRun(number);
      model->Run({inputs.data(), inputs.size(), outputs.data(), outputs.size()});
    });
  }

  // The model may be freed by the callback; this run keeps it until the callback has returned.
  void Tell() const {
    std::string text;
    const char* error = status == TVM_STRETCH_OK ? "" : last_error;
    if (error == last_text.c_str()) {  // calls of the callback write their own
      text.swap(last_text);
      error = text.c_str();
      last_error = "";
    }
    try {
      callback(user, status, error);
    } catch (...) {  // of a C++ program: its own thread has no frame that could catch it
    }
  }
};

}  // namespace
}  // namespace tvm_stretch::app

namespace app = tvm_stretch::app;

int32_t tvm_stretch_interface_version(void) { return TVM_STRETCH_INTERFACE_VERSION; }

const char* tvm_stretch_last_error(void) { return app::last_error; }

TvmStretchStatus tvm_stretch_load(const char* path, TvmStretchModel** model) {
  return app::Load(model, [path] {
    app::Require(path, "the path");
    return app::ArtifactFile::Open(std::string(path));
  });
}

TvmStretchStatus tvm_stretch_load_descriptor(int descriptor, int64_t offset, int64_t bytes,
                                             TvmStretchModel** model) {
  return app::Load(model, [=] { return app::ArtifactFile::Open(descriptor, offset, bytes); });
}

TvmStretchStatus tvm_stretch_load_memory(const void* data, size_t bytes, TvmStretchModel** model) {
  return app::Load(model, [=] {
    app::Require(data, "the data");
    return app::ArtifactFile::Copy(data, bytes);
  });
}

TvmStretchStatus tvm_stretch_load_with_data(const char* path, const char* data,
                                            TvmStretchModel** model) {
  return app::Load(
      model,
      [=] {
        app::Require(path, "the path");
        app::Require(data, "the path of the data");
        return app::ArtifactFile::Open(std::string(path));
      },
      data);
}

TvmStretchStatus tvm_stretch_clone(TvmStretchModel* model, TvmStretchModel** clone) {
  return app::With(model, [clone](app::Model& own) {
    app::Require(clone, "the clone");
    *clone = nullptr;
    *clone = new TvmStretchModel{own.Clone(false)};
  });
}

TvmStretchStatus tvm_stretch_fork(TvmStretchModel* model, TvmStretchModel** fork) {
  return app::With(model, [fork](app::Model& own) {
    app::Require(fork, "the fork");
    *fork = nullptr;
    *fork = new TvmStretchModel{own.Clone(true)};
  });
}

void tvm_stretch_free(TvmStretchModel* model) {
  if (model == nullptr) return;
  app::With(model, [](app::Model& own) {
    own.Cancel();
    own.worker().Finish();
  });
  delete model;
}

size_t tvm_stretch_input_count(const TvmStretchModel* model) {
  return model == nullptr ? 0 : model->model->inputs().size();
}

size_t tvm_stretch_output_count(const TvmStretchModel* model) {
  return model == nullptr ? 0 : model->model->outputs().size();
}

const TvmStretchTensor* tvm_stretch_input(const TvmStretchModel* model, size_t number) {
  return model == nullptr ? nullptr : app::Shown(model->model->inputs(), number);
}

const TvmStretchTensor* tvm_stretch_output(const TvmStretchModel* model, size_t number) {
  return model == nullptr ? nullptr : app::Shown(model->model->outputs(), number);
}

int64_t tvm_stretch_find_input(const TvmStretchModel* model, const char* name) {
  return model == nullptr ? -1 : app::Find(model->model->inputs(), name);
}

int64_t tvm_stretch_find_output(const TvmStretchModel* model, const char* name) {
  return model == nullptr ? -1 : app::Find(model->model->outputs(), name);
}

TvmStretchStatus tvm_stretch_run(TvmStretchModel* model, const TvmStretchBuffer* inputs,
                                 size_t input_count, const TvmStretchBuffer* outputs,
                                 size_t output_count) {
  return app::With(model, [=](app::Model& own) {
    own.Run(app::Checked(inputs, input_count, outputs, output_count));
  });
}

TvmStretchStatus tvm_stretch_run_async(TvmStretchModel* model, const TvmStretchBuffer* inputs,
                                       size_t input_count, const TvmStretchBuffer* outputs,
                                       size_t output_count, TvmStretchCallback callback,
                                       void* user) {
  return app::With(model, [=](app::Model& own) {
    app::Require(reinterpret_cast<const void*>(callback), "the callback");
    own.Check(app::Checked(inputs, input_count, outputs, output_count));
    auto run = std::make_shared<app::AsyncRun>(app::AsyncRun{model->model,
                                                             {inputs, inputs + input_count},
                                                             {outputs, outputs + output_count},
                                                             callback,
                                                             user,
                                                             own.Announce()});
    if (own.worker().Begin({[run] { run->Run(); }, [run] { run->Tell(); }})) return;
    throw tvm::ffi::Error(tvm_stretch::kRunError,
                          "expected a model without an asynchronous run, got one in progress; wait "
                          "for its callback, or use a clone",
                          "");
  });
}

TvmStretchStatus tvm_stretch_cancel(TvmStretchModel* model) {
  return app::With(model, [](app::Model& own) { own.Cancel(); });
}

size_t tvm_stretch_length_count(const TvmStretchModel* model) {
  return model == nullptr ? 0 : model->model->spec().lengths.size();
}

const char* tvm_stretch_length_name(const TvmStretchModel* model, size_t number) {
  if (number >= tvm_stretch_length_count(model)) return nullptr;
  return model->model->spec().lengths[number].name.c_str();
}

TvmStretchStatus tvm_stretch_use_length(TvmStretchModel* model, size_t number) {
  return app::With(model, [number](app::Model& own) { own.UseLength(number); });
}

TvmStretchStatus tvm_stretch_use_size(TvmStretchModel* model, const char* name, int64_t size) {
  return app::With(model, [=](app::Model& own) {
    app::Require(name, "the name");
    own.UseSize(name, size);
  });
}

TvmStretchStatus tvm_stretch_reset(TvmStretchModel* model) {
  return app::With(model, [](app::Model& own) { own.Reset(); });
}

TvmStretchStatus tvm_stretch_generate(TvmStretchModel* model, const int64_t* tokens, size_t count,
                                      size_t most, TvmStretchTokenCallback callback, void* user) {
  return app::With(model, [=](app::Model& own) {
    app::Require(reinterpret_cast<const void*>(callback), "the callback");
    if (count > 0) app::Require(tokens, "the tokens");
    own.Generate(tokens, count, most, [=](int64_t token) { return callback(user, token) != 0; });
  });
}

TvmStretchStatus tvm_stretch_set_sampling(TvmStretchModel* model, double temperature, int64_t top_k,
                                          double top_p, double min_p, int64_t seed) {
  return app::With(
      model, [=](app::Model& own) { own.SetSampling({temperature, top_k, top_p, min_p, seed}); });
}

size_t tvm_stretch_plan_count(const TvmStretchModel* model) {
  if (tvm_stretch_length_count(model) > 1) return 1;  // its plans are those of the lengths
  return model == nullptr ? 0 : model->model->spec().plans.size();
}

const char* tvm_stretch_plan_name(const TvmStretchModel* model, size_t number) {
  if (number >= tvm_stretch_plan_count(model)) return nullptr;
  return model->model->spec().plans[number].name.c_str();
}

TvmStretchStatus tvm_stretch_use_plan(TvmStretchModel* model, size_t number) {
  return app::With(model, [number](app::Model& own) {
    if (own.spec().lengths.size() == 1) return own.UsePlan(number);
    TVM_FFI_THROW(ValueError) << "expected a model of one length for use_plan, got one of "
                              << own.spec().lengths.size() << "; call tvm_stretch_use_length";
  });
}

TvmStretchStatus tvm_stretch_adapt(TvmStretchModel* model) {
  return app::With(model, [](app::Model& own) { own.Adapt(); });
}

TvmStretchStatus tvm_stretch_set_cores(TvmStretchModel* model, const char* cores) {
  return app::With(model, [cores](app::Model& own) {
    app::Require(cores, "the cores");
    own.SetCores(cores);
  });
}

TvmStretchStatus tvm_stretch_statistics(TvmStretchModel* model, const char** json) {
  return app::With(model, [json](app::Model& own) {
    app::Require(json, "the text");
    *json = own.Statistics().c_str();
  });
}

TvmStretchStatus tvm_stretch_trace(TvmStretchModel* model, const TvmStretchBuffer* inputs,
                                   size_t input_count, const TvmStretchBuffer* outputs,
                                   size_t output_count, const char** json) {
  return app::With(model, [=](app::Model& own) {
    app::Require(json, "the text");
    *json = own.Trace(app::Checked(inputs, input_count, outputs, output_count)).c_str();
  });
}

TvmStretchStatus tvm_stretch_map(const TvmStretchRows* rows, TvmStretchMapping** mapping) {
  return app::Map(mapping, rows, [&] { return app::Mapping::OfDescriptor(*rows); });
}

TvmStretchStatus tvm_stretch_map_hardware_buffer(void* hardware_buffer,
                                                 TvmStretchMapping** mapping) {
  return app::Map(mapping, hardware_buffer,
                  [&] { return app::Mapping::OfHardwareBuffer(hardware_buffer); });
}

TvmStretchStatus tvm_stretch_begin(TvmStretchMapping* mapping, int access,
                                   TvmStretchBuffer* buffer) {
  return app::Guarded([&] {
    app::Require(mapping, "the mapping");
    app::Require(buffer, "the buffer");
    *buffer = mapping->mapping->Begin(access);
  });
}

TvmStretchStatus tvm_stretch_end(TvmStretchMapping* mapping) {
  return app::Guarded([&] {
    app::Require(mapping, "the mapping");
    mapping->mapping->End();
  });
}

void tvm_stretch_unmap(TvmStretchMapping* mapping) {
  if (mapping == nullptr) return;
  app::Guarded([&] {
    if (mapping->mapping->is_in_use()) mapping->mapping->End();
  });
  delete mapping;
}
