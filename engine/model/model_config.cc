#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/generation_config.h"
#include "engine/model/gguf_config.h"
#include "engine/model/gguf_file.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"
#include "engine/model/layer_views_config.h"
#include "engine/model/quantization_config.h"
#include "engine/model/rope_config.h"
#include "engine/types/limits.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

// Limits that, with those of limits.h, keep every product of two of them inside 64 bits and every
// count inside an int.
constexpr int kMaxWidth = 1 << 18;  // hidden_size, intermediate_size
constexpr int kMaxVocab = 1'000'000;
constexpr int kMaxExperts = 256;
constexpr int kMaxTrainedLength = 1 << 26;

absl::StatusOr<const Family*> ReadFamily(const Json& json) {
  const Json* list = Find(json, "architectures");
  if (list == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"architectures\" is missing; known: ", KnownArchitectures()));
  }
  if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
    return Bad("architectures", *list, "a list of one string");
  }
  const Family* family = FindFamily(list->front().get<std::string>());
  if (family == nullptr) {
    const std::string missing = MissingFor(list->front().get<std::string>());
    return absl::UnimplementedError(
        absl::StrCat("\"architectures\" is ", Shown(*list),
                     missing.empty() ? "" : absl::StrCat(", which needs ", missing),
                     "; known: ", KnownArchitectures()));
  }
  FOLIO_ASSIGN_OR_RETURN(const std::string model_type,
                         OptionalString(json, "model_type", family->model_type));
  if (model_type != family->model_type) {
    return absl::UnimplementedError(absl::StrCat("\"model_type\" is ", Shown(model_type),
                                                 "; known with ", family->architecture, ": ",
                                                 family->model_type));
  }
  return family;
}

// A key of a feature that Folio does not have, which must be absent, null or false.
absl::Status MustBeOff(const Json& json, const char* key) {
  const Json* value = Find(json, key);
  if (value == nullptr || *value == false) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("\"", key, "\" is ", Shown(*value), "; known: false"));
}

// Of newer files: what each layer sees.
absl::Status CheckLayerTypes(const Json& json) {
  const Json* types = Find(json, "layer_types");
  if (types == nullptr) return absl::OkStatus();
  if (!types->is_array()) return Bad("layer_types", *types, "a list");
  for (const Json& type : *types) {
    if (type == "full_attention") continue;
    return absl::UnimplementedError(
        absl::StrCat("\"layer_types\" has ", Shown(type), "; known: \"full_attention\""));
  }
  return absl::OkStatus();
}

absl::Status CheckSupported(const Json& json, const Family& family) {
  if (family.keys.activation != nullptr) {
    const char* known = family.known_activation;
    FOLIO_ASSIGN_OR_RETURN(const std::string act,
                           OptionalString(json, family.keys.activation, known));
    if (act != known) {
      return absl::UnimplementedError(absl::StrCat("\"", family.keys.activation, "\" is ",
                                                   Shown(act), "; known: \"", known, "\""));
    }
  }
  FOLIO_RETURN_IF_ERROR(MustBeOff(json, "mlp_bias"));
  FOLIO_RETURN_IF_ERROR(MustBeOff(json, "use_sliding_window"));
  if (family.full_layer_period == 0) FOLIO_RETURN_IF_ERROR(CheckLayerTypes(json));
  return ReadQuantization(json).status();
}

