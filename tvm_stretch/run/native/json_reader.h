// Values of a JSON text with their paths, which messages name.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/json.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tvm_stretch {

namespace ffi = tvm::ffi;

// The document that is read, and the advice of its errors.
struct Document {
  const char* what;
  const char* remedy;

  [[noreturn]] void Refuse(const std::string& expected, const std::string& where) const {
    TVM_FFI_THROW(ValueError) << "expected " << expected << " for "
                              << (where.empty() ? "the text" : where) << " of " << what
                              << ", got something else; " << remedy;
    TVM_FFI_UNREACHABLE();
  }
};

// A JSON value with its path, for messages.
class Reader {
 public:
  Reader(const Document& document, ffi::Any value, std::string where = "")
      : document_(&document), value_(std::move(value)), where_(std::move(where)) {}

  // Every access to invalid JSON is refused.
  static Reader Parse(const Document& document, const ffi::String& text) {
    ffi::String error;
    return Reader(document, ffi::json::Parse(text, &error));
  }

  Reader operator[](const char* key) const {
    const auto object = As<ffi::json::Object>("an object");
    auto found = object.find(ffi::String(key));
    std::string where = where_.empty() ? key : where_ + "." + key;
    if (found == object.end()) document_->Refuse("a value", where);
    return Reader(*document_, (*found).second, where);
  }

  bool Has(const char* key) const {
    auto object = value_.try_cast<ffi::json::Object>();
    return object && object->find(ffi::String(key)) != object->end();
  }

  int64_t Int(int64_t low, int64_t high) const {
    auto value = value_.try_cast<int64_t>();
    if (!value || *value < low || *value > high) {
      Refuse("an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
    }
    return *value;
  }

  // A finite number; JSON has whole ones as integers.
  double Number(double low, double high) const {
    auto value = value_.try_cast<double>();
    if (!value || !(*value >= low && *value <= high)) Refuse("a number in range");
    return *value;
  }

  // A number above 0 and up to 1.
  double Share() const {
    auto value = value_.try_cast<double>();
    if (!value || !(*value > 0 && *value <= 1)) Refuse("a share");
    return *value;
  }

  // The members of an object, in the order of their names.
  std::vector<std::pair<std::string, Reader>> Members() const {
    std::map<std::string, ffi::Any> sorted;
    for (const auto& [key, value] : As<ffi::json::Object>("an object")) {
      auto name = key.try_cast<ffi::String>();
      if (!name) Refuse("names");
      sorted.emplace(*name, value);
    }
    std::vector<std::pair<std::string, Reader>> members;
    for (auto& [name, value] : sorted) {
      members.emplace_back(name, Reader(*document_, value, where_ + "." + name));
    }
    return members;
  }

  std::string Str() const { return As<ffi::String>("a string"); }

  bool Bool() const { return As<bool>("true or false"); }

  std::vector<Reader> List() const {
    const auto array = As<ffi::json::Array>("a list");
    std::vector<Reader> items;
    items.reserve(array.size());
    for (const ffi::Any& item : array) {
      items.emplace_back(*document_, item, where_ + "[" + std::to_string(items.size()) + "]");
    }
    return items;
  }

  std::vector<std::string> Strings() const {
    std::vector<std::string> values;
    for (const Reader& item : List()) values.push_back(item.Str());
    return values;
  }

  std::vector<int64_t> Ints(int64_t low, int64_t high) const {
    std::vector<int64_t> values;
    for (const Reader& item : List()) values.push_back(item.Int(low, high));
    return values;
  }

  const std::string& where() const { return where_; }

  [[noreturn]] void Refuse(const std::string& expected) const {
    document_->Refuse(expected, where_);
  }

 private:
  template <typename T>
  T As(const char* expected) const {
    auto value = value_.try_cast<T>();
    if (!value) Refuse(expected);
    return *value;
  }

  const Document* document_;
  ffi::Any value_;
  std::string where_;
};

}  // namespace tvm_stretch
