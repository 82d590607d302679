#include "engine/model/layer_views_config.h"

#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr DoubleRange kCaps = {0, 1e6};
constexpr int kMaxWindow = 1 << 26;

// Whether each layer has a window.
absl::StatusOr<std::vector<bool>> WindowedLayers(const Json& json, const Family& family,
                                                 int num_layers) {
  std::vector<bool> windowed;
  const Json* types = Find(json, "layer_types");
  if (types == nullptr) {
    FOLIO_ASSIGN_OR_RETURN(const int period, OptionalInt(json, "sliding_window_pattern",
                                                         {1, 1 << 20}, family.full_layer_period));
    for (int layer = 0; layer < num_layers; ++layer) windowed.push_back((layer + 1) % period != 0);
    return windowed;
  }
  if (!types->is_array() || types->size() != static_cast<size_t>(num_layers)) {
    return Bad("layer_types", *types, absl::StrCat("a list of ", num_layers));
  }
  for (const Json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return Bad("layer_types", type, "\"sliding_attention\" or \"full_attention\"");
    }
    windowed.push_back(type == "sliding_attention");
  }
  return windowed;
}

// The default of the class only where the key is absent: null switches a cap off.
absl::StatusOr<float> ReadCap(const Json& json, const char* key, double otherwise) {
  FOLIO_ASSIGN_OR_RETURN(const double cap,
                         OptionalDouble(json, key, kCaps, json.contains(key) ? 0 : otherwise));
  return static_cast<float>(cap);
}

}  // namespace

absl::Status ReadLayerViews(const Json& json, const Family& family, ModelConfig* config) {
  if (family.full_layer_period == 0) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(const bool both, OptionalBool(json, "use_bidirectional_attention"));
  if (both) {
    return absl::UnimplementedError("\"use_bidirectional_attention\" is true; known: false");
  }
  const ModelShape& shape = config->shape;
  FOLIO_ASSIGN_OR_RETURN(const int window,
                         OptionalInt(json, "sliding_window", {1, kMaxWindow}, 4096));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<bool> windowed,
                         WindowedLayers(json, family, shape.num_layers));
  for (const bool has_window : windowed) {
    config->views.windows.push_back(has_window ? window : LayerViews::kAll);
  }
  const bool first = std::string_view(family.model_type) == "gemma2";
  FOLIO_ASSIGN_OR_RETURN(config->views.score_cap,
                         ReadCap(json, "attn_logit_softcapping", first ? 50 : 0));
  FOLIO_ASSIGN_OR_RETURN(config->style.logit_cap,
                         ReadCap(json, "final_logit_softcapping", first ? 30 : 0));
  FOLIO_ASSIGN_OR_RETURN(const double scalar,
                         OptionalDouble(json, "query_pre_attn_scalar", {0, 1e6}, 256));
  config->views.score_scale = static_cast<float>(std::sqrt(shape.head_dim / scalar));
  if (!first) {
    FOLIO_ASSIGN_OR_RETURN(config->window_rope_base,
                           OptionalDouble(json, "rope_local_base_freq", {1, 1e12}, 1e4));
  }
  config->positions = PositionKind::kByLayer;
  return absl::OkStatus();
}

}  // namespace folio
