#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/model/model_config.h"
#include "engine/model/packed_manifest.h"
#include "engine/model/safetensors_file.h"
#include "engine/model/weight_parts.h"
#include "engine/model/weights.h"

namespace folio {

// Weights as a backend packed them, in one safetensors file beside a config.json: matrices as
// bytes, norms and biases as fp32. It loads as fast as it can be read.
inline constexpr char kPackedFile[] = "folio-packed.safetensors";

// Whether DIR has packed weights.
bool HasPackedWeights(const std::string& dir);

// Bytes that are read, and verified, at a time.
inline constexpr int64_t kPackedPartBytes = 1 << 20;

// A file of packed weights. Move-only; const members are safe for concurrent use. Errors name the
// file and say what to do.
class PackedWeights {
 public:
  // Errors: INVALID_ARGUMENT for a file that is not what WritePackedWeights writes, UNIMPLEMENTED
  // for one of another version, DATA_LOSS where what it says of itself is damaged.
  static absl::StatusOr<PackedWeights> Open(const std::string& dir);

  const std::string& path() const { return file_.path(); }
  const PackedManifest& manifest() const { return manifest_; }

  // Whether it holds the weights of such a model. Call before anything is allocated.
  // Errors: INVALID_ARGUMENT names what does not go with the configuration.
  absl::Status Check(const ModelConfig& config) const;

  // Reads every matrix into the memory where it is used, its checksums compared on the way.
  // REQUIRES: Check. Errors: FAILED_PRECONDITION where the backend has another layout, DATA_LOSS
  // where a byte is not what was written or the file was cut, those of the backend.
  absl::StatusOr<Weights> Load(const ModelConfig& config, Backend* backend) const;

 private:
  PackedWeights(SafetensorsFile file, PackedManifest manifest, WeightPrecision precision)
      : file_(std::move(file)), manifest_(std::move(manifest)), precision_(precision) {}

  absl::Status CheckSources(const ModelConfig& config) const;
  absl::Status CheckPart(const WeightPart& part) const;
  absl::Status ReadPart(const std::string& name, int64_t offset, std::span<std::byte> to) const;
  absl::Status ReadMatrix(const WeightPart& part, Backend* backend) const;
  absl::Status ReadVector(const WeightPart& part, Backend* backend) const;

  SafetensorsFile file_;
  PackedManifest manifest_;
  WeightPrecision precision_;
};

// Writes DIR/folio-packed.safetensors. `manifest` says everything but layout, arrangement and
// checksums. Errors: FAILED_PRECONDITION where the backend's matrices are not kept in files,
// DATA_LOSS when the disk is full.
absl::Status WritePackedWeights(const std::string& dir, const ModelConfig& config,
                                const Backend& backend, PackedManifest manifest, Weights* weights);

}  // namespace folio
