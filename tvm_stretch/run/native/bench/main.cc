// tvm_stretch_bench: how fast an artifact runs here, without Python.
//
//   tvm_stretch_bench resnet18.so --runs 100 --operators --trace trace.json
#include <tvm/ffi/extra/json.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <new>
#include <random>
#include <sstream>

#include "tvm_stretch/phone/app/tvm_stretch.hpp"

namespace tvm_stretch::bench {
namespace {

namespace ffi = tvm::ffi;

constexpr const char* kUsage =
    "usage: tvm_stretch_bench MODEL.so [options]\n"
    "  --runs N        measured runs (100)\n"
    "  --warmup N      runs before them (5)\n"
    "  --plan NAME     a plan of the model, by name or number; default: the model's choice\n"
    "  --cores LIST    cores for the CPU's kernels, as 0,4-7\n"
    "  --operators     print the time of each kernel of a traced run\n"
    "  --trace FILE    write a traced run for https://ui.perfetto.dev\n"
    "Inputs are random: floats between -1 and 1, integers 0 or 1.\n";

struct Options {
  std::string model, plan, cores, trace;
  long runs = 100, warmup = 5;
  bool operators = false;
};

// Throws std::invalid_argument with the reason.
Options Parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto value = [&] {
      if (i + 1 < count) return std::string(words[++i]);
      throw std::invalid_argument("expected a value after " + word + ", got the end");
    };
    const auto number = [&](long least) {
      const std::string text = value();
      char* end = nullptr;
      const long found = std::strtol(text.c_str(), &end, 10);
      if (!text.empty() && *end == 0 && found >= least) return found;
      throw std::invalid_argument("expected a number of at least " + std::to_string(least) +
                                  " after " + word + ", got '" + text + "'");
    };
    if (word == "--runs") {
      options.runs = number(1);
    } else if (word == "--warmup") {
      options.warmup = number(0);
    } else if (word == "--plan") {
      options.plan = value();
    } else if (word == "--cores") {
      options.cores = value();
    } else if (word == "--trace") {
      options.trace = value();
    } else if (word == "--operators") {
      options.operators = true;
    } else if (word[0] == '-' || !options.model.empty()) {
      throw std::invalid_argument("expected one model and known options, got '" + word + "'");
    } else {
      options.model = word;
    }
  }
  if (options.model.empty()) throw std::invalid_argument("expected a model, got none");
  return options;
}

double Milliseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

// A line of /proc/self/status in MiB; 0 where there is none.
double MemoryOf(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::atof(line.c_str() + name.size() + 1) / 1024;
  }
  return 0;
}

// Memory for tensors, aligned so that runs use it in place.
class Tensors {
 public:
  explicit Tensors(const std::vector<Tensor>& ports) {
    for (const Tensor& port : ports) {
      void* memory = nullptr;
      if (posix_memalign(&memory, 64, port.bytes + 1) != 0) throw std::bad_alloc();
      memory_.emplace_back(memory, std::free);
      std::memset(memory, 0, port.bytes);
      buffers_.push_back({memory_.back().get(), port.bytes});
    }
  }

  // Half floats and other rare types stay 0.
  void Fill(const std::vector<Tensor>& ports) {
    std::mt19937 dice;
    std::uniform_real_distribution<float> real(-1, 1);
    for (size_t i = 0; i < ports.size(); ++i) {
      char* data = static_cast<char*>(buffers_[i].data);
      if (ports[i].type == "float32") {
        std::generate_n(reinterpret_cast<float*>(data), ports[i].bytes / 4,
                        [&] { return real(dice); });
      } else if (ports[i].type.find("int8") != std::string::npos) {
        std::generate_n(data, ports[i].bytes, [&] { return static_cast<char>(dice() % 2); });
      }
    }
  }

  const Buffers& buffers() const { return buffers_; }

 private:
  std::vector<std::unique_ptr<void, decltype(&std::free)>> memory_;
  Buffers buffers_;
};

