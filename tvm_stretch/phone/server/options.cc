#include "options.h"

#include <tvm/ffi/function.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace tvm_stretch::server {

const char* const kUsage =
    "tvm_stretch_rpc: makes this device one that TVM's RPC tracker lends\n"
    "\n"
    "  --key NAME             of this kind of devices: letters, digits, '.', '_' and '-'\n"
    "  --tracker HOST:PORT    who lends it; without one, clients connect with the key itself\n"
    "  --port N               to listen on; by default any that is free\n"
    "  --host ADDRESS         to listen on; by default 127.0.0.1: nobody from outside\n"
    "  --advertise ADDRESS    where clients find us, if the tracker sees another address\n"
    "  --secret-file FILE     a word that clients have to know; needs a tracker\n"
    "  --store FOLDER         uploads are kept here, for later sessions; by default they are not\n"
    "  --store-limit MB       of all uploads (2048)\n"
    "  --upload-limit MB      of each file that a session writes (1024)\n"
    "  --session-limit S      seconds after which a session is ended; by default none is\n"
    "  --library FILE         to load; by default libtvm_runtime.so and\n"
    "                         libtvm_stretch_runtime.so beside this program\n";

namespace {

constexpr size_t kLongestName = 100;

bool Complain(const std::string& field, const std::string& expected, const std::string& got) {
  std::fprintf(stderr, "expected %s for %s, got '%s'; --help lists the options\n", expected.c_str(),
               field.c_str(), got.c_str());
  return false;
}

// A name that needs no quoting in JSON, and has no space or colon.
bool IsName(const std::string& text) {
  constexpr const char* kGood = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !text.empty() && text.size() <= kLongestName &&
         text.find_first_not_of(kGood) == std::string::npos;
}

bool ReadNumber(const std::string& field, const std::string& text, double most, double* number) {
  char* end = nullptr;
  *number = std::strtod(text.c_str(), &end);
  const bool good = !text.empty() && *end == 0 && std::isfinite(*number);
  if (good && *number >= 0 && *number <= most) return true;
  return Complain(field, "a number up to " + std::to_string(static_cast<int64_t>(most)), text);
}

bool ReadMegabytes(const std::string& field, const std::string& text, int64_t* bytes) {
  double number = 0;
  if (!ReadNumber(field, text, 1e6, &number)) return false;
  *bytes = static_cast<int64_t>(number * (1 << 20));
  return *bytes > 0 || Complain(field, "more than 0", text);
}

bool ReadSecret(const std::string& path, std::string* secret) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();  // reading a folder is not an error
  *secret = content.str();
  while (!secret->empty() && std::strchr("\r\n \t", secret->back()) != nullptr) secret->pop_back();
  return secret->size() >= 8 ||
         Complain("--secret-file", "a file with at least 8 characters", path);
}

bool Take(Options* options, const std::string& field, const std::string& text) {
  double number = 0;
  if (field == "--key") {
    options->key = text;
    return IsName(text) || Complain(field, "a name", text);
  }
  if (field == "--tracker") {
    options->tracker = ParseAddress(text);
    return options->tracker || Complain(field, "HOST:PORT", text);
  }
  if (field == "--port") {
    const bool good = ReadNumber(field, text, 65535, &number);
    options->listen.port = static_cast<int>(number);
    return good;
  }
  if (field == "--host") return options->listen.host = text, true;
  if (field == "--advertise") {
    options->advertised = text;
    return IsName(text) || Complain(field, "an address", text);
  }
  if (field == "--secret-file") return ReadSecret(text, &options->secret);
  if (field == "--store") return options->store = text, true;
  if (field == "--store-limit") return ReadMegabytes(field, text, &options->store_limit);
  if (field == "--upload-limit") return ReadMegabytes(field, text, &options->upload_limit);
  if (field == "--session-limit") return ReadNumber(field, text, 1e7, &options->session_limit);
  if (field == "--library") return options->libraries.push_back(text), true;
  return Complain("an option", "one of ours", field);
}

std::string FolderOfProgram() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const std::string text(path, size > 0 ? static_cast<size_t>(size) : 0);
  return text.substr(0, text.rfind('/'));
}

}  // namespace

std::optional<Options> ParseOptions(int count, char** words) {
  Options options;
  for (int i = 1; i < count; i += 2) {
    if (i + 1 == count) return Complain(words[i], "a value", ""), std::nullopt;
    if (!Take(&options, words[i], words[i + 1])) return std::nullopt;
  }
  if (options.key.empty()) return Complain("--key", "a name", ""), std::nullopt;
  if (!options.secret.empty() && !options.tracker) {
    return Complain("--secret-file", "a tracker, which makes keys that are used once", "none"),
           std::nullopt;
  }
  // Where TVM's runtime is built from source, this program is linked against all of it.
  if (options.libraries.empty() && !tvm::ffi::Function::GetGlobal("rpc.ServerLoop")) {
    const std::string folder = FolderOfProgram();
    options.libraries = {folder + "/libtvm_runtime.so", folder + "/libtvm_stretch_runtime.so"};
  }
  return options;
}

}  // namespace tvm_stretch::server
