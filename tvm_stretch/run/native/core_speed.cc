// Measures what one core of this CPU can do at best: `tvm_stretch.core_speed`.
//
//   core_speed(bytes) -> {"gflops": 140.2, "gbytes": 52.0}
//
// Multiply-adds of float32 vectors in registers, two operations each; and reads of an array of so
// many bytes, again and again. Reports compare kernels with it (run/advice.py).
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "memory.h"
#include "packed.h"
#include "processor.h"

namespace tvm_stretch {
namespace {

namespace ffi = tvm::ffi;
namespace json = ffi::json;

constexpr int kSums = 12;  // more than latency times multipliers; fits 16 registers
constexpr int64_t kTurns = 100'000;
constexpr int kLooks = 5;  // the best counts: others may be at work
constexpr int64_t kLeast = int64_t{1} << 16, kMost = int64_t{1} << 28;  // bytes of the array

// `kSums` independent multiply-adds in assembly, because compilers spill or fold such sums.
#define TVM_STRETCH_TWELVE(one)                                                                 \
  one("4") one("5") one("6") one("7") one("8") one("9") one("10") one("11") one("12") one("13") \
      one("14") one("15")

#if defined(__x86_64__)
#define TVM_STRETCH_ZERO(n) "pxor %%xmm" n ", %%xmm" n "\n"
#define TVM_STRETCH_CLOBBERED                                                                \
  "xmm0", "xmm1", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15"
#define TVM_STRETCH_512(n) "vfmadd231ps %%zmm0, %%zmm1, %%zmm" n "\n"
#define TVM_STRETCH_256(n) "vfmadd231ps %%ymm0, %%ymm1, %%ymm" n "\n"

// Operations of one turn; 0 where this CPU has no fused multiply-add.
int Operations() {
  if (__builtin_cpu_supports("avx512f")) return 2 * 16 * kSums;
  return __builtin_cpu_supports("fma") ? 2 * 8 * kSums : 0;
}

void Turn(int64_t count) {
  asm volatile(TVM_STRETCH_ZERO("0") TVM_STRETCH_ZERO("1") TVM_STRETCH_TWELVE(TVM_STRETCH_ZERO)::
                   : TVM_STRETCH_CLOBBERED);
  const bool is_wide = __builtin_cpu_supports("avx512f");
  for (; is_wide && count > 0; --count) {
    asm volatile(TVM_STRETCH_TWELVE(TVM_STRETCH_512)::: TVM_STRETCH_CLOBBERED);
  }
  for (; count > 0; --count) {
    asm volatile(TVM_STRETCH_TWELVE(TVM_STRETCH_256)::: TVM_STRETCH_CLOBBERED);
  }
  asm volatile("vzeroupper" ::: TVM_STRETCH_CLOBBERED);
}
#elif defined(__aarch64__)
#define TVM_STRETCH_ZERO(n) "movi v" n ".4s, #0\n"
#define TVM_STRETCH_CLOBBERED \
  "v0", "v1", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15"
#define TVM_STRETCH_128(n) "fmla v" n ".4s, v0.4s, v1.4s\n"

int Operations() { return 2 * 4 * kSums; }

void Turn(int64_t count) {
  asm volatile(TVM_STRETCH_ZERO("0") TVM_STRETCH_ZERO("1") TVM_STRETCH_TWELVE(TVM_STRETCH_ZERO)::
                   : TVM_STRETCH_CLOBBERED);
  for (; count > 0; --count) {
    asm volatile(TVM_STRETCH_TWELVE(TVM_STRETCH_128)::: TVM_STRETCH_CLOBBERED);
  }
}
#else
int Operations() { return 0; }
void Turn(int64_t) {}
#endif

// Nanoseconds of the quickest of a few calls.
template <typename Work>
int64_t Best(const Work& work) {
  int64_t best = INT64_MAX;
  for (int look = 0; look < kLooks; ++look) {
    const int64_t begin = Now();
    work();
    best = std::min(best, Now() - begin);
  }
  return std::max<int64_t>(best, 1);
}

double Gflops() {
  const int each = Operations();
  if (each == 0) return 0;
  return static_cast<double>(each * kTurns) / static_cast<double>(Best([] { Turn(kTurns); }));
}

double Gbytes(int64_t bytes) {
  std::vector<uint64_t> array(static_cast<size_t>(std::clamp(bytes, kLeast, kMost)) / 8, 1);
  const auto size = static_cast<int64_t>(array.size() * 8);
  const int64_t times = std::max<int64_t>(1, (int64_t{1} << 24) / size);
  uint64_t found = 0;
  const int64_t took = Best([&] {
    for (int64_t time = 0; time < times; ++time) {
      uint64_t sums[8] = {};
      for (size_t i = 0; i + 8 <= array.size(); i += 8) {
        for (size_t j = 0; j < 8; ++j) sums[j] ^= array[i + j];
      }
      for (const uint64_t sum : sums) found += sum;
      asm volatile("" : "+r"(found) : : "memory");  // or each time is the first
    }
  });
  return static_cast<double>(size * times) / static_cast<double>(took);
}

ffi::String CoreSpeed(int64_t bytes) {
  json::Object object;
  object.Set(ffi::String("gflops"), Gflops());
  object.Set(ffi::String("gbytes"), Gbytes(bytes));
  return WholeJSON(object);
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def_packed("tvm_stretch.core_speed", Packed(CoreSpeed));
}

}  // namespace
}  // namespace tvm_stretch
