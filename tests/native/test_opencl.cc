// The parts of the OpenCL runtime that need no device: cache, code, cores. Devices: tests/device.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tvm/ffi/extra/module.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "targets/opencl/native/code.h"
#include "targets/opencl/native/device.h"
#include "targets/opencl/native/driver.h"
#include "targets/opencl/native/program_cache.h"

namespace tvm_stretch::opencl {
namespace {

namespace fs = std::filesystem;

class ProgramCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("tvm_stretch_cache_" + std::to_string(getpid()));
    setenv("TVM_STRETCH_CACHE_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TVM_STRETCH_CACHE_DIR");
    fs::remove_all(folder_);
  }
  fs::path OnlyEntry() const { return fs::directory_iterator(folder_ / "opencl")->path(); }

  fs::path folder_;
};

TEST_F(ProgramCacheTest, FindsWhatWasStored) {
  ProgramCache cache;
  EXPECT_EQ(cache.Find("key"), "");
  cache.Store("key", std::string("binary\0with zero", 16));
  EXPECT_EQ(ProgramCache().Find("key"), std::string("binary\0with zero", 16));
  EXPECT_EQ(cache.Find("other"), "");
  cache.Store("key", "newer");
  EXPECT_EQ(cache.Find("key"), "newer");
}

TEST_F(ProgramCacheTest, NeverTakesADamagedEntry) {
  ProgramCache cache;
  const std::string binary(300, 'b');
  cache.Store("key", binary);
  std::ifstream in(OnlyEntry(), std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    std::ofstream(OnlyEntry(), std::ios::binary) << bad;
    EXPECT_EQ(cache.Find("key"), "") << "byte " << i;
    std::ofstream(OnlyEntry(), std::ios::binary) << good.substr(0, i);
    EXPECT_EQ(cache.Find("key"), "") << "length " << i;
  }
  cache.Store("key", binary);
  EXPECT_EQ(cache.Find("key"), binary);
}

TEST_F(ProgramCacheTest, NeverTakesAForeignEntry) {
  ProgramCache cache;
  cache.Store("key", "of key");
  const fs::path entry = OnlyEntry();
  const fs::path kept = folder_ / "kept";
  fs::rename(entry, kept);
  cache.Store("other", "of other");
  fs::remove(OnlyEntry());
  fs::rename(kept, entry);
  EXPECT_EQ(cache.Find("key"), "of key");
  EXPECT_EQ(cache.Find("other"), "");
}

