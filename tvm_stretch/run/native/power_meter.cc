// A phone's gauge, read while a network runs there, because a session answers nothing meanwhile.
//
//   tvm_stretch.start_meter(folder)  reads the battery below "/sys/class/power_supply" from now on
//   tvm_stretch.meter_steps()        how often its value has changed
//   tvm_stretch.stop_meter()         "bms\n123456789 1.52\n...": the battery's name, and
//   nanoseconds
//                                    and watts of each change
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "packed.h"
#include "processor.h"

namespace tvm_stretch {
namespace {

namespace fs = std::filesystem;

constexpr auto kInterval = std::chrono::milliseconds(1);

template <typename Value>
std::optional<Value> Read(const fs::path& file) {
  Value value;
  std::ifstream stream(file);
  if (stream >> value) return value;
  return std::nullopt;
}

// Drivers give millionths, and differ in the sign of a current.
std::optional<double> WattsOf(const fs::path& supply) {
  if (const auto power = Read<double>(supply / "power_now")) return std::abs(*power) / 1e6;
  const auto current = Read<double>(supply / "current_now");
  const auto voltage = Read<double>(supply / "voltage_now");
  if (!current || !voltage) return std::nullopt;
  return std::abs(*current * *voltage) / 1e12;
}

fs::path FindBattery(const std::string& folder) {
  std::vector<fs::path> supplies;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) supplies.push_back(entry.path());
  std::sort(supplies.begin(), supplies.end());
  std::string why = "no battery";
  for (const fs::path& supply : supplies) {
    if (Read<std::string>(supply / "type").value_or("") != "Battery") continue;
    const std::string status = Read<std::string>(supply / "status").value_or("silent");
    if (status == "Discharging" && WattsOf(supply)) return supply;
    why = "the battery " + supply.filename().string() + ", which is " + status;
  }
  TVM_FFI_THROW(ValueError) << "expected a battery that discharges and can be read for energy, got "
                            << why << "; unplug the device";
  TVM_FFI_UNREACHABLE();
}

// A thread that keeps the times at which the battery's power changes.
class Recorder {
 public:
  explicit Recorder(fs::path supply) : supply_(std::move(supply)), thread_([this] { Work(); }) {}

  ~Recorder() { End(); }

  size_t steps() {
    std::lock_guard<std::mutex> lock(mutex_);
    return steps_.size();
  }

  std::string Text() {
    End();
    std::string text = supply_.filename().string();
    for (const auto& [time, watts] : steps_) {
      text += "\n" + std::to_string(time) + " " + std::to_string(watts);
    }
    return text;
  }

 private:
  void End() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ends_) {
      (void)Attempt([this] {  // without memory, this step is missing
        const std::optional<double> watts = WattsOf(supply_);
        if (watts && (steps_.empty() || steps_.back().second != *watts)) {
          steps_.emplace_back(Now(), *watts);
        }
      });
      wake_.wait_for(lock, kInterval, [this] { return ends_; });
    }
  }

  const fs::path supply_;
  std::mutex mutex_;  // guards the two below
  bool ends_ = false;
  std::vector<std::pair<int64_t, double>> steps_;
  std::condition_variable wake_;
  std::thread thread_;
};

std::mutex recording;  // guards `recorder`
std::unique_ptr<Recorder> recorder;

template <typename Result>
Result WithRecorder(Result (*use)(Recorder*)) {
  std::lock_guard<std::mutex> lock(recording);
  if (recorder == nullptr) {
    TVM_FFI_THROW(ValueError) << "expected start_meter before, got no such call; measure again";
  }
  return use(recorder.get());
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("tvm_stretch.start_meter", Packed(+[](const ffi::String& folder) {
                    fs::path supply = FindBattery(folder);
                    std::lock_guard<std::mutex> lock(recording);
                    recorder = std::make_unique<Recorder>(std::move(supply));
                  }))
      .def_packed("tvm_stretch.meter_steps", Packed(+[] {
                    return WithRecorder<int64_t>(
                        [](Recorder* one) { return static_cast<int64_t>(one->steps()); });
                  }))
      .def_packed("tvm_stretch.stop_meter", Packed(+[] {
                    const auto text =
                        WithRecorder<std::string>([](Recorder* one) { return one->Text(); });
                    std::lock_guard<std::mutex> lock(recording);
                    recorder.reset();
                    return ffi::String(text);
                  }));
}

}  // namespace tvm_stretch
