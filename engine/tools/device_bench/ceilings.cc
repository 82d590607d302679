#include "engine/tools/device_bench/ceilings.h"

#include <algorithm>
#include <vector>

#include "engine/base/memory.h"
#include "engine/base/status_macros.h"
#include "engine/tools/device_bench/clock.h"
#include "engine/tools/device_bench/measurement.h"

namespace folio {
namespace {

constexpr int kCopies = 8;
constexpr int kProducts = 4;

std::vector<float> RandomRows(int64_t count) {
  std::vector<float> values(count);
  uint64_t z = 1;
  for (float& value : values) {
    z = z * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
  }
  return values;
}

}  // namespace

absl::StatusOr<double> Ceilings::CopyBytesPerSecond() {
  if (copy_) return *copy_;
  Memory* memory = backend_->memory();
  const int64_t bytes = std::max<int64_t>(1 << 20, (int64_t{1} << 30) / scale_);
  FOLIO_ASSIGN_OR_RETURN(Buffer from, Buffer::Create(memory, bytes));
  FOLIO_ASSIGN_OR_RETURN(Buffer to, Buffer::Create(memory, bytes));
  const double seconds = MedianSeconds([&] {
    for (int n = 0; n < kCopies; ++n) {
      memory->Copy(to.data(), from.data(), bytes);
    }
    memory->Read(to.as<float>(), 1);
  });
  FOLIO_RETURN_IF_ERROR(backend_->status());
  copy_ = kCopies * 2.0 * static_cast<double>(bytes) / seconds;
  return *copy_;
}

absl::StatusOr<double> Ceilings::FlopsPerSecond() {
  if (flops_) return *flops_;
  Memory* memory = backend_->memory();
  const int64_t width = std::max<int64_t>(256, 16384 / scale_);
  const int rows = static_cast<int>(std::max<int64_t>(128, 8192 / scale_));
  FOLIO_ASSIGN_OR_RETURN(const auto matrix, backend_->PackRandom(width, width, 1, 0.02f, {}));
  FOLIO_ASSIGN_OR_RETURN(auto x, BufferOf<float>::CopyOf(memory, RandomRows(rows * width)));
  FOLIO_ASSIGN_OR_RETURN(auto y, BufferOf<float>::Create(memory, rows * width));
  const double seconds = MedianSeconds([&] {
    for (int n = 0; n < kProducts; ++n) {
      backend_->MatMul(*matrix, x.data(), rows, {}, Backend::Output::kStore, y.data());
    }
    memory->Read(y.data(), 1);
  });
  FOLIO_RETURN_IF_ERROR(backend_->status());
  flops_ = kProducts * 2.0 * rows * static_cast<double>(width * width) / seconds;
  return *flops_;
}

std::vector<Measurement> CeilingMeasurements() {
  return {{"ceilings/copy",
           [](BenchContext& bench) -> absl::StatusOr<nlohmann::ordered_json> {
             FOLIO_ASSIGN_OR_RETURN(const double rate, bench.ceilings.CopyBytesPerSecond());
             return nlohmann::ordered_json{{"bytes_per_s", rate}};
           }},
          {"ceilings/product", [](BenchContext& bench) -> absl::StatusOr<nlohmann::ordered_json> {
             FOLIO_ASSIGN_OR_RETURN(const double rate, bench.ceilings.FlopsPerSecond());
             return nlohmann::ordered_json{{"flops_per_s", rate}};
           }}};
}

}  // namespace folio
