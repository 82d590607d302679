#include "engine/model/packed_manifest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_tensors.h"

namespace folio {
namespace {

constexpr int kVersion = 1;
constexpr DType kCheckpointDTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

absl::StatusOr<std::string> RequiredString(const Json& json, const char* key) {
  FOLIO_ASSIGN_OR_RETURN(std::string text, OptionalString(json, key, ""));
  if (!text.empty()) return text;
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing or empty"));
}

absl::StatusOr<DType> DTypeNamed(const std::string& name) {
  for (const DType dtype : kCheckpointDTypes) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"dtype\" is \"", name.substr(0, 40), "\", expected fp32, fp16 or bf16"));
}

absl::StatusOr<std::vector<uint64_t>> Numbers(const Json& json, const char* key) {
  const Json* list = Find(json, key);
  const bool good = list != nullptr && list->is_array() &&
                    std::all_of(list->begin(), list->end(),
                                [](const Json& value) { return value.is_number_unsigned(); });
  if (good) return list->get<std::vector<uint64_t>>();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" must be a list of integers that are not negative"));
}

absl::StatusOr<TensorDigest> ReadDigest(const Json& json) {
  TensorDigest digest;
  FOLIO_ASSIGN_OR_RETURN(const std::string dtype, RequiredString(json, "dtype"));
  FOLIO_ASSIGN_OR_RETURN(digest.dtype, DTypeNamed(dtype));
  FOLIO_ASSIGN_OR_RETURN(const auto shape, Numbers(json, "shape"));
  digest.shape.assign(shape.begin(), shape.end());
  FOLIO_ASSIGN_OR_RETURN(const auto hash, Numbers(json, "xxh3_128"));
  if (hash.size() != digest.hash.size()) {
    return absl::InvalidArgumentError("\"xxh3_128\" must be two integers");
  }
  std::copy(hash.begin(), hash.end(), digest.hash.begin());
  return digest;
}

// An object whose values are objects or lists.
absl::StatusOr<const Json*> ObjectAt(const Json& json, const char* key) {
  const Json* object = Find(json, key);
  if (object != nullptr && object->is_object()) return object;
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" must be an object"));
}

}  // namespace

std::string PackedManifest::ToText() const {
  Json digests = Json::object();
  for (const auto& [name, digest] : sources) {
    digests[name] = {
        {"dtype", DTypeName(digest.dtype)}, {"shape", digest.shape}, {"xxh3_128", digest.hash}};
  }
  return Json{{"version", kVersion},           {"layout", layout},
              {"arrangement", arrangement},    {"weight_dtype", weight_dtype},
              {"weight_group", weight_group},  {"dtype", DTypeName(checkpoint_dtype)},
              {"sources", std::move(digests)}, {"part_bytes", part_bytes},
              {"checksums", checksums}}
      .dump();
}

absl::StatusOr<PackedManifest> PackedManifest::FromText(const std::string& text) {
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject("manifest", text));
  FOLIO_ASSIGN_OR_RETURN(const int version, RequiredInt(json, "version", {0, INT32_MAX}));
  if (version != kVersion) {
    return absl::UnimplementedError(absl::StrCat("the format has version ", version,
                                                 ", this program reads version ", kVersion));
  }
  PackedManifest manifest;
  FOLIO_ASSIGN_OR_RETURN(manifest.layout, RequiredString(json, "layout"));
  FOLIO_ASSIGN_OR_RETURN(manifest.arrangement, RequiredString(json, "arrangement"));
  FOLIO_ASSIGN_OR_RETURN(manifest.weight_dtype, RequiredString(json, "weight_dtype"));
  FOLIO_ASSIGN_OR_RETURN(manifest.weight_group, RequiredInt(json, "weight_group", {0, 128}));
  FOLIO_ASSIGN_OR_RETURN(const std::string dtype, RequiredString(json, "dtype"));
  FOLIO_ASSIGN_OR_RETURN(manifest.checkpoint_dtype, DTypeNamed(dtype));
  FOLIO_ASSIGN_OR_RETURN(manifest.part_bytes, RequiredInt(json, "part_bytes", {64, 1 << 30}));
  FOLIO_ASSIGN_OR_RETURN(const Json* sources, ObjectAt(json, "sources"));
  for (const auto& [name, digest] : sources->items()) {
    if (!digest.is_object()) return absl::InvalidArgumentError("\"sources\" must hold objects");
    FOLIO_ASSIGN_OR_RETURN(manifest.sources[name], ReadDigest(digest));
  }
  FOLIO_ASSIGN_OR_RETURN(const Json* checksums, ObjectAt(json, "checksums"));
  for (const auto& item : checksums->items()) {
    FOLIO_ASSIGN_OR_RETURN(manifest.checksums[item.key()], Numbers(*checksums, item.key().c_str()));
  }
  FOLIO_RETURN_IF_ERROR(manifest.Precision().status());
  return manifest;
}

absl::StatusOr<WeightPrecision> PackedManifest::Precision() const {
  return ParseWeightPrecision(weight_dtype, weight_group, checkpoint_dtype);
}

std::string ArrangementOf(const ModelConfig& config) {
  const DecoderStyle& style = config.style;
  const char* key = KeyTensor(config);
  return absl::StrCat(
      config.architecture, ", keys ", key == nullptr ? "in one tensor" : key, ", layout ",
      static_cast<int>(style.qkv_layout), ", ", config.shape.num_heads, " and ",
      config.shape.num_kv_heads, " heads of ", config.shape.head_dim, ", ", config.rope.rotary_dim,
      style.rotary_pairs == DecoderStyle::RotaryPairs::kInterleaved ? " interleaved" : " halves");
}

}  // namespace folio
