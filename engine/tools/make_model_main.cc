// folio-make-model: writes a Hugging Face directory with random weights, for tests of size and
// speed where no real checkpoint is at hand; or, of a checkpoint, a directory with packed weights.

#include <cstdint>
#include <iostream>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/base/usable_cpus.h"
#include "engine/tools/make_model.h"
#include "engine/tools/pack_model.h"

ABSL_FLAG(std::string, output, "", "directory to write; new or empty");
ABSL_FLAG(std::string, preset, "",
          "tinyllama-1.1b, llama-2-7b or llama-3-8b; shape flags change single numbers of it");
ABSL_FLAG(std::string, dtype, "bf16", "bf16, fp16 or fp32");
ABSL_FLAG(uint64_t, seed, 1, "the same seed gives the same weights");
ABSL_FLAG(std::string, tokenizer, "",
          "SentencePiece tokenizer.model to copy; may have fewer pieces than the vocabulary");

ABSL_FLAG(
    std::string, quantise, "",
    "int8, int4 or bf16: write --checkpoint with weights in these numbers, packed for the CPU");
ABSL_FLAG(std::string, checkpoint, "",
          "Hugging Face directory or GGUF file to read, with --quantise");
ABSL_FLAG(int, weight_group, 0,
          "inputs that share a scale: 32, 64 or 128; 0: 128 of int8, 32 of int4");
ABSL_FLAG(int, threads, 0, "threads that pack; 0: one for each CPU");

ABSL_FLAG(int, layers, 0, "num_hidden_layers");
ABSL_FLAG(int, hidden_size, 0, "hidden_size");
ABSL_FLAG(int, intermediate_size, 0, "intermediate_size");
ABSL_FLAG(int, heads, 0, "num_attention_heads");
ABSL_FLAG(int, kv_heads, 0, "num_key_value_heads; default: as many as heads");
ABSL_FLAG(int, head_dim, 0, "head_dim; default: hidden_size / heads");
ABSL_FLAG(int, vocab_size, 0, "vocab_size");
ABSL_FLAG(int, trained_length, 0, "max_position_embeddings");
ABSL_FLAG(double, rope_theta, 0, "rope_theta; default 10000");
ABSL_FLAG(bool, tie_word_embeddings, false, "use the embedding as output projection");

namespace folio {
namespace {

void Override(const absl::Flag<int>& flag, int* value) {
  if (const int given = absl::GetFlag(flag); given != 0) *value = given;
}

absl::StatusOr<DType> ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype is \"", name, "\"; known: bf16, fp16, fp32"));
}

absl::StatusOr<ModelConfig> ConfigFromFlags() {
  ModelConfig config;
  config.bos_token_ids = {1};
  config.eos_token_ids = {2};
  if (const std::string preset = absl::GetFlag(FLAGS_preset); !preset.empty()) {
    FOLIO_ASSIGN_OR_RETURN(config, ModelPreset(preset));
  }
  ModelShape& shape = config.shape;
  Override(FLAGS_layers, &shape.num_layers);
  Override(FLAGS_hidden_size, &shape.hidden_size);
  Override(FLAGS_intermediate_size, &shape.intermediate_size);
  Override(FLAGS_heads, &shape.num_heads);
  if (shape.num_kv_heads == 0) shape.num_kv_heads = shape.num_heads;
  Override(FLAGS_kv_heads, &shape.num_kv_heads);
  if (shape.head_dim == 0 && shape.num_heads > 0) {
    shape.head_dim = shape.hidden_size / shape.num_heads;
  }
  Override(FLAGS_head_dim, &shape.head_dim);
  Override(FLAGS_vocab_size, &shape.vocab_size);
  Override(FLAGS_trained_length, &shape.trained_length);
  if (const double theta = absl::GetFlag(FLAGS_rope_theta); theta != 0) {
    config.rope.base = theta;
  }
  config.tie_word_embeddings = absl::GetFlag(FLAGS_tie_word_embeddings);
  return config;
}

absl::Status Quantise(const std::string& output) {
  PackModelOptions options;
  options.checkpoint_dir = absl::GetFlag(FLAGS_checkpoint);
  options.weight_dtype = absl::GetFlag(FLAGS_quantise);
  options.weight_group = absl::GetFlag(FLAGS_weight_group);
  options.num_threads = absl::GetFlag(FLAGS_threads);
  if (options.num_threads == 0) options.num_threads = UsableCpus();
  if (options.checkpoint_dir.empty()) {
    return absl::InvalidArgumentError("--checkpoint is missing: what --quantise reads");
  }
  FOLIO_RETURN_IF_ERROR(PackModel(options, output));
  std::cout << "wrote " << output << ": " << options.weight_dtype << " weights of "
            << options.checkpoint_dir << ", packed for the CPU\n";
  return absl::OkStatus();
}

absl::Status Main() {
  const std::string output = absl::GetFlag(FLAGS_output);
  if (output.empty()) return absl::InvalidArgumentError("--output is missing");
  if (!absl::GetFlag(FLAGS_quantise).empty()) return Quantise(output);
  if (!absl::GetFlag(FLAGS_checkpoint).empty()) {
    return absl::InvalidArgumentError("--checkpoint is read by --quantise, which is missing");
  }
  MakeModelOptions options;
  FOLIO_ASSIGN_OR_RETURN(options.config, ConfigFromFlags());
  FOLIO_ASSIGN_OR_RETURN(options.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  options.seed = absl::GetFlag(FLAGS_seed);
  options.tokenizer_path = absl::GetFlag(FLAGS_tokenizer);
  if (const std::string preset = absl::GetFlag(FLAGS_preset); !preset.empty()) {
    options.label = preset;
  }
  FOLIO_RETURN_IF_ERROR(MakeRandomModel(options, output));
  std::cout << "wrote " << output << ": random weights, its text will be noise\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace folio

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "writes a Hugging Face directory with random weights, or one with packed weights.\n"
      "  folio-make-model --quantise int4 --checkpoint DIR --output PACKED_DIR\n"
      "  folio-make-model --preset tinyllama-1.1b --output DIR [--tokenizer FILE]\n"
      "  folio-make-model --layers 2 --hidden_size 64 --intermediate_size 128 --heads 4 "
      "--vocab_size 1024 --trained_length 256 --output DIR");
  absl::ParseCommandLine(argc, argv);
  if (const absl::Status status = folio::Main(); !status.ok()) {
    std::cerr << "folio-make-model: " << status.ToString() << "\n";
    return 1;
  }
  return 0;
}
