// The command line of tvm_stretch_rpc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "wire.h"

namespace tvm_stretch::server {

struct Options {
  std::string key;
  Address listen{"127.0.0.1", 0};
  std::optional<Address> tracker;
  std::string advertised;
  std::string secret;
  std::string store;
  int64_t store_limit = int64_t{2} << 30;
  int64_t upload_limit = int64_t{1} << 30;
  double session_limit = 0;  // seconds; 0: none
  std::vector<std::string> libraries;
};

extern const char* const kUsage;

// Empty if the words are not valid options, with the reason on standard error.
std::optional<Options> ParseOptions(int count, char** words);

}  // namespace tvm_stretch::server
