// The executor's methods that run several times: steps whose states follow from each other, values
// in pieces, and how states are drawn.
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <sstream>

#include "executor.h"
#include "ports.h"
#include "sizes.h"

namespace tvm_stretch {
namespace {

// Lets Python answer Ctrl-C within a long call; not at each step, because another thread of Python
// may let it wait for milliseconds.
class Interrupts {
 public:
  void Check() {
    if (Now() - last_ < 50'000'000) return;
    if (TVMFFIEnvCheckSignals() != 0) throw ffi::EnvErrorAlreadySet();
    last_ = Now();
  }

 private:
  int64_t last_ = Now();
};

// Values of chosen states at which a loop ends: a text of "2,7".
class Stops {
 public:
  Stops(const GraphSpec& spec, const std::string& text) : spec_(spec) {
    std::istringstream list(text);
    for (std::string item; std::getline(list, item, ',');) {
      values_.push_back(0);
      const auto [end, fault] =
          std::from_chars(item.data(), item.data() + item.size(), values_.back());
      if (fault == std::errc() && end == item.data() + item.size()) continue;
      TVM_FFI_THROW(ValueError) << "expected integers like '2,7' for the values at which run_steps "
                                   "ends, got '"
                                << text << "'; see the list of methods";
    }
  }

  // Whether all values that states had after the last run are among them.
  bool Has(const Instance& instance) const {
    bool any = false, all = !values_.empty();
    for (const StateSpec& state : spec_.states) {
      if (state.output >= spec_.results) continue;
      const TensorSpec& next = spec_.output(state.output);
      for (int64_t at = 0; at < next.bytes; at += next.dtype.bits / 8) {
        int64_t value = 0;
        std::memcpy(&value, instance.output(state.output) + at, next.dtype.bits / 8);
        all &= std::find(values_.begin(), values_.end(), value) != values_.end();
        any = true;
      }
    }
    return any && all;
  }

 private:
  const GraphSpec& spec_;
  std::vector<int64_t> values_;
};

// The lengths of runs that together read this number of bytes of an input: the longest first.
std::vector<size_t> PiecesOf(const GraphSpec& spec, size_t input, int64_t bytes) {
  std::vector<size_t> lengths(spec.lengths.size());
  std::iota(lengths.begin(), lengths.end(), 0);
  std::stable_sort(lengths.begin(), lengths.end(), [&](size_t one, size_t other) {
    return spec.input(input, one).bytes > spec.input(input, other).bytes;
  });
  std::vector<size_t> pieces;
  int64_t rest = bytes;
  for (size_t length : lengths) {
    for (const int64_t own = spec.input(input, length).bytes; rest >= own; rest -= own) {
      pieces.push_back(length);
    }
  }
  if (rest > 0 || pieces.empty()) {
    TVM_FFI_THROW(ValueError) << "expected values of '" << spec.inputs[input].name
                              << "' for runs of the lengths " << spec.length_names() << ", got "
                              << bytes * 8 / spec.input(input).dtype.bits
                              << "; compile a length of one value";
  }
  return pieces;
}

}  // namespace

ffi::Any Executor::RunSteps(Args args) {
  const int num_inputs = static_cast<int>(spec_.arguments);
  const int num_outputs = static_cast<int>(spec_.results);
  const int num_arguments = 1 + num_inputs + num_outputs;
  RequireCount(args, num_arguments, num_arguments + 1, "run_steps");
  const int64_t count = args[0].cast<int64_t>();
  const bool may_stop = args.size() > num_arguments;
  const Stops stops(spec_, may_stop ? std::string(args[num_arguments].cast<ffi::String>()) : "");
  std::vector<SteppedTensor> inputs, outputs;
  std::vector<const DLTensor*> whole, first;
  for (int i = 0; i < num_inputs; ++i) {
    const DLTensor& tensor = *args[1 + i].cast<DLTensor*>();
    const bool same = tensor.ndim == static_cast<int32_t>(spec_.input(i).shape.size());
    inputs.emplace_back(tensor, same ? SteppedTensor::kSame : count);
  }
  for (SteppedTensor& input : inputs) first.push_back(&input.at(0));
  const SizedLength sized = UseLengthOf(first, false);
  for (int i = 0; i < num_outputs; ++i) {
    whole.push_back(args[1 + num_inputs + i].cast<DLTensor*>());
    outputs.emplace_back(*whole[i], count);
    CheckTensor(outputs[i].at(0), spec_.output(i, sized.length), "output", spec_.outputs[i].name);
    CheckApart(whole);
  }
  Interrupts interrupts;
  for (int64_t step = 0; step < count; ++step) {
    std::vector<const DLTensor*> from, to;
    for (SteppedTensor& input : inputs) from.push_back(&input.at(step));
    for (SteppedTensor& output : outputs) to.push_back(&output.at(step));
    staging_.Run(&instance(), sized, from, to);
    if (stops.Has(instance())) return step + 1;
    interrupts.Check();
  }
  return count;
}

ffi::Any Executor::Feed(Args args) {
  RequireCount(args, 1, 1, "feed");
  const DLTensor& values = *args[0].cast<DLTensor*>();
  const size_t input = spec_.states[ChosenState(spec_)].input;
  const DLDataType type = spec_.input(input).dtype;
  const int64_t count = Product(values.shape, values.shape + values.ndim);
  CheckTensor(values, {values.shape, values.shape + values.ndim}, type, "input",
              spec_.inputs[input].name);
  std::vector<char> copy(Times(count, type.bits / 8));
  CopyToContiguous(values, copy.data());
  const std::vector<size_t> pieces = PiecesOf(spec_, input, static_cast<int64_t>(copy.size()));
  Interrupts interrupts;
  const char* next = copy.data();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t bytes = spec_.input(input, pieces[i]).bytes;
    instance().UseLength(pieces[i]);
    std::memcpy(instance_->input(input), next, bytes);
    next += bytes;
    instance_->StateIsSet(input);
    staging_.RunOwn(instance_.get(), i + 1 == pieces.size(), true);
    interrupts.Check();
  }
  return ffi::Any();
}

ffi::Any Executor::SetSampling(Args args) {
  RequireCount(args, 5, 5, "set_sampling");
  const SamplingSpec own{args[0].cast<double>(), args[1].cast<int64_t>(), args[2].cast<double>(),
                         args[3].cast<double>(), args[4].cast<int64_t>()};
  const auto is_in = [](double value, double most) { return value >= 0 && value <= most; };
  if (!is_in(own.temperature, kMaxTemperature) || own.top_k < 0 || !is_in(own.top_p, 1) ||
      !is_in(own.min_p, 1) || own.seed < 0) {
    TVM_FFI_THROW(ValueError) << "expected a temperature of 0 to " << kMaxTemperature
                              << ", shares of 0 to 1 and numbers from 0 on for set_sampling, got "
                              << own.temperature << ", " << own.top_k << ", " << own.top_p << ", "
                              << own.min_p << ", " << own.seed << "; see sampler.h";
  }
  instance().UseSampling(own);
  return ffi::Any();
}

}  // namespace tvm_stretch
