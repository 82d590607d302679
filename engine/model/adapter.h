#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/model/adapter_config.h"
#include "engine/model/adapter_modules.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors_file.h"

namespace folio {

// What an adapter adds to a product y = x W^T: y += (x A^T) B^T (Hu et al. 2021, LoRA: Low-Rank
// Adaptation of Large Language Models, section 4.1). Of a product that is several modules, A has
// their rows one below the other, and B is zero where a row is not of the module. Heads are in the
// order of LayerWeights, and B has the scale.
struct LoraPair {
  std::unique_ptr<PackedMatrix> a;  // [rank, inputs], null: nothing is added
  std::unique_ptr<PackedMatrix> b;  // [outputs, rank]
};

using AdapterLayer = std::array<LoraPair, kNumLayerProducts>;  // by LayerProduct

struct AdapterWeights {
  std::vector<AdapterLayer> layers;
};

// Those of a model, and the most columns that a product with an A of theirs has.
struct AdapterSet {
  std::span<const AdapterWeights> weights;
  int64_t max_rank = 0;
};

// Columns of A's products are a multiple of it: rows of a batch then begin where vectors may.
inline constexpr int kAdapterRankUnit = 8;

// A directory as PEFT saves an adapter, checked against a model. Its numbers are read as fp32,
// which is what they are kept in: next to the model they are few. Move-only.
class AdapterFile {
 public:
  // Reads adapter_config.json and the header of adapter_model.safetensors. Errors: NOT_FOUND,
  // INVALID_ARGUMENT, UNIMPLEMENTED, with the module, the key or the tensor that is wrong.
  static absl::StatusOr<AdapterFile> Open(const std::string& dir, const ModelConfig& model);

  // Of the matrices once they are loaded, but for what a backend adds.
  int64_t bytes() const;
  // The most columns that a product with an A has.
  int64_t max_rank() const;
  const AdapterConfig& config() const { return config_; }
  // As it is in the file.
  const std::string& config_text() const { return config_text_; }

  // Every tensor is shown to `observer`. Errors: DATA_LOSS for numbers that are infinite or NaN, or
  // a file that was cut; those of Backend::Pack.
  using Observer = std::function<void(const std::string& name, const TensorView& tensor)>;
  absl::StatusOr<AdapterWeights> Load(Backend* backend, const Observer& observer) const;

 private:
  // A module of one layer that is changed.
  struct Part {
    const AdapterModule* module = nullptr;
    std::string path;
    AdapterConfig::Numbers numbers;
  };
  using LayerParts = std::array<std::vector<Part>, kNumLayerProducts>;

  AdapterFile(ModelConfig model, SafetensorsFile file)
      : model_(std::move(model)), modules_(AdapterModules(model_)), file_(std::move(file)) {}
  absl::Status FindParts();
  absl::Status AddPart(const AdapterModule& module, int layer);
  absl::Status CheckTensors() const;
  absl::Status CheckTensor(const std::string& name, int64_t rows, int64_t columns) const;
  absl::Status CheckTargets() const;
  std::string KnownModules() const;
  bool IsTarget(const std::string& path) const;
  absl::StatusOr<LoraPair> LoadPair(const std::vector<Part>& parts, Backend* backend,
                                    const Observer& observer) const;
  absl::StatusOr<std::vector<float>> Read(const std::string& name, const Observer& observer) const;
  static int64_t PaddedRank(const std::vector<Part>& parts);

  ModelConfig model_;
  std::vector<AdapterModule> modules_;
  SafetensorsFile file_;
  AdapterConfig config_;
  std::string config_text_;
  std::vector<LayerParts> layers_;
};

}  // namespace folio
