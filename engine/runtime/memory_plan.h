#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/memory_bounds.h"
#include "engine/model/model_config.h"
#include "engine/model/weight_precision.h"
#include "engine/types/kv_types.h"

namespace folio {

// Where the memory of a backend goes, in bytes; made before any of it is taken.
struct MemoryPlan {
  int64_t available = 0;  // when the server starts
  int64_t weights = 0;
  int64_t adapters = 0;
  int64_t activations = 0;
  int64_t workspace = 0;   // of the backend's kernels, as far as it is known beforehand
  int64_t kv_pages = 0;    // pages, sinks and pending queries
  int64_t summaries = 0;   // chunk summaries
  int64_t host_pages = 0;  // pages in the memory of the host below a device, not of the device

  int64_t total() const {
    return weights + adapters + activations + workspace + kv_pages + summaries;
  }
  // "weights 12.55 GiB + activations ... = 138.10 GiB", and " of 139.80 GiB" that are available.
  std::string Sum() const;
  std::string ToString() const;
};

struct MemoryPlanInputs {
  int64_t available = 0;
  // What can be had at most, were nothing else in use: an explicit KV budget must fit into it. A
  // device's is what is available.
  MemoryBound limit = {};
  // Whether a pool is taken whole when it is made (a device), or page by page (the host).
  bool commits_at_once = false;
  int64_t workspace = 0;
  // 0: what is left, but for a reserve.
  int64_t kv_bytes = 0;
  // Of a device: pages in the memory of the host, and what that has at most.
  int64_t host_bytes = 0;
  MemoryBound host = {};
  int step_rows = 0;
  int logit_rows = 0;
  WeightPrecision weights = {};
  int64_t adapters = 0;  // with what their products are kept in
};

// Errors: RESOURCE_EXHAUSTED with the arithmetic and what to change, where it does not fit.
absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const KvGeometry& geometry,
                                      const MemoryPlanInputs& inputs);

}  // namespace folio
