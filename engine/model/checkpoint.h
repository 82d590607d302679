#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/safetensors_file.h"
#include "engine/model/weight_source.h"
#include "engine/tensor/owned_tensor.h"

namespace folio {

// Tensor name to shard file name, from the text of a model.safetensors.index.json.
// Errors: INVALID_ARGUMENT; a shard must be a plain file name that ends with .safetensors.
absl::StatusOr<std::map<std::string, std::string>> ParseShardIndex(std::string_view json);

// The weights of a Hugging Face directory: model.safetensors, or the shards which
// model.safetensors.index.json names. Tensors are read when asked for. Owned by whoever loads the
// model; move-only; const members are safe for concurrent use.
class Checkpoint final : public WeightSource {
 public:
  // Errors: NOT_FOUND when DIR has neither file or a shard is missing; INVALID_ARGUMENT for a bad
  // file or an index that names a tensor which its shard does not have.
  static absl::StatusOr<Checkpoint> Open(const std::string& dir);

  absl::StatusOr<OwnedTensor> Tensor(const std::string& name,
                                     std::span<const int64_t> expected_shape) const override;

  // The dtype is that of most elements of its matrices, or fp32 where some are fp16 and some are
  // not, since neither half holds the other. Errors: those of WeightSource.
  absl::StatusOr<CheckpointNumbers> CheckAllTensors(const ModelConfig& config) const override;

  // A tensor of any dtype as it lies in its file. Errors: NOT_FOUND.
  struct Stored {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  bool Contains(const std::string& name) const { return shard_of_tensor_.contains(name); }
  absl::StatusOr<Stored> Find(const std::string& name) const;

  // Shape and dtype, without data. Errors: those of Tensor but for DATA_LOSS.
  absl::StatusOr<TensorView> Describe(const std::string& name,
                                      std::span<const int64_t> expected_shape) const;

 private:
  explicit Checkpoint(std::string dir) : dir_(std::move(dir)) {}
  absl::Status OpenShards(const std::map<std::string, std::string>& weight_map);
  absl::Status CheckKeyTensor(const ModelConfig& config) const;
  absl::StatusOr<const SafetensorsFile*> ShardOf(const std::string& name) const;

  std::string dir_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, size_t> shard_of_tensor_;  // index into shards_
};

}  // namespace folio
