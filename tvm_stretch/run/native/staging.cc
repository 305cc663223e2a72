#include "staging.h"

#include <tvm/ffi/error.h>

#include <algorithm>

#include "memory.h"
#include "ports.h"

namespace tvm_stretch {

size_t Staging::LengthWith(size_t i, const DLTensor& tensor, size_t current) const {
  size_t best = current;
  int64_t most = -1;
  for (size_t length = 0; length < spec_.lengths.size(); ++length) {
    if (!HasShape(tensor, spec_.input(i, length))) continue;
    int64_t fitting = 0;
    for (size_t j = 0; j < set_.size(); ++j) {
      fitting += j != i && set_[j] == spec_.lengths[length].inputs[j] ? 1 : 0;
    }
    if (fitting < most || (fitting == most && length != current)) continue;
    most = fitting;
    best = length;
  }
  if (most < 0 && spec_.lengths.size() > 1) {
    std::vector<const DLTensor*> inputs(spec_.inputs.size());
    inputs[i] = &tensor;
    RefuseLength(spec_, inputs);
  }
  return best;
}

void Staging::Set(Instance* instance, size_t i, const DLTensor& tensor) {
  CopyToContiguous(tensor, instance->input(i));
  if (i >= spec_.arguments) instance->StateIsSet(i);
  if (i < spec_.arguments) set_[i] = spec_.lengths[instance->length()].inputs[i];
}

void Staging::BindOwn(Instance* instance) const {
  const LengthSpec& own = spec_.lengths[instance->length()];
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    if (i < spec_.arguments && set_[i] != own.inputs[i]) {
      TVM_FFI_THROW(ValueError) << "expected set_input('" << spec_.inputs[i].name
                                << "', ...) before run, got "
                                << (set_[i] == kNotSet ? "none"
                                                       : "one of another length than " + own.name)
                                << "; set every input once";
    }
    instance->BindInput(i, instance->input(i));
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) instance->BindOutput(i, instance->output(i));
}

void Staging::RunOwn(Instance* instance, bool choose, bool advance) const {
  BindOwn(instance);
  instance->Run();
  instance->CheckValues();
  if (choose) instance->Choose();
  if (advance) instance->Advance();
}

void Staging::RunPadded(Instance* instance, const SizedLength& sized,
                        const std::vector<const DLTensor*>& inputs,
                        const std::vector<const DLTensor*>& outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    CopyPadded(spec_, i, sized, *inputs[i], instance->input(i));
    set_[i] = spec_.lengths[sized.length].inputs[i];
  }
  BindOwn(instance);
  instance->Run();
  instance->CheckValues();
  instance->Choose();
  for (size_t i = 0; i < outputs.size(); ++i) {
    CopyShortened(spec_, i, sized, instance->output(i), *outputs[i]);
  }
  instance->Advance();
}

void Staging::Run(Instance* instance, const SizedLength& sized,
                  const std::vector<const DLTensor*>& inputs,
                  const std::vector<const DLTensor*>& outputs) {
  if (sized.is_padded()) return RunPadded(instance, sized, inputs, outputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool in_place = IsUsableInPlace(*inputs[i]) &&
                          (instance->takes_input(i) || instance->ImportsInput(i, *inputs[i]));
    if (!in_place) {
      Set(instance, i, *inputs[i]);
    }
    instance->BindInput(i, in_place ? DataOf(*inputs[i]) : instance->input(i));
  }
  std::vector<bool> in_place;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool is_input = std::any_of(inputs.begin(), inputs.end(), [&](const DLTensor* input) {
      return Overlap(*input, *outputs[i]);  // the input would be read while the output is written
    });
    in_place.push_back(instance->takes_output(i) && IsUsableInPlace(*outputs[i]) && !is_input);
    instance->BindOutput(i, in_place[i] ? DataOf(*outputs[i]) : instance->output(i));
  }
  instance->Run();
  instance->CheckValues();
  instance->Choose();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!in_place[i]) CopyFromContiguous(instance->output(i), *outputs[i]);
  }
  instance->Advance();
}

}  // namespace tvm_stretch
