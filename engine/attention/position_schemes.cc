#include "engine/attention/position_schemes.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/attention/params.h"
#include "engine/attention/rope.h"
#include "engine/attention/rope_scaling.h"
#include "engine/attention/scaling_laws.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/types/limits.h"

namespace folio {
namespace {

using Params = std::vector<Param>;

constexpr double kMaxFactor = 4096;
constexpr double kMaxBase = 1e12;
constexpr double kMaxLength = 1e12;

std::shared_ptr<const Rotary> Share(Rotary rotary) {
  return std::make_shared<const Rotary>(std::move(rotary));
}

double Get(const PositionSpec& spec, const char* name) { return spec.Real(name); }

Param Factor(double otherwise) { return RealParam("factor", otherwise, 1, kMaxFactor); }

Param OriginalLength(const RopeModel& model) {
  return RealParam("original_length", model.original_length, 1, kMaxLength);
}

// Tokens for which a table is frozen: those of an inline request. A document's cache serves many
// questions, which all have to name the length it was read with.
Param FrozenLength(const PositionRequest& request) {
  const int64_t length = request.has_document ? 0 : request.total_tokens;
  return RealParam("length", static_cast<double>(length), 0, kMaxLength);
}

Params NoParams(const RopeModel&, const PositionRequest&) { return {}; }

double NoExtension(const PositionSpec&, const RopeModel&) { return 1; }

double FactorExtension(const PositionSpec& spec, const RopeModel&) { return Get(spec, "factor"); }

double BaseExtension(const PositionSpec& spec, const RopeModel& model) {
  const double length = model.original_length;
  return MaxExtrapolationLength(model.rotary_dim, model.base, length, Get(spec, "base"), length) /
         length;
}

PositionScheme Plain() {
  return {.name = "plain",
          .source = "Su et al. 2021, RoFormer",
          .params = NoParams,
          .extension = NoExtension,
          .plan = [](const PositionSpec&, const RopeModel& model) {
            return PositionPlan{.rotary = Share(BaseRotary(model, model.base))};
          }};
}

PositionScheme Linear() {
  return {.name = "linear",
          .source = "Chen et al. 2023, position interpolation",
          .column = PositionColumn::kStatic,
          .params = [](const RopeModel&, const PositionRequest&) { return Params{Factor(4)}; },
          .extension = FactorExtension,
          .plan =
              [](const PositionSpec& spec, const RopeModel& model) {
                return PositionPlan{.rotary = Share(LinearRotary(model, Get(spec, "factor")))};
              }};
}

PositionScheme Ntk() {
  return {.name = "ntk",
          .source = "bloc97 2023, NTK-aware scaled RoPE",
          .column = PositionColumn::kStatic,
          .params = [](const RopeModel&, const PositionRequest&) { return Params{Factor(4)}; },
          .extension = FactorExtension,
          .plan =
              [](const PositionSpec& spec, const RopeModel& model) {
                return PositionPlan{.rotary = Share(NtkRotary(model, Get(spec, "factor")))};
              }};
}

PositionScheme DynamicNtk() {
  return {
      .name = "dynamic_ntk",
      .source = "emozilla 2023, dynamically scaled RoPE; frozen at admission unless exact",
      .column = PositionColumn::kDynamic,
      .params =
          [](const RopeModel& model, const PositionRequest& request) {
            return Params{Factor(1), FlagParam("exact"), FrozenLength(request),
                          OriginalLength(model)};
          },
      .extension =
          [](const PositionSpec& spec, const RopeModel& model) {
            return std::max(1.0, Get(spec, "length") / model.trained_length);
          },
      .plan =
          [](const PositionSpec& spec, const RopeModel& model) {
            const DynamicBase dynamic = {model.base, Get(spec, "factor"),
                                         static_cast<int>(Get(spec, "original_length")),
                                         model.rotary_dim};
            if (spec.Flag("exact")) return PositionPlan{.dynamic_base = dynamic};
            const auto length = static_cast<int64_t>(Get(spec, "length"));
            return PositionPlan{.rotary = Share(DynamicRotary(dynamic, model.head_dim, length))};
          }};
}

PositionPlan YarnPlan(const PositionSpec& spec, const RopeModel& model, double attention_factor) {
  return {.rotary = Share(YarnRotary(model, {.factor = Get(spec, "factor"),
                                             .beta_fast = Get(spec, "beta_fast"),
                                             .beta_slow = Get(spec, "beta_slow"),
                                             .original_length = Get(spec, "original_length"),
                                             .attention_factor = attention_factor}))};
}

Params RampParams(const RopeModel& model, const PositionRequest&) {
  return {Factor(4), RealParam("beta_fast", 32, 1e-3, 1e6), RealParam("beta_slow", 1, 1e-3, 1e6),
          OriginalLength(model)};
}

PositionScheme NtkByParts() {
  return {.name = "ntk_by_parts",
          .source = "Peng et al. 2023, YaRN section 3.2",
          .column = PositionColumn::kStatic,
          .params = RampParams,
          .extension = FactorExtension,
          .plan = [](const PositionSpec& spec, const RopeModel& model) {
            return YarnPlan(spec, model, 1);
          }};
}

PositionScheme Yarn() {
  return {.name = "yarn",
          .source = "Peng et al. 2023, YaRN",
          .column = PositionColumn::kStatic,
          .params =
              [](const RopeModel& model, const PositionRequest& request) {
                Params params = RampParams(model, request);
                // 0: 0.1 ln(factor) + 1.
                params.push_back(RealParam("attention_factor", 0, 0, 100));
                return params;
              },
          .extension = FactorExtension,
          .plan =
              [](const PositionSpec& spec, const RopeModel& model) {
                const double given = Get(spec, "attention_factor");
                return YarnPlan(spec, model,
                                given > 0 ? given : YarnAttentionFactor(Get(spec, "factor")));
              }};
}

PositionScheme Llama3() {
  return {.name = "llama3",
          .source = "Llama 3.1 (Meta 2024)",
          .column = PositionColumn::kStatic,
          .params =
              [](const RopeModel& model, const PositionRequest&) {
                return Params{Factor(8), RealParam("low_freq_factor", 1, 1e-3, 1e6),
                              RealParam("high_freq_factor", 4, 1e-3, 1e6), OriginalLength(model)};
              },
          .extension = FactorExtension,
          .plan =
              [](const PositionSpec& spec, const RopeModel& model) {
                return PositionPlan{.rotary = Share(Llama3Rotary(
                                        model, {.factor = Get(spec, "factor"),
                                                .low_freq_factor = Get(spec, "low_freq_factor"),
                                                .high_freq_factor = Get(spec, "high_freq_factor"),
                                                .original_length = Get(spec, "original_length")}))};
              }};
}

PositionScheme LongRope() {
  return {
      .name = "longrope",
      .source = "Ding et al. 2024, LongRoPE",
      .column = PositionColumn::kStatic,
      .checkpoint_only = true,
      .params =
          [](const RopeModel& model, const PositionRequest& request) {
            // A document is taken to be long.
            const bool is_inline = request.total_tokens > 0 && !request.has_document;
            const auto length =
                static_cast<double>(is_inline ? request.total_tokens : model.trained_length);
            const double factor = static_cast<double>(model.trained_length) / model.original_length;
            const double otherwise =
                factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(model.original_length));
            return Params{RealParam("length", length, 1, kMaxLength),
                          RealParam("attention_factor", otherwise, 0, 100), OriginalLength(model)};
          },
      .extension = NoExtension,
      .plan =
          [](const PositionSpec& spec, const RopeModel& model) {
            const bool use_long = Get(spec, "length") > Get(spec, "original_length");
            return PositionPlan{
                .rotary = Share(LongRopeRotary(model, use_long, Get(spec, "attention_factor")))};
          }};
}

PositionScheme Abf() {
  return {.name = "abf",
          .source = "Xiong et al. 2023, adjusted base frequency",
          .column = PositionColumn::kStatic,
          .tuned = true,
          .params =
              [](const RopeModel&, const PositionRequest&) {
                return Params{RealParam("base", 500000, 1.001, kMaxBase)};
              },
          .extension = BaseExtension,
          .plan =
              [](const PositionSpec& spec, const RopeModel& model) {
                return PositionPlan{.rotary = Share(BaseRotary(model, Get(spec, "base")))};
              }};
}

PositionScheme EntropyAbf() {
  return {.name = "entropy_abf",
          .source = "Zhang et al. 2024, entropy-aware ABF",
          .column = PositionColumn::kEntropy,
          .tuned = true,
          .params =
              [](const RopeModel& model, const PositionRequest&) {
                return Params{RealParam("base", 500000, 1.001, kMaxBase),
                              RealParam("base_length",
                                        static_cast<double>(std::max(2, model.original_length)), 2,
                                        kMaxLength),
                              IntegerParam("exempt_layers", 2, 0, kMaxLayers)};
              },
          .extension = NoExtension,
          .plan =
              [](const PositionSpec& spec, const RopeModel& model) {
                return PositionPlan{.rotary = Share(BaseRotary(model, Get(spec, "base"))),
                                    .entropy = {Get(spec, "base_length"),
                                                static_cast<int>(spec.Int("exempt_layers"))}};
              }};
}

// Rules that involve the request.
absl::Status CheckRequest(const PositionSpec& spec, const RopeModel& model,
                          const PositionRequest& request) {
  if (spec.name == "longrope" && model.long_factors.empty()) {
    return absl::InvalidArgumentError(
        "longrope needs the lists of factors of a checkpoint made with it; this one has none");
  }
  if (spec.name != "dynamic_ntk") return absl::OkStatus();
  if (spec.Flag("exact")) {
    if (request.total_tokens > 0 && !request.has_document) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "dynamic_ntk.exact needs the length of the prompt before its first token is read: send the "
        "text inline instead of uploading it, or use the frozen form with dynamic_ntk.length");
  }
  const auto length = static_cast<int64_t>(Get(spec, "length"));
  if (length == 0) {
    return absl::InvalidArgumentError(
        "dynamic_ntk needs dynamic_ntk.length for a document, the same for upload and questions: "
        "the "
        "tokens of document, longest question and answer together");
  }
  if (length < request.total_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("dynamic_ntk.length is ", length,
                                                   ", prompt and answer are ", request.total_tokens,
                                                   " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<PositionScheme>& AllPositionSchemes() {
  static const std::vector<PositionScheme> schemes = {
      Plain(), Linear(), Ntk(),      DynamicNtk(), NtkByParts(),
      Yarn(),  Llama3(), LongRope(), Abf(),        EntropyAbf(),
  };
  return schemes;
}

const PositionScheme* FindPositionScheme(const std::string& name) {
  for (const PositionScheme& scheme : AllPositionSchemes()) {
    if (scheme.name == name) return &scheme;
  }
  return nullptr;
}

absl::StatusOr<PositionSpec> ResolvePositionSpec(const PositionSpec& given, const RopeModel& model,
                                                 const PositionRequest& request) {
  const PositionSpec& spec = given.name.empty() ? model.scheme : given;
  const PositionScheme* scheme = FindPositionScheme(spec.name);
  if (scheme == nullptr) {
    const auto append_name = [](std::string* out, const PositionScheme& s) { out->append(s.name); };
    return absl::InvalidArgumentError(
        absl::StrCat("unknown position scheme ", Quoted(spec.name),
                     ", must be one of: ", absl::StrJoin(AllPositionSchemes(), ", ", append_name)));
  }
  PositionSpec resolved;
  resolved.name = spec.name;
  FOLIO_ASSIGN_OR_RETURN(resolved.params,
                         ResolveParams(spec.name, scheme->params(model, request), spec.params));
  FOLIO_RETURN_IF_ERROR(CheckRequest(resolved, model, request));
  return resolved;
}

absl::StatusOr<Rotary> CheckpointRotary(const RopeModel& model) {
  if (FindPositionScheme(model.scheme.name)->column == PositionColumn::kDynamic) {
    return BaseRotary(model, model.base);
  }
  FOLIO_ASSIGN_OR_RETURN(const PositionSpec own, ResolvePositionSpec({}, model, {}));
  return *FindPositionScheme(own.name)->plan(own, model).rotary;
}

}  // namespace folio