absl::Status ReadHeads(const Json& json, const Family& family, ModelShape* shape) {
  const ConfigKeys& keys = family.keys;
  FOLIO_ASSIGN_OR_RETURN(shape->num_heads, RequiredInt(json, keys.num_heads, {1, kMaxHeads}));
  shape->num_kv_heads = shape->num_heads;
  if (keys.num_kv_heads != nullptr) {
    FOLIO_ASSIGN_OR_RETURN(
        shape->num_kv_heads,
        OptionalInt(json, keys.num_kv_heads, {1, shape->num_heads}, shape->num_heads));
  }
  if (shape->num_heads % shape->num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", keys.num_heads, "\" is ", shape->num_heads,
                                                   ", expected a multiple of \"", keys.num_kv_heads,
                                                   "\", which is ", shape->num_kv_heads));
  }
  const int of_class = family.default_head_dim;
  if (Find(json, "head_dim") == nullptr && of_class == 0 &&
      shape->hidden_size % shape->num_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", keys.hidden_size, "\" is ", shape->hidden_size, ", expected a multiple of ", "\"",
        keys.num_heads, "\", which is ", shape->num_heads, ", as \"head_dim\" is absent"));
  }
  FOLIO_ASSIGN_OR_RETURN(
      shape->head_dim,
      OptionalInt(json, "head_dim", {8, kMaxHeadDim},
                  of_class > 0 ? of_class : shape->hidden_size / shape->num_heads));
  if (shape->head_dim < 8 || shape->head_dim > kMaxHeadDim || shape->head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"head_dim\" is ", shape->head_dim, ", expected an even number from 8 to ", kMaxHeadDim));
  }
  return absl::OkStatus();
}

// MPT's files give the width of the MLP as a multiple, and its key may be null in those of GPT-J.
absl::StatusOr<int> ReadIntermediateSize(const Json& json, const Family& family, int hidden_size) {
  const char* key = family.keys.intermediate_size;
  if (family.keys.intermediate_size == nullptr) {
    FOLIO_ASSIGN_OR_RETURN(const int ratio, OptionalInt(json, "expansion_ratio", {1, 64}, 4));
    return hidden_size * ratio;
  }
  if (family.style.gated()) return RequiredInt(json, key, {1, kMaxWidth});
  return OptionalInt(json, key, {1, 4 * kMaxWidth}, 4 * hidden_size);
}

absl::Status ReadExperts(const Json& json, const Family& family, ModelShape* shape) {
  if (family.tensors.experts == nullptr) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(shape->num_experts,
                         OptionalInt(json, "num_local_experts", {1, kMaxExperts}, 8));
  FOLIO_ASSIGN_OR_RETURN(shape->experts_per_token,
                         OptionalInt(json, "num_experts_per_tok", {1, shape->num_experts}, 2));
  return absl::OkStatus();
}

absl::StatusOr<ModelShape> ReadShape(const Json& json, const Family& family) {
  const ConfigKeys& keys = family.keys;
  ModelShape shape;
  FOLIO_ASSIGN_OR_RETURN(shape.num_layers, RequiredInt(json, keys.num_layers, {1, kMaxLayers}));
  FOLIO_ASSIGN_OR_RETURN(shape.hidden_size, RequiredInt(json, keys.hidden_size, {1, kMaxWidth}));
  FOLIO_ASSIGN_OR_RETURN(shape.intermediate_size,
                         ReadIntermediateSize(json, family, shape.hidden_size));
  FOLIO_ASSIGN_OR_RETURN(shape.vocab_size, RequiredInt(json, "vocab_size", {2, kMaxVocab}));
  FOLIO_ASSIGN_OR_RETURN(shape.trained_length,
                         RequiredInt(json, keys.trained_length, {1, kMaxTrainedLength}));
  FOLIO_RETURN_IF_ERROR(ReadHeads(json, family, &shape));
  FOLIO_RETURN_IF_ERROR(ReadExperts(json, family, &shape));
  FOLIO_ASSIGN_OR_RETURN(shape.norm_eps,
                         OptionalDouble(json, keys.norm_eps, {0, 0.1}, family.default_norm_eps));
  return shape;
}

