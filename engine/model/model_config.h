#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/family.h"
#include "engine/types/layer_views.h"
#include "engine/types/model_shape.h"
#include "engine/types/position.h"
#include "engine/types/sampling.h"

namespace folio {

// What a checkpoint's config.json says, checked. A plain value.
struct ModelConfig {
  ModelShape shape;
  RopeModel rope;
  DecoderStyle style;
  PositionKind positions = PositionKind::kRope;
  // ALiBi: what is subtracted per token of distance, one per head; else empty.
  std::vector<float> alibi_slopes;
  // Of families whose layers differ; window_rotary is made of the base of layers with windows, 0:
  // that of all.
  LayerViews views;
  double window_rope_base = 0;
  CocaQuery coca_query = CocaQuery::kNone;
  std::string architecture = "LlamaForCausalLM";
  std::string torch_dtype;  // "" when the file does not say; the tensors' own dtype decides
  bool tie_word_embeddings = false;
  // Written by folio-make-model: the weights are random and mean nothing.
  bool synthetic = false;
  std::vector<int32_t> bos_token_ids;
  // Of config.json and generation_config.json; the answer ends at any of them.
  std::vector<int32_t> eos_token_ids;
  // How its makers draw, of generation_config.json. Greedy without that file.
  SamplingParams sampling;
  // Tokens that the checkpoint was trained to see, 0: all. It is the window of the strategy of
  // requests that name none; any other strategy decides for itself what a query sees.
  int sliding_window = 0;
};

// Reads the text of a Hugging Face config.json. Keys that do not matter here are ignored; those
// left out take the defaults of the Hugging Face class.
// Errors: INVALID_ARGUMENT names the key, its value and what is allowed; UNIMPLEMENTED for a model
// that is valid but of a kind Folio cannot run (architecture, activation, ...).
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json);

// Reads DIR/config.json, and DIR/generation_config.json if there is one, or what a GGUF file says
// instead. Errors: NOT_FOUND, or those of ParseModelConfig and GgufConfigJson with the path.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& path);

}  // namespace folio
