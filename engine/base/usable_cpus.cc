#include "engine/base/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>

#include "engine/base/cgroups.h"

namespace folio {
namespace {

struct Quota {
  int64_t quota_us = 0;
  int64_t period_us = 0;
};

// nullopt: this level has none. v1 says -1 then, v2 "max".
std::optional<Quota> QuotaOf(const CgroupLevel& level) {
  Quota quota;
  if (level.v2) {
    std::ifstream file(level.dir + "/cpu.max");
    file >> quota.quota_us >> quota.period_us;
  } else {
    std::ifstream(level.dir + "/cpu.cfs_quota_us") >> quota.quota_us;
    std::ifstream(level.dir + "/cpu.cfs_period_us") >> quota.period_us;
  }
  if (quota.quota_us <= 0 || quota.period_us <= 0) return std::nullopt;
  return quota;
}

}  // namespace

int UsableCpus(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  int64_t cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  for (const CgroupLevel& level : CgroupLevels(root, "cpu")) {
    const std::optional<Quota> quota = QuotaOf(level);
    if (!quota.has_value()) continue;
    cpus = std::min(cpus, (quota->quota_us - 1) / quota->period_us + 1);
  }
  return static_cast<int>(std::max<int64_t>(1, cpus));
}

}  // namespace folio
