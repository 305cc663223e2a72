// The executor's methods that compute: inputs, runs, outputs.
#include <tvm/ffi/extra/json.h>

#include "executor.h"
#include "ports.h"

namespace tvm_stretch {
namespace {

namespace json = ffi::json;

const char* NameOf(Span::Kind kind) {
  switch (kind) {
    case Span::Kind::kKernel:
      return "kernel";
    case Span::Kind::kReceive:
      return "receive";
    case Span::Kind::kSend:
      return "send";
    case Span::Kind::kWait:
      return "wait";
  }
  return "";
}

json::Object ToJSON(const Span& span) {
  json::Object object;
  object.Set(ffi::String("kind"), ffi::String(NameOf(span.kind)));
  object.Set(ffi::String("id"), span.id);
  object.Set(ffi::String("name"), ffi::String(span.name));
  object.Set(ffi::String("start"), span.start);
  object.Set(ffi::String("end"), span.end);
  if (span.queued != 0) object.Set(ffi::String("queued"), span.queued);
  if (span.submitted != 0) object.Set(ffi::String("submitted"), span.submitted);
  if (span.packets != 0) object.Set(ffi::String("packets"), span.packets);
  return object;
}

// {"plan": 0, "start": ns, "end": ns, "regions": [[{"kind": "kernel", "id": 3, "name": "conv",
// "start": ns, "end": ns, "queued": ns, "submitted": ns, "packets": 812}, ...], ...]}: a list of
// spans for each region of the plan that ran; queued, submitted and packets only where they are
// known. run/timeline.py reads it.
ffi::String TraceToJSON(int64_t plan, int64_t start, int64_t end,
                        const std::vector<std::vector<Span>>& regions) {
  json::Array lists;
  for (const std::vector<Span>& spans : regions) {
    json::Array list;
    for (const Span& span : spans) list.push_back(ToJSON(span));
    lists.push_back(list);
  }
  json::Object trace;
  trace.Set(ffi::String("plan"), plan);
  trace.Set(ffi::String("start"), start);
  trace.Set(ffi::String("end"), end);
  trace.Set(ffi::String("regions"), lists);
  return WholeJSON(trace);
}

}  // namespace

ffi::Any Executor::SetInput(Args args) {
  RequireCount(args, 2, 2, "set_input");
  size_t i = InputIndex(spec_, args[0]);
  const DLTensor& tensor = *args[1].cast<DLTensor*>();
  const size_t length = staging_.LengthWith(i, tensor, instance().length());
  CheckTensor(tensor, spec_.input(i, length), "input", spec_.inputs[i].name);
  instance().UseLength(length);
  staging_.Set(&instance(), i, tensor);
  return ffi::Any();
}

// Chooses the length of these inputs and of the states for the next run, and checks the inputs.
SizedLength Executor::UseLengthOf(const std::vector<const DLTensor*>& inputs, bool padding) {
  instance().FollowStates();
  SizedLength sized = FindLength(spec_, inputs, instance().length(), padding);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = spec_.input(i, sized.length);
    if (!sized.is_padded()) {
      CheckTensor(*inputs[i], spec, "input", spec_.inputs[i].name);
    } else {
      CheckTensor(*inputs[i], ShapeOfInput(spec_, i, sized), spec.dtype, "input",
                  spec_.inputs[i].name);
    }
  }
  if (!instance().Holds(sized.length)) {
    TVM_FFI_THROW(ValueError) << "expected as many values of the states for the inputs of length "
                              << spec_.lengths[sized.length].name
                              << ", got another number; set both for one length";
  }
  instance().UseLength(sized.length);
  return sized;
}

ffi::Any Executor::Run(Args args) {
  RequireCount(args, 0, 1, "run");
  instance().FollowStates();
  const bool advance = args.size() == 0 || args[0].cast<bool>();
  staging_.RunOwn(&instance(), advance, advance);
  return ffi::Any();
}

ffi::Any Executor::GetOutput(Args args) {
  RequireCount(args, 1, 2, "get_output");
  size_t i = OutputIndex(spec_, args[0]);
  const TensorSpec& spec = spec_.output(i, instance().last_length());
  if (args.size() == 2) {
    const DLTensor& tensor = *args[1].cast<DLTensor*>();
    CheckTensor(tensor, spec, "output", spec_.outputs[i].name);
    CopyFromContiguous(instance().output(i), tensor);
    return ffi::Any();
  }
  ffi::Tensor tensor = NewTensor(spec);
  CopyFromContiguous(instance().output(i), *tensor.GetDLTensorPtr());
  return tensor;
}