// 2^(-i max / n) for n heads, n rounded up to a power of two, every second one first if it was
// (Press et al. 2022, as MPT has it).
std::vector<float> AlibiSlopes(int num_heads, double bias_max) {
  int rounded = 1;
  while (rounded < num_heads) rounded *= 2;
  std::vector<float> slopes;
  for (int i = 1; i <= rounded; ++i) {
    slopes.push_back(static_cast<float>(std::pow(2.0, -i * bias_max / rounded)));
  }
  if (rounded == num_heads) return slopes;
  std::vector<float> picked;
  for (int i = 1; i < rounded; i += 2) picked.push_back(slopes[i]);
  for (int i = 0; i < rounded; i += 2) picked.push_back(slopes[i]);
  picked.resize(num_heads);
  return picked;
}

absl::Status ReadMpt(const Json& json, ModelConfig* config) {
  FOLIO_ASSIGN_OR_RETURN(const bool no_bias, OptionalBool(json, "no_bias", true));
  if (!no_bias) return absl::UnimplementedError("\"no_bias\" is false; known: true");
  static const Json kEmpty = Json::object();
  const Json* attention = Find(json, "attn_config");
  if (attention == nullptr) attention = &kEmpty;
  if (!attention->is_object()) return Bad("attn_config", *attention, "an object");
  FOLIO_ASSIGN_OR_RETURN(const bool alibi, OptionalBool(*attention, "alibi", true));
  if (!alibi) return absl::UnimplementedError("\"attn_config.alibi\" is false; known: true");
  for (const char* key : {"clip_qkv", "qk_ln", "softmax_scale", "prefix_lm"}) {
    FOLIO_RETURN_IF_ERROR(MustBeOff(*attention, key));
  }
  FOLIO_ASSIGN_OR_RETURN(const double bias_max,
                         OptionalDouble(*attention, "alibi_bias_max", {0, 1000}, 8));
  config->alibi_slopes = AlibiSlopes(config->shape.num_heads, bias_max);
  config->positions = PositionKind::kAlibi;
  config->rope.rotary_dim = 0;
  return absl::OkStatus();
}

// "coca_q" marks a CoCA model and says how its queries enter; no code writes it, as the authors'
// models differ from others in their weights alone.
absl::Status ReadCoca(const Json& json, const Family& family, ModelConfig* config) {
  const Json* value = Find(json, "coca_q");
  if (value == nullptr) return absl::OkStatus();
  if (!family.coca) {
    return absl::UnimplementedError(
        absl::StrCat("\"coca_q\" is given; known with LlamaForCausalLM "
                     "and GPTNeoXForCausalLM, not with ",
                     family.architecture));
  }
  constexpr std::pair<const char*, CocaQuery> kForms[] = {
      {"raw", CocaQuery::kRaw}, {"norm", CocaQuery::kNorm}, {"mean", CocaQuery::kMean}};
  for (const auto& [name, form] : kForms) {
    if (*value == name) config->coca_query = form;
  }
  if (config->coca_query == CocaQuery::kNone) {
    return Bad("coca_q", *value, "\"raw\", \"norm\" or \"mean\"");
  }
  if (config->rope.rotary_dim != config->shape.head_dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"coca_q\" is given and ", config->rope.rotary_dim, " of the ",
                     config->shape.head_dim, " elements of a head are rotated, expected all"));
  }
  const bool slack = config->coca_query == CocaQuery::kRaw;
  config->positions = slack ? PositionKind::kCocaSlack : PositionKind::kCocaStrict;
  config->shape.paired_keys = true;
  return absl::OkStatus();
}

// That of Qwen is off, or the file is refused (CheckSupported). One as long as the training hides
// nothing.
absl::StatusOr<int> ReadSlidingWindow(const Json& json, const Family& family, int trained_length) {
  if (!family.windowed) return 0;
  const int otherwise = json.contains("sliding_window") ? 0 : family.default_window;
  FOLIO_ASSIGN_OR_RETURN(const int window,
                         OptionalInt(json, "sliding_window", {1, kMaxTrainedLength}, otherwise));
  return window < trained_length ? window : 0;
}

