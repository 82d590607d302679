#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/base/task_threads.h"
#include "engine/model/gguf_file.h"
#include "engine/model/weight_source.h"

namespace folio {

// The weights of a GGUF file, all as fp32, in the order of rows that Hugging Face has.
class GgufCheckpoint final : public WeightSource {
 public:
  // `config` is that of GgufConfigJson. Errors: those of GgufFile and GgufConfigJson. Throws
  // std::system_error where the system has no more threads.
  static absl::StatusOr<GgufCheckpoint> Open(const std::string& path, const ModelConfig& config);

  absl::StatusOr<OwnedTensor> Tensor(const std::string& name,
                                     std::span<const int64_t> expected_shape) const override;
  absl::StatusOr<CheckpointNumbers> CheckAllTensors(const ModelConfig& config) const override;

 private:
  GgufCheckpoint(GgufFile file, const ModelConfig& config);
  // The tensor's name in the file. Errors: those of Tensor but for DATA_LOSS.
  absl::StatusOr<std::string> Find(const std::string& name,
                                   std::span<const int64_t> expected_shape) const;

  GgufFile file_;
  int num_helpers_;
  std::unique_ptr<TaskThreads> helpers_;
  TensorNames names_;
  int head_dim_;
  // Files of the architecture llama have the pairs of the rotary embedding side by side in q and k.
  bool pairs_side_by_side_;
};

}  // namespace folio