ffi::Any Executor::Invoke(Args args) {
  const int num_inputs = static_cast<int>(spec_.arguments);
  const int num_outputs = static_cast<int>(spec_.results);
  if (args.size() != num_inputs) {
    RequireCount(args, num_inputs + num_outputs, num_inputs + num_outputs, "invoke");
  }
  std::vector<const DLTensor*> inputs, outputs;
  for (int i = 0; i < num_inputs; ++i) inputs.push_back(args[i].cast<DLTensor*>());
  const SizedLength sized = UseLengthOf(inputs, true);
  for (int i = 0; i < args.size() - num_inputs; ++i) {
    outputs.push_back(args[num_inputs + i].cast<DLTensor*>());
    CheckTensor(*outputs[i], ShapeOfOutput(spec_, i, sized), spec_.output(i, sized.length).dtype,
                "output", spec_.outputs[i].name);
    CheckApart(outputs);
  }
  if (args.size() != num_inputs) {
    staging_.Run(&instance(), sized, inputs, outputs);
    return ffi::Any();
  }
  ffi::Array<ffi::Tensor> fresh;
  for (int i = 0; i < num_outputs; ++i) {
    fresh.push_back(NewTensor(ShapeOfOutput(spec_, i, sized), spec_.output(i, sized.length).dtype));
    outputs.push_back(fresh[i].GetDLTensorPtr());
  }
  staging_.Run(&instance(), sized, inputs, outputs);
  return num_outputs == 1 ? ffi::Any(fresh[0]) : ffi::Any(fresh);
}

ffi::Any Executor::RunFrame(Args args) {
  const int num_inputs = static_cast<int>(spec_.arguments);
  const int num_outputs = static_cast<int>(spec_.results);
  RequireCount(args, 4 + num_inputs + num_outputs, 4 + num_inputs + num_outputs, "run_frame");
  const StreamOptions options{args[0].cast<double>(), args[1].cast<double>(),
                              args[2].cast<double>(), args[3].cast<bool>()};
  std::vector<const char*> frame;
  std::vector<std::vector<char>> copies(num_inputs);
  for (int i = 0; i < num_inputs; ++i) {
    const DLTensor& tensor = *args[4 + i].cast<DLTensor*>();
    CheckTensor(tensor, spec_.input(i), "input", spec_.inputs[i].name);
    if (!IsUsableInPlace(tensor)) {
      copies[i].resize(spec_.input(i).bytes);
      CopyToContiguous(tensor, copies[i].data());
    }
    frame.push_back(copies[i].empty() ? DataOf(tensor) : copies[i].data());
  }
  const StreamResult result = instance().RunFrame(frame, options);
  instance_->CheckValues();
  for (int i = 0; i < num_outputs; ++i) {
    const DLTensor& tensor = *args[4 + num_inputs + i].cast<DLTensor*>();
    CheckTensor(tensor, spec_.output(i), "output", spec_.outputs[i].name);
    CopyFromContiguous(instance_->output(i), tensor);
  }
  return ffi::String(std::to_string(result.changed) + "," + std::to_string(result.computed));
}

ffi::Any Executor::State(Args args) {
  RequireCount(args, 1, 1, "state");
  const size_t i = InputIndex(spec_, args[0]);
  instance().FollowStates();
  ffi::Tensor tensor = NewTensor(spec_.input(i, instance().length()));
  CopyFromContiguous(instance().input(i), *tensor.GetDLTensorPtr());
  return tensor;
}

ffi::Any Executor::Trace(Args) {
  staging_.BindOwn(&instance());
  instance_->Run(true);
  const int64_t end = Now();
  return TraceToJSON(instance_->last_plan(), instance_->began(), end, instance_->Spans());
}

// Measures runs as a caller would, but on this machine. Guards do not check, as inputs are random.
ffi::Any Executor::TimeRuns(Args args) {
  RequireCount(args, 1, 1, "time_runs");
  const int64_t count = args[0].cast<int64_t>();
  if (count < 1) {
    TVM_FFI_THROW(ValueError) << "expected at least 1 run for time_runs, got " << count
                              << "; measure at least once";
  }
  staging_.BindOwn(&instance());
  std::string times;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = Now();
    instance_->Run();
    times += (i == 0 ? "" : ",") + std::to_string(Now() - start);
  }
  return ffi::String(times);
}

}  // namespace tvm_stretch
