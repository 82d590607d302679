// How many CPUs a quota leaves, read from made-up trees.
#include "engine/base/usable_cpus.h"

#include <sched.h>

#include <filesystem>

#include "gtest/gtest.h"
#include "tests/engine/test_files.h"

namespace folio {
namespace {

class UsableCpusTest : public testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_.Path(path)).parent_path());
    root_.Write(path, text);
  }
  void PutV1(const std::string& dir, int quota_us, int period_us) {
    Put(dir + "/cpu.cfs_quota_us", std::to_string(quota_us) + "\n");
    Put(dir + "/cpu.cfs_period_us", std::to_string(period_us) + "\n");
  }
  int Cpus() const { return UsableCpus(root_.path()); }
  // Without a quota.
  static int OfMask() {
    cpu_set_t set;
    CPU_ZERO(&set);
    EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    return CPU_COUNT(&set);
  }

  const ScratchDir root_;
};

TEST_F(UsableCpusTest, WithoutAQuotaTheMaskDecides) {
  EXPECT_EQ(Cpus(), OfMask());
  Put("proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/a\n");
  Put("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  PutV1("sys/fs/cgroup/cpu/a", -1, 100000);
  EXPECT_EQ(Cpus(), OfMask());
  Put("sys/fs/cgroup/a/cpu.max", "nonsense\n");
  EXPECT_EQ(Cpus(), OfMask());
}

TEST_F(UsableCpusTest, TheTightestLevelDecides) {
  Put("proc/self/cgroup", "0::/a/b\n");
  Put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Put("sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  Put("sys/fs/cgroup/cpu.max", "9900000 100000\n");
  EXPECT_EQ(Cpus(), 1);
}

TEST_F(UsableCpusTest, AQuotaIsRoundedUp) {
  if (OfMask() < 2) GTEST_SKIP() << "one CPU";
  Put("proc/self/cgroup", "0::/\n");
  Put("sys/fs/cgroup/cpu.max", "100001 100000\n");
  EXPECT_EQ(Cpus(), 2);
  Put("sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(Cpus(), 1);
  Put("sys/fs/cgroup/cpu.max", "1 100000\n");
  EXPECT_EQ(Cpus(), 1);
}

// Inside a container the path may be that of the host, while its own files are at the root.
TEST_F(UsableCpusTest, QuotasOfV1Count) {
  Put("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/kubepods/pod7\n");
  PutV1("sys/fs/cgroup/cpu", 20000, 20000);
  EXPECT_EQ(Cpus(), 1);
}

}  // namespace
}  // namespace folio
