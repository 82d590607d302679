#include "engine/model/gguf_config.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr IntRange kCounts = {1, std::numeric_limits<int>::max()};
constexpr IntRange kIds = {0, std::numeric_limits<int>::max()};

// Divisors of the rotary angles.
constexpr char kFactors[] = "rope_freqs.weight";

class Translator {
 public:
  explicit Translator(const GgufFile& file) : file_(file), from_(file.metadata()) {}

  absl::StatusOr<std::string> Translate();

 private:
  std::string Key(const char* name) const { return absl::StrCat(arch_, ".", name); }
  const GgufTensor* Tensor(const std::string& name) const {
    const auto it = file_.tensors().find(name);
    return it == file_.tensors().end() ? nullptr : &it->second;
  }
  // What the file leaves out, config.json leaves out.
  absl::Status CopyInt(const char* name, const char* to, bool required);
  absl::Status CopyNumber(const char* name, const char* to, Json* object);

  absl::Status ReadArchitecture();
  absl::Status ReadShape();
  absl::Status ReadRotary();
  absl::Status ReadFactors();
  absl::Status ReadEnds();

  const GgufFile& file_;
  const Json& from_;
  std::string arch_;
  Json config_ = Json::object();
};

absl::Status Translator::CopyInt(const char* name, const char* to, bool required) {
  const std::string key = Key(name);
  if (!required && Find(from_, key.c_str()) == nullptr) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(config_[to], RequiredInt(from_, key.c_str(), kCounts));
  return absl::OkStatus();
}

absl::Status Translator::CopyNumber(const char* name, const char* to, Json* object) {
  const Json* value = Find(from_, Key(name).c_str());
  if (value == nullptr) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN((*object)[to], ReadDouble(*value, Key(name).c_str(), {0, 1e12}));
  return absl::OkStatus();
}

absl::Status Translator::ReadArchitecture() {
  FOLIO_ASSIGN_OR_RETURN(arch_, OptionalString(from_, "general.architecture", ""));
  if (arch_ != "llama" && arch_ != "qwen2") {
    return absl::UnimplementedError(absl::StrCat("\"general.architecture\" is ", Shown(arch_),
                                                 "; known: llama and qwen2. Other models are read "
                                                 "as Hugging Face directories"));
  }
  FOLIO_ASSIGN_OR_RETURN(const int experts,
                         OptionalInt(from_, Key("expert_count").c_str(), {0, 1 << 20}, 0));
  if (experts > 0) {
    return absl::UnimplementedError(absl::StrCat("\"", Key("expert_count"), "\" is ", experts,
                                                 "; known: models without experts"));
  }
  const bool windowed = Find(from_, Key("attention.sliding_window").c_str()) != nullptr;
  const char* type = arch_ == "qwen2" ? "qwen2" : windowed ? "mistral" : "llama";
  config_["model_type"] = type;
  config_["architectures"] = {arch_ == "qwen2" ? "Qwen2ForCausalLM"
                              : windowed       ? "MistralForCausalLM"
                                               : "LlamaForCausalLM"};
  if (windowed) FOLIO_RETURN_IF_ERROR(CopyInt("attention.sliding_window", "sliding_window", true));
  return absl::OkStatus();
}

absl::Status Translator::ReadShape() {
  FOLIO_RETURN_IF_ERROR(CopyInt("block_count", "num_hidden_layers", true));
  FOLIO_RETURN_IF_ERROR(CopyInt("embedding_length", "hidden_size", true));
  FOLIO_RETURN_IF_ERROR(CopyInt("feed_forward_length", "intermediate_size", true));
  FOLIO_RETURN_IF_ERROR(CopyInt("context_length", "max_position_embeddings", true));
  FOLIO_RETURN_IF_ERROR(CopyInt("attention.head_count", "num_attention_heads", true));
  FOLIO_RETURN_IF_ERROR(CopyInt("attention.head_count_kv", "num_key_value_heads", false));
  FOLIO_RETURN_IF_ERROR(CopyInt("attention.key_length", "head_dim", false));
  FOLIO_RETURN_IF_ERROR(CopyNumber("attention.layer_norm_rms_epsilon", "rms_norm_eps", &config_));
  const GgufTensor* embedding = Tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    return absl::InvalidArgumentError("has no matrix \"token_embd.weight\", the embedding");
  }
  // Wider than the vocabulary where that was filled up.
  config_["vocab_size"] = embedding->shape[0];
  config_["tie_word_embeddings"] = Tensor("output.weight") == nullptr;
  if (arch_ == "llama") config_["attention_bias"] = Tensor("blk.0.attn_q.bias") != nullptr;
  return absl::OkStatus();
}

