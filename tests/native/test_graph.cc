// Reading graphs: sound ones, wrong ones, damaged ones.
#include <gtest/gtest.h>
#include <tvm/ffi/error.h>

#include <random>

#include "graph.h"
#include "graphs.h"
#include "memory.h"
#include "program.h"

namespace tvm_stretch {
namespace {

using testing::Changed;
using testing::SmallGraph;

// The message of the error that reading `json` ends in; empty if there is none.
std::string ErrorOf(const std::string& json) {
  try {
    GraphSpec::FromJSON(json);
  } catch (const ffi::Error& error) {
    return error.message();
  }
  return "";
}

TEST(Graph, ReadsWhatLoweringWrites) {
  GraphSpec graph = GraphSpec::FromJSON(SmallGraph());
  ASSERT_EQ(graph.tensors.size(), 7u);
  EXPECT_EQ(graph.tensors[1].shape, (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(graph.tensors[1].strides, (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(graph.tensors[3].memory, Memory::kPrepared);
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[0].inputs, (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(graph.prepare[0].kernel, "negative");
  EXPECT_EQ(graph.arena_bytes, 128);
}

struct Case {
  const char* from;
  const char* to;
  const char* message;
};

class WrongGraph : public ::testing::TestWithParam<Case> {};

TEST_P(WrongGraph, IsRefused) {
  const Case& c = GetParam();
  std::string message = ErrorOf(Changed(c.from, c.to));
  EXPECT_NE(message.find(c.message), std::string::npos) << message;
  EXPECT_EQ(message.rfind("expected ", 0), 0u) << message;
}

INSTANTIATE_TEST_SUITE_P(
    Fields, WrongGraph,
    ::testing::Values(
        Case{"\"version\":5", "\"version\":6", "got version 6"},
        Case{"\"version\":5", "\"version\":\"5\"", "version"},
        Case{"tvm_stretch.graph", "other", "version 5"},
        Case{"\"threads\":1", "\"threads\":0", "threads"},
        Case{"\"arena_bytes\":128", "\"arena_bytes\":64", "tensors[5]"},
        Case{"\"weights_bytes\":128", "\"weights_bytes\":127", "tensors[2]"},
        Case{"\"prepared_bytes\":64", "\"prepared_bytes\":0", "tensors[3]"},
        Case{"\"shape\":[16]", "\"shape\":[17]", "bytes = 68"},
        Case{"\"shape\":[16]", "\"shape\":[16],\"strides\":[2]", "bytes = 124"},
        Case{"\"shape\":[16]", "\"shape\":[16],\"strides\":[1,1]", "a stride for"},
        Case{"\"shape\":[16]", "\"shape\":[16],\"strides\":[-1]", "strides[0]"},
        Case{"\"shape\":[16]", "\"shape\":[16],\"strides\":[1099511627776]", "smaller shape"},
        Case{"\"shape\":[16]", "\"shape\":[-16]", "tensors[0].shape[0]"},
        Case{"\"shape\":[16]", "\"shape\":[4294967296,4294967296,4294967296]", "smaller shape"},
        Case{"\"dtype\":\"float32\"", "\"dtype\":\"float3x\"", "data type"},
        Case{"\"kind\":\"input\"", "\"kind\":\"inptu\"", "input, output, arena"},
        Case{"\"buffer\":0", "\"buffer\":1", "starts the port's own memory"},
        Case{"\"offset\":64", "\"offset\":9223372036854775807", "offset"},
        Case{"\"offset\":64", "\"offset\":-64", "offset"},
        Case{"\"tensor\":0", "\"tensor\":7", "inputs[0].tensor"},
        Case{"\"tensor\":1", "\"tensor\":4", "starts the port's own memory"},
        Case{"\"inputs\":[0,3]", "\"inputs\":[0,7]", "nodes[0].inputs[1]"},
        Case{"\"inputs\":[2]", "\"inputs\":[0]", "constant inputs"},
        Case{"\"outputs\":[3]", "\"outputs\":[4]", "may write"},
        Case{"\"outputs\":[4]", "\"outputs\":[2]", "may write"},
        Case{"\"inputs\":[6]", "\"inputs\":[6,6]", "of the same size"},
        Case{"\"nodes\":[", "\"nods\":[", "nodes"},
        Case{"\"nodes\":[", "\"nodes\":[7,", "an object"},
        Case{"\"cpu_features\":[]", "\"cpu_features\":{}", "a list"},
        Case{"\"kind\":\"cpu\"", "\"kind\":\"opencl\"", "the CPU in the first"},
        Case{"{\"name\":\"cpu\",\"kind\":\"cpu\"}", "", "one processor"},
        Case{"\"kind\":\"cpu\"}", "\"kind\":\"cpu\"},{\"name\":\"b\",\"kind\":\"cpu\"}",
             "nowhere else"},
        Case{"\"processor\":0", "\"processor\":1", "regions[0].processor"},
        Case{"\"nodes\":[0,1,2]", "\"nodes\":[0,1,3]", "regions[0].nodes[2]"},
        Case{"\"nodes\":[0,1,2]", "\"nodes\":[0,1,1]", "each node in one region"},
        Case{"\"nodes\":[0,1,2]", "\"nodes\":[0,1]", "a region of node 'c'"},
        Case{"\"after\":[]", "\"after\":[0]", "regions[0].after"},
        Case{"\"receives\":[0]", "\"receives\":[7]", "regions[0].receives"},
        Case{"\"receives\":[0]", "\"receives\":[3]", "regions[0].receives"},
        Case{"\"sends\":[1]", "\"sends\":[0]", "regions[0].sends"}));

// A node may depend on a byte that is a port.
TEST(Graph, Conditions) {
  const char* name = "\"name\":\"a\"";
  const auto with = [name](const std::string& when) {
    return Changed(name, name + std::string(",\"when\":") + when);
  };
  const std::string flag =
      R"({"shape":[],"dtype":"bool","kind":"KIND","buffer":0,"offset":0,"bytes":1},)";
  const auto graph = [&](const std::string& kind, const std::string& when) {
    std::string text = with(when), own = flag;
    own.replace(own.find("KIND"), 4, kind);
    const size_t at = text.find(R"({"shape":[4,4],"dtype":"float32","kind":"arena")");
    const size_t end = text.find("}", at);
    return text.insert(end + 1, "," + own.substr(0, own.size() - 1));
  };
  EXPECT_EQ(GraphSpec::FromJSON(graph("input", "[7,1]")).nodes[0].when,
            (std::vector<int64_t>{7, 1}));
  EXPECT_EQ(ErrorOf(graph("output", "[7,0]")), "");
  EXPECT_NE(ErrorOf(graph("arena", "[7,1]")).find("a port"), std::string::npos);
  for (const char* wrong : {"[7]", "[7,2]", "[8,1]", "[0,1]", "[7,1,0]"}) {
    EXPECT_NE(ErrorOf(graph("input", wrong)).find("a tensor of one byte"), std::string::npos);
  }
}

TEST(Graph, KernelsNeedAlignedTensors) {
  std::string json = Changed("\"arena_bytes\":128", "\"arena_bytes\":256");
  size_t at = json.find("\"offset\":64,\"bytes\":64},\n {\"shape\":[4,4]");
  ASSERT_NE(at, std::string::npos);
  json.replace(at, 11, "\"offset\":68");
  EXPECT_NE(ErrorOf(json).find("multiples of 64"), std::string::npos) << ErrorOf(json);
}

// The small graph whose input holds the output of the last run, this many bytes later.
std::string Sliding(const std::string& slide, const std::string& processor = "0") {
  std::string text = SmallGraph();
  const std::vector<std::pair<std::string, std::string>> changes = {
      {R"("inputs":[{"name":"x","tensor":0}],"outputs":[{"name":"y","tensor":1}])",
       R"("inputs":[],"held":[{"name":"x","tensor":0}],"outputs":[],)"
       R"("kept":[{"name":"y","tensor":1}],"states":[{"output":0,"slide":)" +
           slide + "}]"},
      {R"("shape":[4,4])", R"("shape":[16])"},
      {R"({"name":"cpu","kind":"cpu"})",
       R"({"name":"cpu","kind":"cpu"},{"name":"b","kind":"none"})"},
      {R"("processor":0)", R"("processor":)" + processor}};
  for (const auto& [from, to] : changes) text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(Graph, SlidesOfStates) {
  EXPECT_EQ(GraphSpec::FromJSON(Sliding("64")).states[0].slide, 64);
  EXPECT_NE(ErrorOf(Sliding("32")).find("a slide of whole vectors"), std::string::npos);
  for (const char* wrong : {"-64", "128"}) {
    EXPECT_NE(ErrorOf(Sliding(wrong)).find("states[0].slide"), std::string::npos) << wrong;
  }
  EXPECT_NE(ErrorOf(Sliding("64", "1")).find("slide on the CPU"), std::string::npos);
  EXPECT_EQ(ErrorOf(Sliding("0", "1")).find("slide"), std::string::npos);
}

TEST(Graph, FirstValuesOfStatesLieInTheWeights) {
  const std::string found = ErrorOf(Sliding("64,\"initial\":1048576"));
  EXPECT_NE(found.find("states[0].initial"), std::string::npos) << found;
  EXPECT_EQ(GraphSpec::FromJSON(Sliding("64,\"initial\":-1")).states[0].initial, -1);
}

// The same graph with one length, whose runs slide by these bytes.
std::string SlidingLength(const std::string& slides) {
  const std::string length = R"("lengths":[{"name":"n=1","sizes":{"n":1},"inputs":[],)"
                             R"("held":[{"name":"x","tensor":0}],"outputs":[],)"
                             R"("kept":[{"name":"y","tensor":1}],"guards":[],"slides":)";
  return Sliding("64").insert(1, length + slides + "}],");
}

TEST(Graph, SlidesOfLengths) {
  const GraphSpec graph = GraphSpec::FromJSON(SlidingLength("[64]"));
  EXPECT_EQ(graph.lengths.at(0).slides, std::vector<int64_t>{64});
  for (const char* wrong : {"[]", "[0]", "[32]", "[128]", "[64,64]"}) {
    EXPECT_NE(ErrorOf(SlidingLength(wrong)).find("a slide of whole vectors"), std::string::npos)
        << wrong;
  }
  for (const char* wrong : {"[-64]", "[9223372036854775807]", "[\"64\"]", "64", "{}"}) {
    EXPECT_NE(ErrorOf(SlidingLength(wrong)).find("slides"), std::string::npos) << wrong;
  }
}

// The message about the graph of written rows with the first `from` replaced.
std::string ErrorOfWriting(const std::string& from, const std::string& to) {
  std::string text = testing::WritingGraph();
  text.replace(text.find(from), from.size(), to);
  return ErrorOf(text);
}

TEST(Graph, WrittenRows) {
  const StateSpec state = GraphSpec::FromJSON(testing::WritingGraph()).states.at(0);
  EXPECT_EQ(state.starts, 1);
  EXPECT_EQ(state.row, 64);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"("inputs":[0,1],"outputs":[3,4])", R"("inputs":[0],"outputs":[3,4])"},
      {R"("inputs":[0,1],"outputs":[3,4])", R"("inputs":[0,1],"outputs":[3])"},
      {R"("inputs":[0,1],"outputs":[3,4])", R"("inputs":[1,1],"outputs":[3,4])"},  // no integers
      {R"("inputs":[0,1],"outputs":[3,4])", R"("inputs":[0,2],"outputs":[3,4])"},  // other rows
      {R"("inputs":[0,1],"outputs":[3,4])", R"("inputs":[4,1],"outputs":[3,4])"},  // too deep
      {R"("inputs":[0,1],"outputs":[3,4])", R"("inputs":[0,1],"outputs":[3,3])"},
      {R"("shape":[2,1],"dtype":"int64")", R"("shape":[2,1],"dtype":"uint64")"},
      {R"("shape":[2,1],"dtype":"int64")", R"("shape":[1,2],"dtype":"int64")"},
  };
  for (const auto& [from, to] : wrong) {
    EXPECT_NE(ErrorOfWriting(from, to).find("places and rows"), std::string::npos) << to;
  }
  EXPECT_NE(ErrorOfWriting(R"("starts":1)", R"("starts":0)").find("starts of rows"),
            std::string::npos);
  EXPECT_NE(ErrorOfWriting(R"("starts":1)", R"("starts":2)").find("starts"), std::string::npos);
  EXPECT_NE(ErrorOfWriting(R"("row":64)", R"("row":0)").find("row"), std::string::npos);
}

TEST(Graph, TruncatedTextIsRefused) {
  std::string json = SmallGraph();
  for (size_t size = 0; size < json.size(); ++size) {
    EXPECT_NE(ErrorOf(json.substr(0, size)), "") << size;
  }
}

TEST(Graph, RandomDamageNeverCrashes) {
  std::mt19937 random(0);
  const std::string json = SmallGraph();
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = json;
    for (int change = 1 + round % 3; change > 0; --change) {
      size_t at = random() % damaged.size();
      switch (random() % 3) {
        case 0:
          damaged[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          damaged.erase(at, 1 + random() % 8);
          break;
        default:
          damaged.insert(at, std::to_string(static_cast<int64_t>(random()) << (random() % 32)));
      }
      if (damaged.empty()) break;
    }
    ErrorOf(damaged);  // whatever it says
  }
}

TEST(GraphBytes, RoundTrip) {
  GraphBytes bytes{SmallGraph(), 42};
  GraphBytes back = GraphBytes::Decode(bytes.Encode());
  EXPECT_EQ(std::string(back.json), SmallGraph());
  EXPECT_EQ(back.weights_fingerprint, 42u);
}

TEST(GraphBytes, EveryChangedOrMissingByteIsNoticed) {
  ffi::Bytes encoded = GraphBytes{SmallGraph(), 42}.Encode();
  const std::string bytes(encoded.data(), encoded.size());
  const size_t fingerprint_of_weights = 16;  // checked against the weights, not here
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_THROW(GraphBytes::Decode(ffi::Bytes(bytes.substr(0, i))), ffi::Error) << i;
    if (i / 8 == fingerprint_of_weights / 8) continue;
    std::string damaged = bytes;
    damaged[i] ^= 0x10;
    EXPECT_THROW(GraphBytes::Decode(ffi::Bytes(damaged)), ffi::Error) << i;
  }
}

}  // namespace
}  // namespace tvm_stretch
