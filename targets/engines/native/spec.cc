#include "spec.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace tvm_stretch::engine {
namespace {

constexpr const char* kFirstLine = "tvm_stretch.engine 1";
constexpr size_t kMostTensors = 64;  // DSP_MAX_ARGS

[[noreturn]] void Refuse(const std::string& what) {
  throw std::runtime_error("expected the code of an engine, got " + what +
                           "; compile the model again");
}

// The rest of a line, without the blank before it.
std::string Rest(std::istringstream* words) {
  std::string text;
  std::getline(*words >> std::ws, text);
  return text;
}

void ReadLine(const std::string& line, EngineSpec* spec, std::vector<size_t>* sizes) {
  std::istringstream words(line);
  std::string word, key;
  words >> word;
  if (word == "provider") {
    spec->provider = Rest(&words);
  } else if (word == "package") {
    spec->package = Rest(&words);
  } else if (word == "library") {
    spec->library = Rest(&words);
  } else if (word == "hardware") {
    spec->hardware = Rest(&words);
  } else if (word == "compiled") {
    spec->compiled = Rest(&words);
  } else if (word == "threads") {
    words >> spec->threads;
  } else if (word == "file" || word == "option") {
    words >> key;
    (word == "file" ? spec->files : spec->options).emplace_back(key, Rest(&words));
  } else if (word == "memory") {
    words >> spec->memory.name >> spec->memory.option >> spec->memory.library;
    if (words.fail()) Refuse("'" + line + "'");
  } else if (word == "model") {
    ModelSpec model;
    size_t bytes = 0;
    words >> bytes >> model.inputs >> model.outputs;
    // Each of them first: a negative number is a large one here, and a sum may wrap.
    const bool fits = model.inputs <= kMostTensors && model.outputs <= kMostTensors &&
                      model.inputs + model.outputs <= kMostTensors;
    if (words.fail() || !fits) Refuse("'" + line + "'");
    spec->models.push_back(model);
    sizes->push_back(bytes);
  } else {
    Refuse("'" + line.substr(0, 80) + "'");
  }
}

}  // namespace

EngineSpec EngineSpec::FromFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (!std::getline(file, line) || line != kFirstLine) Refuse("another format");
  EngineSpec spec;
  std::vector<size_t> sizes;
  while (std::getline(file, line) && line != "end") ReadLine(line, &spec, &sizes);
  if (!file) Refuse("a part of it");
  const std::string rest{std::istreambuf_iterator<char>(file), {}};
  size_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > rest.size() - start) Refuse("a part of it");
    spec.models[i].bytes = rest.substr(start, sizes[i]);
    start += sizes[i];
  }
  if (start != rest.size()) Refuse("more than it says");
  return spec;
}

}  // namespace tvm_stretch::engine
