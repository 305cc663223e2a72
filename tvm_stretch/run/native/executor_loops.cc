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

  bool Has(int64_t value) const {
    return std::find(values_.begin(), values_.end(), value) != values_.end();
  }

  // Whether all values that states had after the last run are among them.
  bool Has(const Instance& instance) const {
    bool any = false, all = !values_.empty();
    for (const StateSpec& state : spec_.states) {
      if (state.output >= spec_.results) continue;
      const TensorSpec& next = spec_.output(state.output);
      for (int64_t at = 0; at < next.bytes; at += next.dtype.bits / 8) {
        all &= Has(IntegerAt(instance.output(state.output) + at, next.dtype.bits / 8));
        any = true;
      }
    }
    return any && all;
  }

 private:
  const GraphSpec& spec_;
  std::vector<int64_t> values_;
};

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

// The length of a run that gives scores for each of the values that it reads, so that guesses are
// checked by it; the first length if there is none.
size_t GuessingLength(const GraphSpec& spec, const StateSpec& chosen) {
  const int64_t item = spec.output(chosen.output).bytes;
  size_t best = 0;
  int64_t fewest = 0;
  for (size_t length = 0; length < spec.lengths.size(); ++length) {
    const int64_t values = spec.input(chosen.input, length).bytes / item;
    const TensorSpec& scores = spec.output(chosen.scores, length);
    const int64_t rows = Product(scores.shape.begin(), scores.shape.end() - 1);
    if (values < 2 || rows != values || (fewest > 0 && values > fewest)) continue;
    best = length;
    fewest = values;
  }
  return best;
}

// Whether a run may read more values than it keeps: then nothing but the counters tells how many.
bool CanRewind(const GraphSpec& spec, const StateSpec& chosen) {
  bool counts = false;
  for (const StateSpec& state : spec.states) {
    if (&state == &chosen) continue;
    if (state.rewind < 0 || state.slide > 0) return false;
    counts |= state.rewind > 0;
  }
  return counts && chosen.scores >= 0 && spec.arguments == 0;
}

std::vector<int64_t> IntegersOf(const DLTensor& tensor) {
  const int64_t count = Product(tensor.shape, tensor.shape + tensor.ndim);
  CheckTensor(tensor, {count}, DLDataType{kDLInt, 64, 1}, "input", "guesses");
  std::vector<int64_t> values(count);
  CopyToContiguous(tensor, reinterpret_cast<char*>(values.data()));
  return values;
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
  const StateSpec& chosen = spec_.states[ChosenState(spec_)];
  const size_t input = chosen.input;
  const DLDataType type = spec_.input(input).dtype;
  const int64_t item = type.bits / 8;
  const int64_t count = Product(values.shape, values.shape + values.ndim);
  CheckTensor(values, {values.shape, values.shape + values.ndim}, type, "input",
              spec_.inputs[input].name);
  std::vector<char> copy(Times(count, item));
  CopyToContiguous(values, copy.data());
  for (int64_t i = 0; i < count; ++i) guesses_.Note(IntegerAt(copy.data() + i * item, item));
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
  guesses_.Note(IntegerAt(instance_->output(chosen.output), item));
  return ffi::Any();
}

ffi::Any Executor::Guess(Args args) {
  RequireCount(args, 1, 3, "guess");
  const auto most = args[0].cast<int64_t>();
  if (most < 1) {
    TVM_FFI_THROW(ValueError) << "expected at least 1 value for guess, got " << most
                              << "; see the list of methods";
  }
  const Stops stops(spec_, args.size() > 1 ? std::string(args[1].cast<ffi::String>()) : "");
  const size_t state = ChosenState(spec_);
  const StateSpec& chosen = spec_.states[state];
  Instance& own = instance();
  own.FollowStates();
  choices_.clear();
  const bool is_offered = args.size() > 2;
  const std::vector<int64_t> offered =
      is_offered ? IntegersOf(*args[2].cast<DLTensor*>()) : std::vector<int64_t>();
  if (most > 1) choices_ = RunGuessing(state, stops, most, offered);
  std::vector<int64_t> values;
  for (const Instance::Choice& choice : choices_) values.push_back(choice.value);
  if (values.empty()) {
    const int64_t bytes = spec_.output(chosen.output).bytes, begin = Now();
    const bool is_one = spec_.input(chosen.input, own.length()).bytes == bytes;
    staging_.RunOwn(&own, true, true);
    if (is_one) guesses_.RanPlain(Now() - begin);
    values = {IntegerAt(own.output(chosen.output), bytes)};
  }
  for (const int64_t value : values) guesses_.Note(value);
  ffi::Tensor found = NewTensor({static_cast<int64_t>(values.size())}, DLDataType{kDLInt, 64, 1});
  std::copy(values.begin(), values.end(), static_cast<int64_t*>(found.GetDLTensorPtr()->data));
  return found;
}

// Reads the value that was chosen last and guesses of those after it, and keeps what would have
// been chosen one by one: nothing if there was nothing to guess, or no room for it. Who offers
// guesses knows what they cost.
std::vector<Instance::Choice> Executor::RunGuessing(size_t state, const Stops& stops, int64_t most,
                                                    const std::vector<int64_t>& offered) {
  const StateSpec& chosen = spec_.states[state];
  if (!CanRewind(spec_, chosen)) return {};
  Instance& own = instance();
  const int64_t bytes = spec_.output(chosen.output).bytes;
  const size_t before = own.length(), length = GuessingLength(spec_, chosen);
  const int64_t reads = spec_.input(chosen.input, length).bytes / bytes;
  if (reads < 2 || spec_.input(chosen.input, before).bytes != bytes) return {};
  const auto count = static_cast<size_t>(reads - 1);
  std::vector<int64_t> guesses = offered.empty() ? guesses_.Propose(count) : offered;
  if (guesses.empty()) return {};
  guesses.resize(count, guesses.back());
  char* const input = own.input(chosen.input);
  for (int64_t i = 1; i < reads; ++i) {
    StoreInteger(guesses[i - 1], bytes, input + i * bytes);
  }
  own.UseLength(length);
  own.StateIsSet(chosen.input);
  const int64_t begin = Now();
  try {
    staging_.RunOwn(&own, false, false);
  } catch (const ffi::Error& error) {
    if (error.kind() != kInputError) throw;  // cancelled, or a processor failed
    // the last places of a cache have no room for guesses
    if (offered.empty()) guesses_.RanGuessing(Now() - begin, 0);
    own.UseLength(before);
    own.StateIsSet(chosen.input);
    return {};
  }
  const auto choices = own.Accept(state, guesses, most, [&](int64_t v) { return stops.Has(v); });
  own.Advance();
  own.Rewind(state, choices.back(), reads - static_cast<int64_t>(choices.size()));
  if (offered.empty()) guesses_.RanGuessing(Now() - begin, choices.size());
  chosen_by_ = own.began();
  return choices;
}

ffi::Any Executor::TakeBack(Args args) {
  RequireCount(args, 1, 1, "take_back");
  const auto count = args[0].cast<int64_t>();
  if (chosen_by_ != instance().began()) choices_.clear();
  const auto known = static_cast<int64_t>(choices_.size());
  if (count < 0 || count >= std::max(known, int64_t{1})) {
    TVM_FFI_THROW(ValueError) << "expected fewer values than guess returned, " << known
                              << ", for take_back, got " << count << "; see the list of methods";
  }
  choices_.resize(known - count);
  guesses_.TakeBack(static_cast<size_t>(count));
  if (count > 0) {
    instance().Rewind(ChosenState(spec_), choices_.back(), count);
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
