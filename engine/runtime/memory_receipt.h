#pragma once

#include <algorithm>

#include "engine/kv/kv_store.h"
#include "engine/types/request.h"

namespace folio {

// The peaks, with what there is at this moment.
inline void Add(const KvFootprint& footprint, MemoryReceipt* receipt) {
  const auto raise = [](int64_t* peak, int64_t bytes) { *peak = std::max(*peak, bytes); };
  raise(&receipt->device_kv_bytes_peak, footprint.device_bytes);
  raise(&receipt->host_kv_bytes_peak, footprint.host_bytes);
  raise(&receipt->disk_kv_bytes_peak, footprint.disk_bytes);
  raise(&receipt->shared_kv_bytes, footprint.shared_bytes);
  raise(&receipt->summary_bytes_peak, footprint.summary_bytes);
}

}  // namespace folio
