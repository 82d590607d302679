// What the process may use, read from made-up trees.
#include "engine/base/memory_bounds.h"

#include <filesystem>
#include <limits>

#include "gtest/gtest.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class MemoryBoundsTest : public testing::Test {
 protected:
  // A machine of 16 GiB, of which 10 are available, without limits.
  MemoryBoundsTest() {
    Put("proc/meminfo",
        "MemTotal:       16777216 kB\nMemFree:          100 kB\nMemAvailable:   10485760 kB\n");
    Put("proc/self/status", "Name:\tfolio\nVmSize:\t  102400 kB\nVmData:\t   51200 kB\n");
    PutLimits("unlimited", "unlimited");
  }
  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_.Path(path)).parent_path());
    root_.Write(path, text);
  }
  void PutLimits(const std::string& data, const std::string& address_space) {
    Put("proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max data size             " +
            data +
            "            unlimited            bytes     \n"
            "Max address space         " +
            address_space + "            unlimited            bytes     \n");
  }
  void PutV2(const std::string& level, const std::string& max, int64_t current, int64_t cache) {
    const std::string dir = "sys/fs/cgroup" + level + "/";
    Put(dir + "memory.max", max + "\n");
    Put(dir + "memory.current", std::to_string(current) + "\n");
    Put(dir + "memory.stat",
        "anon 1\nactive_file 7\ninactive_file " + std::to_string(cache) + "\n");
  }
  void ExpectBounds(int64_t limit, const std::string& of_limit, int64_t available,
                    const std::string& of_available) {
    const MemoryBounds bounds = ReadMemoryBounds(root_.path());
    EXPECT_EQ(bounds.limit.bytes, limit);
    EXPECT_EQ(bounds.limit.what, of_limit);
    EXPECT_EQ(bounds.available.bytes, available);
    EXPECT_EQ(bounds.available.what, of_available);
  }

  const ScratchDir root_;
};

TEST_F(MemoryBoundsTest, WithoutLimitsTheMachineBounds) {
  const std::string machine = "the machine's memory";
  ExpectBounds(16384 * kMiB, machine, 10240 * kMiB, machine);
  Put("proc/self/cgroup", "0::/a\n");
  PutV2("/a", "max", 5, 0);
  ExpectBounds(16384 * kMiB, machine, 10240 * kMiB, machine);
}

TEST_F(MemoryBoundsTest, TheTightestLevelOfV2Bounds) {
  Put("proc/self/cgroup", "0::/a/b/c\n");
  PutV2("/a/b/c", "max", 100 * kMiB, 0);
  PutV2("/a/b", std::to_string(400 * kMiB), 150 * kMiB, 30 * kMiB);
  PutV2("/a", std::to_string(4000 * kMiB), 3950 * kMiB, 0);
  ExpectBounds(400 * kMiB, "cgroup /a/b (memory.max)", 50 * kMiB, "cgroup /a (memory.max)");
}

// Inside a container the path may be that of the host, while its own files are at the root.
TEST_F(MemoryBoundsTest, TheRootOfAContainerBounds) {
  for (const char* path : {"/", "/kubepods/pod7/x", "/../../x"}) {
    Put("proc/self/cgroup", std::string("0::") + path + "\n");
    PutV2("", std::to_string(300 * kMiB), 100 * kMiB, 20 * kMiB);
    ExpectBounds(300 * kMiB, "cgroup / (memory.max)", 220 * kMiB, "cgroup / (memory.max)");
  }
}

TEST_F(MemoryBoundsTest, EveryLevelOfV1Bounds) {
  Put("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/x\n1:name=systemd:/\n0::/\n");
  const std::string dir = "sys/fs/cgroup/memory/docker/";
  Put(dir + "x/memory.limit_in_bytes", "9223372036854771712\n");
  Put(dir + "x/memory.usage_in_bytes", "1\n");
  Put(dir + "memory.limit_in_bytes", std::to_string(512 * kMiB));
  Put(dir + "memory.usage_in_bytes", std::to_string(112 * kMiB));
  Put(dir + "memory.stat", "inactive_file 0\ntotal_inactive_file " + std::to_string(12 * kMiB));
  const std::string what = "cgroup /docker (memory.limit_in_bytes)";
  ExpectBounds(512 * kMiB, what, 412 * kMiB, what);
}

TEST_F(MemoryBoundsTest, ResourceLimitsLeaveWhatTheProcessHasNot) {
  PutLimits("unlimited", std::to_string(1000 * kMiB));
  ExpectBounds(900 * kMiB, "RLIMIT_AS", 900 * kMiB, "RLIMIT_AS");
  PutLimits(std::to_string(200 * kMiB), std::to_string(1000 * kMiB));
  ExpectBounds(150 * kMiB, "RLIMIT_DATA", 150 * kMiB, "RLIMIT_DATA");
  PutLimits(std::to_string(kMiB), "unlimited");
  ExpectBounds(0, "RLIMIT_DATA", 0, "RLIMIT_DATA");
}

TEST_F(MemoryBoundsTest, OfThisProcessIsSomething) {
  const MemoryBounds bounds = ReadMemoryBounds();
  EXPECT_GT(bounds.limit.bytes, 0);
  EXPECT_LT(bounds.limit.bytes, std::numeric_limits<int64_t>::max());
  EXPECT_LE(bounds.available.bytes, bounds.limit.bytes);
}

}  // namespace
}  // namespace folio
