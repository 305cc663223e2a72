// A network as data for the kernels of a library: the input is the graph; header, weights and seal
// are put around it, because a fuzzer does not guess a seal. An input that begins with the magic
// word is the whole file. What is taken runs, with kernels that touch all of their tensors.
#include <sys/mman.h>
#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "../../native/graphs.h"
#include "../../native/kernels.h"
#include "refusals.h"
#include "seal.h"

namespace {

namespace ffi = tvm::ffi;
using namespace tvm_stretch;

constexpr char kMagic[] = "TVMSTRD1";
constexpr uint64_t kWeights = 128;  // bytes, as in SmallGraph

std::string Padded(std::string text, size_t unit) {
  text.resize((text.size() + unit - 1) / unit * unit);
  return text;
}

std::string Framed(const std::string& graph) {
  const uint64_t sizes[] = {graph.size(), kWeights};
  std::string file(kMagic, 8);
  file.append(reinterpret_cast<const char*>(sizes), sizeof(sizes));
  file.resize(kAlignment);
  return Padded(file + graph, kAlignment) + std::string(kWeights, '\1');
}

// A file of memory that ends with a seal which fits.
class File {
 public:
  explicit File(const std::string& content) : fd_(memfd_create("fuzz", 0)) {
    Write(content);
    Seal seal{{}, static_cast<int64_t>(content.size()), 0, 0, 0};
    std::memcpy(seal.magic, "TVMSTRS2", sizeof(seal.magic));
    seal.fingerprint = seal.Measure(path());
    Write(std::string(reinterpret_cast<const char*>(&seal), sizeof(seal)));
  }
  ~File() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  void Write(const std::string& text) {
    if (write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }
  int fd_;
};

const ffi::Module& Library() {
  static const ffi::Module& library = *new ffi::Module(
      testing::Create(testing::SmallGraph(), ffi::Module(ffi::make_object<testing::Kernels>())));
  return library;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string input(reinterpret_cast<const char*>(data), bytes);
  const bool is_whole = input.compare(0, 8, kMagic) == 0;
  const File file(is_whole ? input : Framed(input));
  static const ffi::Function with_data = ffi::Function::GetGlobalRequired("tvm_stretch.with_data");
  ffi::Optional<ffi::Module> network;
  const bool is_taken = fuzz::IsTaken([&] {
    network = with_data(Library(), ffi::String(file.path())).cast<ffi::Module>();
    testing::Call(*network, "load");
  });
  if (is_taken) {
    fuzz::IsTaken([&] { testing::Call(*network, "invoke", testing::Filled({16}, 1.0f)); });
  }
  return 0;
}