void UsePlan(Model* model, const std::string& wanted) {
  const std::vector<std::string> names = model->plans();
  for (size_t i = 0; i < names.size(); ++i) {
    if (wanted == names[i] || wanted == std::to_string(i)) return model->use_plan(i);
  }
  std::string known;
  for (size_t i = 0; i < names.size(); ++i) {
    known += (i == 0 ? "" : ", ") + std::to_string(i) + " " + names[i];
  }
  throw std::invalid_argument("expected one of the model's plans (" + known +
                              ") after --plan, got '" + wanted + "'");
}

struct Row {
  double microseconds = 0;
  std::string processor, name;
};

// The kernels of a trace, the slowest first.
std::vector<Row> KernelsOf(const std::string& trace) {
  namespace json = ffi::json;
  std::map<int64_t, std::string> processors;
  std::vector<Row> rows;
  const auto root = json::Parse(ffi::String(trace)).cast<json::Object>();
  for (const ffi::Any& item : root.at(ffi::String("traceEvents")).cast<json::Array>()) {
    const auto event = item.cast<json::Object>();
    const auto text = [&](const char* key) {
      return std::string(event.at(ffi::String(key)).cast<ffi::String>());
    };
    const auto track = event.at(ffi::String("tid")).cast<int64_t>();
    if (text("ph") == "M") {
      const auto details = event.at(ffi::String("args")).cast<json::Object>();
      processors[track] = details.at(ffi::String("name")).cast<ffi::String>();
    } else if (text("cat") == "kernel") {
      rows.push_back(
          {event.at(ffi::String("dur")).cast<double>(), processors[track], text("name")});
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.microseconds > b.microseconds; });
  return rows;
}

void PrintKernels(const std::string& trace) {
  const std::vector<Row> rows = KernelsOf(trace);
  double total = 0;
  for (const Row& row : rows) total += row.microseconds;
  std::printf("\n%10s  %6s  %-9s  kernel\n", "us", "share", "processor");
  for (const Row& row : rows) {
    std::printf("%10.1f  %5.1f%%  %-9s  %s\n", row.microseconds, 100 * row.microseconds / total,
                row.processor.c_str(), row.name.c_str());
  }
  std::printf("%10.1f  100.0%%  %-9s  total\n", total, "");
}

int Run(const Options& options) {
  const double start = Milliseconds();
  Model model(options.model);
  const double loaded = Milliseconds() - start;
  if (!options.cores.empty()) model.set_cores(options.cores);
  if (!options.plan.empty()) UsePlan(&model, options.plan);
  Tensors inputs(model.inputs()), outputs(model.outputs());
  inputs.Fill(model.inputs());
  const auto run = [&] {
    const double begin = Milliseconds();
    model.run(inputs.buffers(), outputs.buffers());
    return Milliseconds() - begin;
  };
  const double first = run();
  for (long i = 0; i < options.warmup; ++i) run();
  std::vector<double> times;
  std::generate_n(std::back_inserter(times), options.runs, run);
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * (times.size() - 1))];
  };
  std::printf("load    %10.3f ms\nfirst   %10.3f ms\n", loaded, first);
  std::printf("median  %10.3f ms\np90     %10.3f ms\np99     %10.3f ms\nfastest %10.3f ms\n",
              at(0.5), at(0.9), at(0.99), times.front());
  std::printf("memory  %10.1f MiB, %.1f at most\n", MemoryOf("VmRSS"), MemoryOf("VmHWM"));
  std::printf("state   %s\n", model.statistics().c_str());
  if (!options.operators && options.trace.empty()) return 0;
  const std::string trace = model.trace(inputs.buffers(), outputs.buffers());
  if (options.operators) PrintKernels(trace);
  if (options.trace.empty()) return 0;
  std::ofstream file(options.trace);
  if (file << trace && file.flush()) return 0;
  throw std::invalid_argument("expected a file that can be written for --trace, got '" +
                              options.trace + "'");
}

int Main(int count, char** words) {
  if (count == 2 && std::string(words[1]) == "--help") return std::fputs(kUsage, stdout), 0;
  try {
    return Run(Parse(count, words));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s; see --help\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace tvm_stretch::bench

int main(int count, char** words) { return tvm_stretch::bench::Main(count, words); }