absl::Status Translator::ReadRotary() {
  FOLIO_RETURN_IF_ERROR(CopyNumber("rope.freq_base", "rope_theta", &config_));
  FOLIO_RETURN_IF_ERROR(CopyInt("rope.dimension_count", "rotary_dim", false));
  const std::string key = Key("rope.scaling.type");
  FOLIO_ASSIGN_OR_RETURN(const std::string type, OptionalString(from_, key.c_str(), "none"));
  if (Tensor(kFactors) != nullptr) return ReadFactors();
  if (type == "none") return absl::OkStatus();
  if (type != "linear" && type != "yarn") {
    return absl::UnimplementedError(
        absl::StrCat("\"", key, "\" is ", Shown(type), "; known: none, linear, yarn"));
  }
  Json scaling = {{"rope_type", type}};
  FOLIO_RETURN_IF_ERROR(CopyNumber("rope.scaling.factor", "factor", &scaling));
  if (type == "yarn") {
    FOLIO_RETURN_IF_ERROR(
        CopyInt("rope.scaling.original_context_length", "original_max_position_embeddings", false));
  }
  config_["rope_scaling"] = std::move(scaling);
  return absl::OkStatus();
}

// Llama 3.1 and later: what its scheme makes of every angle is in the file, as divisors. A long
// text has the same as a short one.
absl::Status Translator::ReadFactors() {
  constexpr int64_t kMaxFactors = 4096;
  const std::vector<int64_t>& shape = Tensor(kFactors)->shape;
  if (shape.size() != 1 || shape[0] > kMaxFactors) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", kFactors, "\" is no list of at most ", kMaxFactors, " numbers"));
  }
  FOLIO_ASSIGN_OR_RETURN(const OwnedTensor tensor, file_.Tensor(kFactors));
  const auto* values = static_cast<const float*>(tensor.view.data);
  const std::vector<double> factors(values, values + shape[0]);
  config_["rope_scaling"] = {{"rope_type", "longrope"},
                             {"short_factor", factors},
                             {"long_factor", factors},
                             {"attention_factor", 1.0}};
  return absl::OkStatus();
}

// The end of a turn is an end as well.
absl::Status Translator::ReadEnds() {
  config_["bos_token_id"] = config_["eos_token_id"] = Json::array();
  constexpr std::pair<const char*, const char*> kEnds[] = {
      {"tokenizer.ggml.bos_token_id", "bos_token_id"},
      {"tokenizer.ggml.eos_token_id", "eos_token_id"},
      {"tokenizer.ggml.eot_token_id", "eos_token_id"},
      {"tokenizer.ggml.eom_token_id", "eos_token_id"},
  };
  for (const auto& [key, to] : kEnds) {
    if (Find(from_, key) == nullptr) continue;
    FOLIO_ASSIGN_OR_RETURN(const int id, RequiredInt(from_, key, kIds));
    config_[to].push_back(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Translator::Translate() {
  FOLIO_RETURN_IF_ERROR(ReadArchitecture());
  FOLIO_RETURN_IF_ERROR(ReadShape());
  FOLIO_RETURN_IF_ERROR(ReadRotary());
  FOLIO_RETURN_IF_ERROR(ReadEnds());
  return config_.dump();
}

}  // namespace

absl::StatusOr<std::string> GgufConfigJson(const GgufFile& file) {
  absl::StatusOr<std::string> json = Translator(file).Translate();
  if (json.ok()) return json;
  return absl::Status(json.status().code(),
                      absl::StrCat(file.path(), ": ", json.status().message()));
}

}  // namespace folio