TEST_F(ProgramCacheTest, WritersAtTheSameTimeDoNotHarmEachOther) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      ProgramCache cache;
      for (int i = 0; i < 20; ++i) {
        cache.Store("key", std::string(10'000, static_cast<char>('a' + t)));
        std::string found = cache.Find("key");
        ASSERT_EQ(found.size(), 10'000u);
        EXPECT_EQ(found.find_first_not_of(found[0]), std::string::npos);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ProgramCacheTest, WithoutAFolderThereIsNoCache) {
  setenv("TVM_STRETCH_CACHE_DIR", "", 1);
  ProgramCache none;
  none.Store("key", "binary");
  EXPECT_EQ(none.Find("key"), "");
  setenv("TVM_STRETCH_CACHE_DIR", "/proc/no/such/folder", 1);
  ProgramCache blocked;
  blocked.Store("key", "binary");
  EXPECT_EQ(blocked.Find("key"), "");
}

TEST_F(ProgramCacheTest, TakesNothingWhereOthersMayWrite) {
  ProgramCache().Store("key", "binary");
  for (const fs::path& place : {folder_, folder_ / "opencl"}) {
    fs::permissions(place, fs::perms::all);
    EXPECT_FALSE(ProgramCache().is_on()) << place;
    EXPECT_EQ(ProgramCache().Find("key"), "");
    fs::permissions(place, fs::perms::owner_all);
  }
  EXPECT_EQ(ProgramCache().Find("key"), "binary");
  fs::permissions(OnlyEntry(), fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(ProgramCache().Find("key"), "");
}

TEST_F(ProgramCacheTest, NeitherFollowsLinksNorWaitsForPipes) {
  ProgramCache cache;
  cache.Store("key", "binary");
  const fs::path entry = OnlyEntry();
  fs::rename(entry, folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", entry);
  EXPECT_EQ(cache.Find("key"), "");
  fs::remove(entry);
  ASSERT_EQ(mkfifo(entry.c_str(), 0600), 0);
  ASSERT_EQ(mkfifo((entry.string() + ".tmpAAAAAA").c_str(), 0600), 0);
  EXPECT_EQ(ProgramCache().Find("key"), "");
  cache.Store("key", "newer");
  EXPECT_EQ(cache.Find("key"), "newer");
}

TEST_F(ProgramCacheTest, MakesFoldersForThisUserAlone) {
  const mode_t before = umask(0);
  ProgramCache().Store("key", "binary");
  umask(before);
  EXPECT_EQ(ProgramCache().Find("key"), "binary");
}

constexpr const char* kCode = R"({"options": "-w", "sources": ["A", "B"], "kernels": {"f": [
  {"entry": "f0", "source": 0, "groups": [4, 2, 1], "group_size": [8, 1, 1],
   "args": [["buffer", 0], ["offset", 0], ["int32", -3], ["local", 64], ["scratch", 128]]},
  {"entry": "f1", "source": 1, "groups": [1, 1, 1], "group_size": [1, 1, 1], "args": []}],
 "g": [{"entry": "g0", "source": 0, "groups": [1, 1, 1], "group_size": [1, 1, 1], "args": []}]}})";

TEST(OpenCLCode, ReadsSourcesAndLaunches) {
  CodeSpec code = CodeSpec::FromJSON(kCode);
  EXPECT_EQ(code.options, "-w");
  EXPECT_EQ(code.sources.size(), 2u);
  const LaunchSpec& launch = code.kernels.at("f")[0];
  EXPECT_EQ(code.sources[launch.source], "A");
  EXPECT_EQ(code.kernels.at("g")[0].source, launch.source);
  EXPECT_EQ(launch.global_size, (std::array<size_t, 3>{32, 2, 1}));
  EXPECT_EQ(launch.args.size(), 5u);
  EXPECT_EQ(launch.args[2].value, -3);
}

// Whatever is cut out: either the code is read, or refused; nothing else.
TEST(OpenCLCode, SurvivesAnyDamage) {
  const std::string text = kCode;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const std::string& put : {std::string(), std::string("9"), std::string("\"")}) {
      std::string damaged = text;
      damaged.replace(i, 1, put);
      try {
        CodeSpec::FromJSON(damaged);
      } catch (const ffi::Error& error) {
        EXPECT_EQ(error.kind(), "ValueError") << damaged;
      }
    }
  }
}

TEST(HostCores, DriverGetsTheUpperHalf) {
  EXPECT_EQ(CoresForDriver({3}), (Cores{3}));
  EXPECT_EQ(CoresForDriver({0, 1}), (Cores{1}));
  EXPECT_EQ(CoresForDriver({0, 1, 4}), (Cores{1, 4}));
  EXPECT_EQ(CoresForDriver({0, 1, 2, 3, 4, 5}), (Cores{3, 4, 5}));
}

TEST(HostCores, TheUserDecides) {
  setenv("TVM_STRETCH_OPENCL_CPUS", "0,2-9", 1);
  EXPECT_EQ(CoresForDriver({0, 1, 2, 3}), (Cores{0, 2, 3}));
  setenv("TVM_STRETCH_OPENCL_CPUS", "7", 1);
  EXPECT_THROW(CoresForDriver({0, 1}), ffi::Error);
  setenv("TVM_STRETCH_OPENCL_CPUS", "one", 1);
  EXPECT_THROW(CoresForDriver({0, 1}), ffi::Error);
  unsetenv("TVM_STRETCH_OPENCL_CPUS");
}

TEST(Driver, CodesHaveNames) {
  EXPECT_EQ(NameOf(CL_OUT_OF_RESOURCES), "CL_OUT_OF_RESOURCES");
  EXPECT_EQ(NameOf(-12345), "error -12345");
}

}  // namespace
}  // namespace tvm_stretch::opencl
