#include "engine/model/rope_config.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr DoubleRange kPositive = {0, 1e6};

// Hugging Face's name of a type and ours.
constexpr std::pair<const char*, const char*> kTypes[] = {
    {"default", "plain"}, {"linear", "linear"},     {"dynamic", "dynamic_ntk"}, {"yarn", "yarn"},
    {"llama3", "llama3"}, {"longrope", "longrope"}, {"su", "longrope"},
};

absl::StatusOr<std::string> SchemeName(const Json& scaling, const char* key) {
  const Json* type = Find(scaling, "rope_type");
  if (type == nullptr) type = Find(scaling, "type");
  if (type == nullptr && Find(scaling, "factor") == nullptr) return std::string("plain");
  if (type == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" has no \"rope_type\""));
  }
  for (const auto& [theirs, ours] : kTypes) {
    if (*type == theirs) return std::string(ours);
  }
  return absl::UnimplementedError(
      absl::StrCat("\"", key, "\" has the type ", Shown(*type),
                   "; known: default, linear, dynamic, yarn, llama3, longrope"));
}

// Copies a number under its own name, if it is there.
absl::Status CopyNumber(const Json& scaling, const char* key, PositionSpec* scheme) {
  const Json* value = Find(scaling, key);
  if (value == nullptr) return absl::OkStatus();
  FOLIO_ASSIGN_OR_RETURN(const double number, ReadDouble(*value, key, kPositive));
  scheme->params.emplace_back(key, number);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> Factors(const Json& scaling, const char* key, size_t count) {
  const Json* list = Find(scaling, key);
  const std::string expected = absl::StrCat("a list of ", count, " positive numbers");
  if (list == nullptr) return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing"));
  if (!list->is_array() || list->size() != count) return Bad(key, *list, expected);
  std::vector<double> factors;
  for (const Json& value : *list) {
    FOLIO_ASSIGN_OR_RETURN(const double factor, ReadDouble(value, key, kPositive));
    factors.push_back(factor);
  }
  return factors;
}

absl::Status ReadScheme(const Json& json, const Json& scaling, const char* key, RopeModel* rope) {
  FOLIO_ASSIGN_OR_RETURN(rope->scheme.name, SchemeName(scaling, key));
  const std::string& name = rope->scheme.name;
  if (name == "plain") return absl::OkStatus();
  if (Find(scaling, "mscale") != nullptr || Find(scaling, "mscale_all_dim") != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("\"", key, "\" has mscale; known: attention_factor"));
  }
  FOLIO_ASSIGN_OR_RETURN(const bool truncate, OptionalBool(scaling, "truncate", true));
  if (!truncate) {
    return absl::UnimplementedError(absl::StrCat("\"", key, "\" has truncate false; known: true"));
  }
  const IntRange lengths = {1, 1 << 30};
  FOLIO_ASSIGN_OR_RETURN(const int of_model, OptionalInt(json, "original_max_position_embeddings",
                                                         lengths, rope->trained_length));
  FOLIO_ASSIGN_OR_RETURN(
      rope->original_length,
      OptionalInt(scaling, "original_max_position_embeddings", lengths, of_model));
  if (name == "longrope") {
    const size_t count = rope->rotary_dim / 2;
    FOLIO_ASSIGN_OR_RETURN(rope->short_factors, Factors(scaling, "short_factor", count));
    FOLIO_ASSIGN_OR_RETURN(rope->long_factors, Factors(scaling, "long_factor", count));
    return CopyNumber(scaling, "attention_factor", &rope->scheme);
  }
  if (Find(scaling, "factor") == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" has no \"factor\""));
  }
  std::vector<const char*> numbers = {"factor"};
  if (name == "yarn") {
    numbers.insert(numbers.end(), {"beta_fast", "beta_slow", "attention_factor"});
  }
  if (name == "llama3") numbers.insert(numbers.end(), {"low_freq_factor", "high_freq_factor"});
  for (const char* number : numbers) {
    FOLIO_RETURN_IF_ERROR(CopyNumber(scaling, number, &rope->scheme));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RopeModel> ReadRope(const Json& json, const Family& family,
                                   const ModelShape& shape) {
  RopeModel rope;
  rope.head_dim = shape.head_dim;
  rope.trained_length = rope.original_length = shape.trained_length;
  // Newer files keep everything inside rope_parameters.
  const Json* parameters = Find(json, "rope_parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    return Bad("rope_parameters", *parameters, "an object or null");
  }
  const auto home = [&](const char* key) -> const Json& {
    return parameters != nullptr && Find(*parameters, key) != nullptr ? *parameters : json;
  };
  const DoubleRange bases = {1, 1e12};
  const DoubleRange parts = {0, 1};
  FOLIO_ASSIGN_OR_RETURN(const double older_base,
                         OptionalDouble(json, "rotary_emb_base", bases, family.default_rope_base));
  FOLIO_ASSIGN_OR_RETURN(rope.base,
                         OptionalDouble(home("rope_theta"), "rope_theta", bases, older_base));
  FOLIO_ASSIGN_OR_RETURN(const double older_part,
                         OptionalDouble(json, "rotary_pct", parts, family.default_rotary_part));
  FOLIO_ASSIGN_OR_RETURN(
      const double part,
      OptionalDouble(home("partial_rotary_factor"), "partial_rotary_factor", parts, older_part));
  const int default_dim = family.default_rotary_dim > 0 ? family.default_rotary_dim
                                                        : static_cast<int>(shape.head_dim * part);
  FOLIO_ASSIGN_OR_RETURN(rope.rotary_dim,
                         OptionalInt(json, "rotary_dim", {2, shape.head_dim}, default_dim));
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > shape.head_dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"partial_rotary_factor\" or \"rotary_dim\" rotates ", rope.rotary_dim,
                     " of the ", shape.head_dim,
                     " elements of a head, expected an even number of at least 2 and at most all"));
  }
  const char* key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* scaling = Find(json, key);
  if (scaling == nullptr) return rope;
  if (!scaling->is_object()) return Bad(key, *scaling, "an object or null");
  FOLIO_RETURN_IF_ERROR(ReadScheme(json, *scaling, key, &rope));
  return rope;
}

}  // namespace folio
