#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "engine/model/packed_weights.h"

namespace folio {

struct PackModelOptions {
  std::string checkpoint_dir;         // or a GGUF file
  std::string weight_dtype = "int4";  // bf16, int8 or int4
  int weight_group = 0;               // of integers: 32, 64 or 128; 0: as ParseWeightPrecision
  int num_threads = 1;
  int64_t part_bytes = kPackedPartBytes;
};

// Writes a model directory whose weights are packed as the CPU backend packs them when a server
// loads the checkpoint with this --weight-dtype: config.json and the files of the tokenizer, and
// kPackedFile. Holds the packed weights in memory. config.json comes last: a directory that has one
// is complete.
// Errors: those of LoadModelConfig, WeightSource and the backend; INVALID_ARGUMENT for other
// numbers or a directory that is packed already; ALREADY_EXISTS when `dir` is not empty; DATA_LOSS
// when the disk is full.
absl::Status PackModel(const PackModelOptions& options, const std::string& dir);

}  // namespace folio
