#include "engine/model/generation_config.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"

namespace folio {
namespace {

constexpr int kMaxTopK = 1 << 30;

absl::StatusOr<SamplingParams> ReadSampling(const Json& json) {
  SamplingParams sampling;
  FOLIO_ASSIGN_OR_RETURN(const bool draws, OptionalBool(json, "do_sample"));
  double temperature = 0;
  if (draws) {
    FOLIO_ASSIGN_OR_RETURN(temperature, OptionalDouble(json, "temperature", {0, 100}, 1));
  }
  FOLIO_ASSIGN_OR_RETURN(sampling.top_k, OptionalInt(json, "top_k", {0, kMaxTopK}, 50));
  FOLIO_ASSIGN_OR_RETURN(const double top_p, OptionalDouble(json, "top_p", {0, 1}, 1));
  FOLIO_ASSIGN_OR_RETURN(const double penalty,
                         OptionalDouble(json, "repetition_penalty", {0, 10}, 1));
  sampling.temperature = static_cast<float>(temperature);
  sampling.top_p = static_cast<float>(top_p);
  sampling.repetition_penalty = static_cast<float>(penalty);
  return sampling;
}

}  // namespace

absl::Status AddGenerationConfig(std::string_view text, ModelConfig* config) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject("generation_config.json", text));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                         ReadTokenIds(json, "eos_token_id", -1, config->shape.vocab_size));
  std::vector<int32_t>& known = config->eos_token_ids;
  for (const int32_t id : ids) {
    if (std::find(known.begin(), known.end(), id) == known.end()) known.push_back(id);
  }
  FOLIO_ASSIGN_OR_RETURN(config->sampling, ReadSampling(json));
  return absl::OkStatus();
}

}  // namespace folio
