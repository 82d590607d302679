#include "engine/tools/pack_model.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/backend/cpu/cpu_backend.h"
#include "engine/base/status_macros.h"
#include "engine/model/gguf_config.h"
#include "engine/model/gguf_file.h"
#include "engine/model/weight_source.h"
#include "engine/store/fingerprint.h"
#include "engine/tokenizer/gguf_tokenizer.h"
#include "engine/tools/model_directory.h"

namespace folio {
namespace {

// Beside config.json; those that are there.
constexpr const char* kCopiedFiles[] = {"generation_config.json",  "tokenizer.model",
                                        "tokenizer.json",          "tokenizer_config.json",
                                        "special_tokens_map.json", "added_tokens.json"};

absl::Status CheckOptions(const PackModelOptions& options) {
  const std::string& dtype = options.weight_dtype;
  if (dtype != "bf16" && dtype != "int8" && dtype != "int4") {
    return absl::InvalidArgumentError(
        absl::StrCat("--quantise is '", dtype, "', must be int8, int4 or bf16"));
  }
  if (!HasPackedWeights(options.checkpoint_dir)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(options.checkpoint_dir,
                   " is packed already; give the checkpoint of which it was "
                   "made"));
}

absl::Status WriteWeights(const PackModelOptions& options, const std::string& dir) {
  FOLIO_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.checkpoint_dir));
  FOLIO_ASSIGN_OR_RETURN(const auto source, OpenWeightSource(options.checkpoint_dir, config));
  FOLIO_ASSIGN_OR_RETURN(const CheckpointNumbers numbers, source->CheckAllTensors(config));
  FOLIO_ASSIGN_OR_RETURN(const WeightPrecision precision,
                         ParseWeightPrecision(options.weight_dtype, options.weight_group,
                                              numbers.dtype, numbers.nearest));
  PackedManifest manifest;
  manifest.checkpoint_dtype = numbers.dtype;
  manifest.weight_dtype = options.weight_dtype;
  manifest.weight_group = precision.layers.group;
  manifest.part_bytes = options.part_bytes;
  FOLIO_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                         CreateCpuBackend({.num_threads = options.num_threads, .isa = {}}));
  TensorDigests digests;
  FOLIO_ASSIGN_OR_RETURN(Weights weights,
                         LoadWeights(config, *source, precision, backend.get(),
                                     [&](const std::string& name, const TensorView& tensor) {
                                       digests.Add(name, tensor);
                                     }));
  manifest.sources = digests.tensors();
  return WritePackedWeights(dir, config, *backend, std::move(manifest), &weights);
}

// What a GGUF file says beside its weights, as the files of a directory.
absl::Status WriteFilesOf(const std::string& path, const std::string& dir) {
  FOLIO_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  FOLIO_ASSIGN_OR_RETURN(const TokenizerFiles files, GgufTokenizerFiles(file));
  for (const auto& [name, bytes] : files) {
    FOLIO_RETURN_IF_ERROR(WriteModelFile(bytes, absl::StrCat(dir, "/", name)));
  }
  FOLIO_ASSIGN_OR_RETURN(const std::string config, GgufConfigJson(file));
  return WriteModelFile(config, dir + "/config.json");
}

}  // namespace

absl::Status PackModel(const PackModelOptions& options, const std::string& dir) {
  FOLIO_RETURN_IF_ERROR(CheckOptions(options));
  FOLIO_RETURN_IF_ERROR(LoadModelConfig(options.checkpoint_dir).status());
  FOLIO_RETURN_IF_ERROR(MakeEmptyDirectory(dir));
  FOLIO_RETURN_IF_ERROR(WriteWeights(options, dir));
  if (IsModelFile(options.checkpoint_dir)) return WriteFilesOf(options.checkpoint_dir, dir);
  const std::filesystem::path from(options.checkpoint_dir);
  for (const char* name : kCopiedFiles) {
    if (!std::filesystem::exists(from / name)) continue;
    FOLIO_RETURN_IF_ERROR(CopyModelFile((from / name).string(), absl::StrCat(dir, "/", name)));
  }
  return CopyModelFile((from / "config.json").string(), dir + "/config.json");
}

}  // namespace folio
