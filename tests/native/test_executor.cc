// The executor, with kernels that are functions of this file.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "graph.h"
#include "graphs.h"
#include "kernels.h"
#include "memory.h"
#include "program.h"

namespace tvm_stretch {
namespace {

using testing::Call;
using testing::Changed;
using testing::Create;
using testing::ErrorOf;
using testing::Filled;
using testing::First;
using testing::Kernels;
using testing::SmallGraph;

TEST(Executor, PreparesOnceForAllInstances) {
  auto kernels = ffi::make_object<Kernels>();
  ffi::Module first = Create(SmallGraph(), ffi::Module(kernels));
  EXPECT_EQ(kernels->prepared, 0) << "nothing happens before the first use";
  Call(first, "load");
  auto second = Call(first, "create_instance").cast<ffi::Module>();
  for (const ffi::Module& module : {first, second}) {
    Call(module, "set_input", ffi::String("x"), Filled({16}, 5.0f));
    Call(module, "run");
    EXPECT_EQ(First(Call(module, "get_output", 0).cast<ffi::Tensor>()), 4.0f);
  }
  EXPECT_EQ(kernels->prepared, 1);
}

TEST(Executor, InstanceOutlivesTheFirst) {
  ffi::Optional<ffi::Module> first = Create(SmallGraph(), ffi::Module(ffi::make_object<Kernels>()));
  auto second = Call(*first, "create_instance").cast<ffi::Module>();
  first = std::nullopt;
  ffi::Tensor y = Filled({4, 4}, 0.0f);
  Call(second, "invoke", Filled({16}, 4.0f), y);
  EXPECT_EQ(First(y), 2.0f);
}

TEST(Executor, InvokeWithoutOutputsReturnsNewOnes) {
  ffi::Module module = Create(SmallGraph(), ffi::Module(ffi::make_object<Kernels>()));
  auto first = Call(module, "invoke", Filled({16}, 4.0f)).cast<ffi::Tensor>();
  auto second = Call(module, "invoke", Filled({16}, 5.0f)).cast<ffi::Tensor>();
  EXPECT_EQ(First(first), 2.0f);
  EXPECT_EQ(First(second), 4.0f);
  EXPECT_EQ(first.ndim(), 2);
}

ffi::Tensor Places(int64_t first, int64_t second) {
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(testing::HostAllocator(), {2, 1},
                                                DLDataType{kDLInt, 64, 1}, DLDevice{kDLCPU, 0});
  static_cast<int64_t*>(tensor.data_ptr())[0] = first;
  static_cast<int64_t*>(tensor.data_ptr())[1] = second;
  return tensor;
}

// The first number of each row of the state.
std::vector<float> RowsOf(const ffi::Module& module) {
  const auto state = Call(module, "state", ffi::String("past")).cast<ffi::Tensor>();
  const auto* numbers = static_cast<const float*>(state.data_ptr());
  return {numbers[0], numbers[16], numbers[32], numbers[48]};
}

TEST(Executor, WritesRowsOfAState) {
  ffi::Module module = Create(testing::WritingGraph(), ffi::Module(ffi::make_object<Kernels>()));
  using Rows = std::vector<float>;
  Call(module, "invoke", Places(0, 2), Filled({2, 16}, 1.0f));
  EXPECT_EQ(RowsOf(module), (Rows{1, 0, 1, 0}));
  Call(module, "invoke", Places(3, 3), Filled({2, 16}, 2.0f));
  EXPECT_EQ(RowsOf(module), (Rows{1, 0, 1, 2}));
  Call(module, "invoke", Places(INT64_MIN, INT64_MAX), Filled({2, 16}, 3.0f));  // clamped
  EXPECT_EQ(RowsOf(module), (Rows{3, 0, 1, 3}));
  Call(module, "set_input", ffi::String("places"), Places(1, 2));
  Call(module, "set_input", ffi::String("rows"), Filled({2, 16}, 9.0f));
  Call(module, "run", false);  // only to measure it
  EXPECT_EQ(RowsOf(module), (Rows{3, 0, 1, 3}));
  Call(module, "set_input", ffi::String("past"), Filled({4, 16}, 4.0f));
  Call(module, "invoke", Places(1, 1), Filled({2, 16}, 5.0f));
  EXPECT_EQ(RowsOf(module), (Rows{4, 5, 4, 4}));
  Call(module, "reset");
  Call(module, "invoke", Places(2, 2), Filled({2, 16}, 6.0f));
  EXPECT_EQ(RowsOf(module), (Rows{0, 0, 6, 0}));
}

// The small graph for 1 to 16 rows, whose padding repeats the last one.
std::string PaddedGraph(const std::string& span) {
  std::string text = SmallGraph();
  const std::string square = R"("shape":[4,4])", column = R"("shape":[16,1])";
  for (size_t at; (at = text.find(square)) != std::string::npos;) {
    text.replace(at, square.size(), column);
  }
  const std::string lengths = R"("lengths":[{"name":"n=16","sizes":{"n":16},)"
                              R"("inputs":[{"name":"x","tensor":0}],"held":[],"kept":[],)"
                              R"("outputs":[{"name":"y","tensor":1}],"guards":[]}],)";
  return text.insert(1, lengths + "\"spans\":[" + span + "],");
}

constexpr const char* kSpan = R"({"name":"n","low":2,"high":16,"inputs":{"x":[1]},)"
                              R"("outputs":[[1,0]],"masks":{},"hiding":[]})";

TEST(Executor, InvokePads) {
  ffi::Module module = Create(PaddedGraph(kSpan), ffi::Module(ffi::make_object<Kernels>()));
  for (int64_t rows : {16, 2, 7, 16, 15}) {
    auto y = Call(module, "invoke", Filled({rows}, 4.0f)).cast<ffi::Tensor>();
    EXPECT_EQ(y.size(0), rows);
    for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(static_cast<float*>(y.data_ptr())[i], 2.0f);
    ffi::Tensor other = Filled({rows, 1}, 0.0f);
    Call(module, "invoke", Filled({rows}, 5.0f), other);
    EXPECT_EQ(First(other), 4.0f);
  }
  const auto error_of = [&](int64_t rows, int64_t results) {
    return ErrorOf(
        [&] { Call(module, "invoke", Filled({rows}, 1.0f), Filled({results, 1}, 0.0f)); });
  };
  EXPECT_NE(error_of(1, 1).find("n may be 2 to 16"), std::string::npos) << error_of(1, 1);
  EXPECT_NE(error_of(17, 17).find("n may be 2 to 16"), std::string::npos) << error_of(17, 17);
  EXPECT_NE(error_of(3, 16).find("float32[3, 1] for output 'y'"), std::string::npos)
      << error_of(3, 16);
}

TEST(Executor, WrongSpansAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("x":[1])", R"("x":[2])"},           {R"("x":[1])", R"("x":[1,0])"},
      {R"("x":[1])", R"("x":[-1])"},          {R"("x":[1])", R"("z":[1])"},
      {R"([[1,0]])", R"([[1,1]])"},           {R"([[1,0]])", R"([])"},
      {R"("name":"n")", R"("name":"m")"},     {R"("low":2)", R"("low":0)"},
      {R"("high":16)", R"("high":1)"},        {R"("masks":{})", R"("masks":{"x":2})"},
      {R"("hiding":[])", R"("hiding":["x"])"}};
  for (const auto& [from, to] : cases) {
    std::string span = kSpan;
    span.replace(span.find(from), std::string(from).size(), to);
    const std::string error = ErrorOf([&] { GraphSpec::FromJSON(PaddedGraph(span)); });
    EXPECT_NE(error.find("spans"), std::string::npos) << to << ": " << error;
  }
  const std::string both = std::string(kSpan) + "," + kSpan;
  const std::string error = ErrorOf([&] { GraphSpec::FromJSON(PaddedGraph(both)); });
  EXPECT_NE(error.find("axes that grow with one span"), std::string::npos) << error;
}

TEST(Executor, InvokeTakesUnalignedMemory) {
  ffi::Module module = Create(SmallGraph(), ffi::Module(ffi::make_object<Kernels>()));
  ffi::Tensor memory = Filled({64}, 4.0f);
  int64_t in_shape[] = {16}, out_shape[] = {4, 4};
  DLTensor x{memory.data_ptr(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, in_shape, nullptr, 4};
  DLTensor y{memory.data_ptr(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, out_shape, nullptr, 132};
  Call(module, "invoke", &x, &y);
  const float* floats = static_cast<float*>(memory.data_ptr());
  EXPECT_EQ(floats[32], 4.0f);
  EXPECT_EQ(floats[33], 2.0f);
  EXPECT_EQ(floats[48], 2.0f);
  EXPECT_EQ(floats[49], 4.0f);
}

TEST(Executor, FailingKernelIsAnErrorAndTheModuleLivesOn) {
  std::string json = Changed("\"kernel\":\"add\"", "\"kernel\":\"fail\"");
  ffi::Module module = Create(json, ffi::Module(ffi::make_object<Kernels>()));
  Call(module, "set_input", 0, Filled({16}, 1.0f));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ErrorOf([&] { Call(module, "run"); }), "kernel failed");
  }
}

TEST(Executor, MissingKernelIsNamed) {
  std::string json = Changed("\"kernel\":\"add\"", "\"kernel\":\"gone\"");
  ffi::Module module = Create(json, ffi::Module(ffi::make_object<Kernels>()));
  EXPECT_NE(ErrorOf([&] { Call(module, "load"); }).find("'gone'"), std::string::npos);
}

TEST(Executor, MissingProcessorFeatureIsNamed) {
  std::string json = Changed("\"cpu_features\":[]", "\"cpu_features\":[\"warp-drive\"]");
  ffi::Module module = Create(json, ffi::Module(ffi::make_object<Kernels>()));
  EXPECT_NE(ErrorOf([&] { Call(module, "load"); }).find("warp-drive"), std::string::npos);
}

TEST(Executor, WrongTensorsAreRefused) {
  ffi::Module module = Create(SmallGraph(), ffi::Module(ffi::make_object<Kernels>()));
  auto set = [&](const ffi::Tensor& tensor) {
    return ErrorOf([&] { Call(module, "set_input", 0, tensor); });
  };
  EXPECT_NE(set(Filled({15}, 0)).find("got float32[15]"), std::string::npos)
      << set(Filled({15}, 0));
  EXPECT_NE(set(Filled({4, 4}, 0)).find("got float32[4, 4]"), std::string::npos);
  ffi::Tensor host = Filled({16}, 0);
  DLTensor gpu = *host.GetDLTensorPtr();
  gpu.device = DLDevice{kDLCUDA, 0};
  std::string message = ErrorOf([&] { Call(module, "set_input", 0, &gpu); });
  EXPECT_NE(message.find("memory of the CPU"), std::string::npos) << message;
}

TEST(Executor, ThreadsWithTheirOwnInstances) {
  ffi::Module module = Create(SmallGraph(), ffi::Module(ffi::make_object<Kernels>()));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto mine = Call(module, "create_instance").cast<ffi::Module>();
      ffi::Tensor x = Filled({16}, static_cast<float>(t)), y = Filled({4, 4}, 0);
      for (int i = 0; i < 200; ++i) {
        Call(mine, "invoke", x, y);
        wrong[t] += First(y) != 2.0f * (static_cast<float>(t) - 3.0f);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// An artifact's weights: a header, then the bytes, as run/parts.py writes them.
std::vector<char> Section(uint64_t bytes) {
  std::vector<char> section(64 + 128 + 64);
  char* start = section.data();
  std::memcpy(start, "TVMSTRW1", 8);
  std::memcpy(start + 8, &bytes, 8);
  std::vector<float> values(32, 3.0f);
  std::memcpy(start + 64, values.data(), 128);
  return section;
}

ffi::Module Loaded(const std::vector<char>& section, uint64_t fingerprint) {
  static const ffi::Function load =
      ffi::Function::GetGlobalRequired("ffi.Module.load_from_bytes.tvm_stretch.executor");
  auto module = load(GraphBytes{SmallGraph(), fingerprint}.Encode()).cast<ffi::Module>();
  module->ImportModule(ffi::Module(ffi::make_object<Kernels>(section.data())));
  return module;
}

TEST(Artifact, WeightsComeFromTheLibrary) {
  std::vector<char> section = Section(128);
  ffi::Module module = Loaded(section, Fingerprint(section.data() + 64, 128));
  Call(module, "set_input", 0, Filled({16}, 5.0f));
  Call(module, "run");
  EXPECT_EQ(First(Call(module, "get_output", 0).cast<ffi::Tensor>()), 4.0f);
}

TEST(Artifact, OtherWeightsAreRefused) {
  std::vector<char> section = Section(128);
  const uint64_t fingerprint = Fingerprint(section.data() + 64, 128);
  auto error = [&] { return ErrorOf([&] { Call(Loaded(section, fingerprint), "load"); }); };
  EXPECT_EQ(error(), "");
  section[100] ^= 1;
  EXPECT_NE(error().find("damaged"), std::string::npos);
  section = Section(64);
  EXPECT_NE(error().find("damaged"), std::string::npos);
  section = Section(128);
  section[0] = 'X';
  EXPECT_NE(error().find("damaged"), std::string::npos);
}

TEST(Artifact, WithoutKernelsOrWeights) {
  static const ffi::Function load =
      ffi::Function::GetGlobalRequired("ffi.Module.load_from_bytes.tvm_stretch.executor");
  auto module = load(GraphBytes{SmallGraph(), 0}.Encode()).cast<ffi::Module>();
  EXPECT_NE(ErrorOf([&] { Call(module, "run"); }).find("code for each of the 1 processors"),
            std::string::npos);
  module->ImportModule(ffi::Module(ffi::make_object<Kernels>()));
  EXPECT_NE(ErrorOf([&] { Call(module, "run"); }).find("Model.export"), std::string::npos);
}

}  // namespace
}  // namespace tvm_stretch
