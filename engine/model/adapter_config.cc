#include "engine/model/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"

namespace folio {
namespace {

constexpr double kMaxAlpha = 1e6;
constexpr int kMaxLayerIndex = 1 << 16;

absl::Status Unsupported(const char* key, const Json& value, const std::string& what_to_do) {
  return absl::UnimplementedError(
      absl::StrCat("'", key, "' is ", Shown(value), ", which is not served; ", what_to_do));
}

// Says of training, of how the file came to be, or of nothing that the forward pass has.
bool IsOfNoMatter(const std::string& key) {
  static const auto* const kKeys = new std::set<std::string>(
      {"auto_mapping", "base_model_name_or_path", "corda_config", "eva_config", "inference_mode",
       "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version",
       "qalora_group_size", "revision", "runtime_config", "task_type"});
  return kKeys->contains(key);
}

bool IsRead(const std::string& key) {
  static const auto* const kKeys = new std::set<std::string>(
      {"alpha_pattern", "bias", "fan_in_fan_out", "init_lora_weights", "layers_to_transform",
       "lora_alpha", "modules_to_save", "peft_type", "r", "rank_pattern", "target_modules",
       "use_dora", "use_rslora"});
  return kKeys->contains(key);
}

bool IsOff(const Json& value) {
  return value.is_null() || value == Json(false) ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         ((value.is_array() || value.is_object()) && value.empty());
}

absl::Status CheckKeys(const Json& json) {
  FOLIO_ASSIGN_OR_RETURN(const std::string type, OptionalString(json, "peft_type", "LORA"));
  if (type != "LORA") {
    return Unsupported("peft_type", json["peft_type"], "adapters of type LORA are");
  }
  FOLIO_ASSIGN_OR_RETURN(const std::string bias, OptionalString(json, "bias", "none"));
  if (bias != "none") {
    return Unsupported("bias", json["bias"], "train it with 'none', or merge it into the model");
  }
  if (const Json* const saved = Find(json, "modules_to_save"); saved != nullptr && !IsOff(*saved)) {
    return Unsupported("modules_to_save", *saved,
                       "train it without whole modules, or merge it into the model");
  }
  for (const char* key : {"use_dora", "fan_in_fan_out"}) {
    FOLIO_ASSIGN_OR_RETURN(const bool on, OptionalBool(json, key));
    if (on) return Unsupported(key, json[key], "merge the adapter into the model");
  }
  // These ways to begin have changed the weights that the adapter is added to.
  const Json* const init = Find(json, "init_lora_weights");
  if (init != nullptr && !init->is_boolean() && *init != "gaussian" && *init != "eva" &&
      *init != "orthogonal") {
    return Unsupported("init_lora_weights", *init,
                       "convert it to one for the unchanged model (PEFT: "
                       "path_initial_model_for_weight_conversion)");
  }
  for (const auto& [key, value] : json.items()) {
    if (IsRead(key) || IsOfNoMatter(key) || IsOff(value)) continue;
    return Unsupported(key.c_str(), value, "merge the adapter into the model");
  }
  return absl::OkStatus();
}

absl::Status CheckName(const char* key, const std::string& name, const Json& value) {
  const auto plain = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; };
  if (!name.empty() && std::ranges::all_of(name, plain)) return absl::OkStatus();
  return Unsupported(key, value, "give names of modules instead of patterns");
}

absl::Status ReadTargets(const Json& json, std::vector<std::string>* targets) {
  constexpr char kKey[] = "target_modules";
  const Json* const value = Find(json, kKey);
  if (value == nullptr) return Bad(kKey, nullptr, "a list of names");
  if (*value == "all-linear") return absl::OkStatus();
  if (value->is_string()) return Unsupported(kKey, *value, "give a list of names");
  if (!value->is_array() || value->empty()) return Bad(kKey, *value, "a list of names");
  for (const Json& target : *value) {
    if (!target.is_string()) return Bad(kKey, *value, "a list of names");
    FOLIO_RETURN_IF_ERROR(CheckName(kKey, target.get<std::string>(), target));
    targets->push_back(target.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadLayers(const Json& json, std::vector<int>* layers) {
  constexpr char kKey[] = "layers_to_transform";
  const Json* const value = Find(json, kKey);
  if (value == nullptr) return absl::OkStatus();
  for (const Json& layer : value->is_array() ? *value : Json::array({*value})) {
    FOLIO_ASSIGN_OR_RETURN(const int index, ReadInt(layer, kKey, {0, kMaxLayerIndex}));
    layers->push_back(index);
  }
  return absl::OkStatus();
}

// Calls read(name, value) for each of the object's.
template <typename Read>
absl::Status ReadPatterns(const Json& json, const char* key, Read read) {
  const Json* const value = Find(json, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_object()) return Bad(key, *value, "an object with numbers by name");
  for (const auto& [name, number] : value->items()) {
    FOLIO_RETURN_IF_ERROR(CheckName(key, name, *value));
    FOLIO_RETURN_IF_ERROR(read(name, number));
  }
  return absl::OkStatus();
}

absl::StatusOr<AdapterConfig> ReadConfig(const Json& json) {
  AdapterConfig config;
  FOLIO_RETURN_IF_ERROR(CheckKeys(json));
  FOLIO_ASSIGN_OR_RETURN(config.rank, RequiredInt(json, "r", {1, kMaxAdapterRank}));
  const Json* const alpha = Find(json, "lora_alpha");
  if (alpha == nullptr) return Bad("lora_alpha", nullptr, "a number");
  FOLIO_ASSIGN_OR_RETURN(config.alpha, ReadDouble(*alpha, "lora_alpha", {0, kMaxAlpha}));
  FOLIO_ASSIGN_OR_RETURN(config.rank_stabilised, OptionalBool(json, "use_rslora"));
  FOLIO_RETURN_IF_ERROR(ReadTargets(json, &config.targets));
  FOLIO_RETURN_IF_ERROR(ReadLayers(json, &config.layers));
  FOLIO_RETURN_IF_ERROR(
      ReadPatterns(json, "rank_pattern", [&](const std::string& name, const Json& value) {
        const auto rank = ReadInt(value, "rank_pattern", {1, kMaxAdapterRank});
        if (rank.ok()) config.ranks.emplace_back(name, *rank);
        return rank.status();
      }));
  FOLIO_RETURN_IF_ERROR(
      ReadPatterns(json, "alpha_pattern", [&](const std::string& name, const Json& value) {
        const auto of_module = ReadDouble(value, "alpha_pattern", {0, kMaxAlpha});
        if (of_module.ok()) config.alphas.emplace_back(name, *of_module);
        return of_module.status();
      }));
  return config;
}

// The number of the pattern that is about the module, or `otherwise`.
template <typename Number>
absl::StatusOr<Number> NumberOf(const std::string& module, const char* key,
                                const std::vector<std::pair<std::string, Number>>& patterns,
                                Number otherwise) {
  const std::string* found = nullptr;
  for (const auto& [name, number] : patterns) {
    if (!NamesModule(name, module)) continue;
    if (found != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("'", key, "' has '", *found, "' and '", name,
                                                     "', which both name ", module,
                                                     "; leave one of them"));
    }
    found = &name;
    otherwise = number;
  }
  return otherwise;
}

}  // namespace

bool NamesModule(std::string_view name, std::string_view module) {
  if (!module.ends_with(name)) return false;
  return module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
}

absl::StatusOr<AdapterConfig::Numbers> AdapterConfig::NumbersOf(const std::string& module) const {
  Numbers numbers;
  FOLIO_ASSIGN_OR_RETURN(numbers.rank, NumberOf(module, "rank_pattern", ranks, rank));
  FOLIO_ASSIGN_OR_RETURN(const double of_module, NumberOf(module, "alpha_pattern", alphas, alpha));
  numbers.scale = of_module / (rank_stabilised ? std::sqrt(numbers.rank) : numbers.rank);
  return numbers;
}

absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& what, std::string_view text) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(what, text));
  auto config = ReadConfig(json);
  if (config.ok()) return config;
  return absl::Status(config.status().code(), absl::StrCat(what, ": ", config.status().message()));
}

}  // namespace folio