// What the family's file decides beside the shape.
absl::Status ReadStyle(const Json& json, const Family& family, ModelConfig* config) {
  config->style = family.style;
  if (family.keys.num_kv_heads != nullptr && !family.style.qkv_bias) {
    FOLIO_ASSIGN_OR_RETURN(const bool bias, OptionalBool(json, "attention_bias"));
    config->style.qkv_bias = config->style.output_bias = bias;
  }
  if (family.style.qkv_layout == DecoderStyle::QkvLayout::kPerHead) {
    FOLIO_ASSIGN_OR_RETURN(const bool bias, OptionalBool(json, "attention_bias", true));
    config->style.qkv_bias = config->style.output_bias = bias;
    FOLIO_ASSIGN_OR_RETURN(const bool parallel, OptionalBool(json, "use_parallel_residual", true));
    if (!parallel) config->style.residual = DecoderStyle::Residual::kSequential;
  }
  if (std::string_view(family.model_type) == "mpt") return ReadMpt(json, config);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view text) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject("config.json", text));
  FOLIO_ASSIGN_OR_RETURN(const Family* family, ReadFamily(json));
  FOLIO_RETURN_IF_ERROR(CheckSupported(json, *family));
  ModelConfig config;
  config.architecture = family->architecture;
  FOLIO_ASSIGN_OR_RETURN(config.shape, ReadShape(json, *family));
  FOLIO_ASSIGN_OR_RETURN(config.rope, ReadRope(json, *family, config.shape));
  FOLIO_RETURN_IF_ERROR(ReadStyle(json, *family, &config));
  FOLIO_RETURN_IF_ERROR(ReadLayerViews(json, *family, &config));
  FOLIO_RETURN_IF_ERROR(ReadCoca(json, *family, &config));
  FOLIO_ASSIGN_OR_RETURN(config.tie_word_embeddings,
                         OptionalBool(json, "tie_word_embeddings", family->tied));
  FOLIO_ASSIGN_OR_RETURN(config.synthetic, OptionalBool(json, "folio_synthetic"));
  FOLIO_ASSIGN_OR_RETURN(const std::string dtype, OptionalString(json, "dtype", ""));
  FOLIO_ASSIGN_OR_RETURN(config.torch_dtype, OptionalString(json, "torch_dtype", dtype));
  const int vocab_size = config.shape.vocab_size;
  FOLIO_ASSIGN_OR_RETURN(config.bos_token_ids,
                         ReadTokenIds(json, "bos_token_id", family->default_bos, vocab_size));
  FOLIO_ASSIGN_OR_RETURN(config.eos_token_ids,
                         ReadTokenIds(json, "eos_token_id", family->default_eos, vocab_size));
  FOLIO_ASSIGN_OR_RETURN(config.sliding_window,
                         ReadSlidingWindow(json, *family, config.shape.trained_length));
  return config;
}

namespace {

absl::Status CheckExists(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(path,
                   ": no such directory or file; a model is a directory as Hugging Face has it, "
                   "with config.json, *.safetensors and tokenizer.model or tokenizer.json, or a "
                   "GGUF file"));
}

}  // namespace

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& path) {
  FOLIO_RETURN_IF_ERROR(CheckExists(path));
  const auto about = [&path](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  };
  if (IsModelFile(path)) {
    FOLIO_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    FOLIO_ASSIGN_OR_RETURN(const std::string text, GgufConfigJson(file));
    absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
    return config.ok() ? config : about(config.status());
  }
  FOLIO_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(absl::StrCat(path, "/config.json"), kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) return about(config.status());
  const auto generation =
      ReadSmallFile(absl::StrCat(path, "/generation_config.json"), kMaxConfigBytes);
  if (absl::IsNotFound(generation.status())) return config;
  FOLIO_RETURN_IF_ERROR(generation.status());
  const absl::Status added = AddGenerationConfig(*generation, &*config);
  if (!added.ok()) return about(added);
  return config;
}

}  // namespace folio
