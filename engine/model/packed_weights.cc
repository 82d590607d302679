#include "engine/model/packed_weights.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/checksum.h"
#include "engine/base/status_macros.h"
#include "engine/model/model_tensors.h"
#include "engine/model/safetensors_writer.h"

namespace folio {
namespace {

// Keys of the safetensors metadata.
constexpr char kManifestKey[] = "folio_manifest";
constexpr char kChecksumKey[] = "folio_manifest_xxh3";

constexpr char kMakeAgain[] =
    "; copy the file again, or make it again: folio-make-model --quantise";

absl::Status Refused(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message(), kMakeAgain));
}

std::string ChecksumText(const std::string& text) {
  return absl::StrCat(absl::Hex(Checksum(std::as_bytes(std::span(text))), absl::kZeroPad16));
}

std::span<const std::byte> BytesOf(const WeightPart& part) {
  if (part.matrix != nullptr) return (*part.matrix)->packed();
  return std::as_bytes(std::span<const float>(*part.vector));
}

std::vector<uint64_t> ChecksumsOf(std::span<const std::byte> bytes, int64_t part_bytes) {
  std::vector<uint64_t> checksums;
  while (!bytes.empty()) {
    const size_t size = std::min(bytes.size(), static_cast<size_t>(part_bytes));
    checksums.push_back(Checksum(bytes.first(size)));
    bytes = bytes.subspan(size);
  }
  return checksums;
}

}  // namespace

bool HasPackedWeights(const std::string& dir) {
  std::error_code error;
  return std::filesystem::exists(absl::StrCat(dir, "/", kPackedFile), error);
}

absl::StatusOr<PackedWeights> PackedWeights::Open(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kPackedFile);
  auto file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat(file.status().message(), kMakeAgain));
  }
  const SafetensorsMetadata& metadata = file->metadata();
  const auto text = metadata.find(kManifestKey);
  const auto checksum = metadata.find(kChecksumKey);
  if (text == metadata.end() || checksum == metadata.end()) {
    return Refused(absl::InvalidArgumentError("has no manifest of packed weights"), path);
  }
  if (ChecksumText(text->second) != checksum->second) {
    return Refused(absl::DataLossError("its manifest is damaged"), path);
  }
  auto manifest = PackedManifest::FromText(text->second);
  if (!manifest.ok()) return Refused(manifest.status(), path);
  FOLIO_ASSIGN_OR_RETURN(const WeightPrecision precision, manifest->Precision());
  return PackedWeights(*std::move(file), *std::move(manifest), precision);
}

absl::Status PackedWeights::Check(const ModelConfig& config) const {
  Weights none;
  const std::vector<WeightPart> parts = PartsOf(config, precision_, &none);
  absl::Status status = CheckSources(config);
  for (const WeightPart& part : parts) status.Update(CheckPart(part));
  if (status.ok() && parts.size() != file_.entries().size()) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "has ", file_.entries().size(), " tensors, config.json asks for ", parts.size()));
  }
  return status.ok() ? status : Refused(status, path());
}

absl::Status PackedWeights::CheckSources(const ModelConfig& config) const {
  if (const std::string asked = ArrangementOf(config); asked != manifest_.arrangement) {
    return absl::InvalidArgumentError(absl::StrCat("was packed for a model of ",
                                                   manifest_.arrangement.substr(0, 200),
                                                   "; config.json asks for ", asked));
  }
  for (const TensorSpec& spec : ModelTensors(config)) {
    const auto source = manifest_.sources.find(spec.name);
    if (source != manifest_.sources.end() && source->second.shape == spec.shape) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("was made of a checkpoint without a tensor \"", spec.name, "\" of shape [",
                     absl::StrJoin(spec.shape, ", "), "], which config.json asks for"));
  }
  return absl::OkStatus();
}

absl::Status PackedWeights::CheckPart(const WeightPart& part) const {
  const auto entry = file_.entries().find(part.name);
  if (entry == file_.entries().end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has no \"", part.name, "\", which config.json asks for"));
  }
  const auto [dtype, shape, begin, end] = entry->second;
  const auto num_bytes = static_cast<int64_t>(end - begin);
  const bool is_vector = part.vector != nullptr;
  if (dtype != (is_vector ? "F32" : "U8") || (is_vector && num_bytes != 4 * part.rows)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", part.name, "\" is ", num_bytes, " bytes of ", dtype, ", expected ",
                     is_vector ? absl::StrCat(part.rows, " numbers of F32") : "U8"));
  }
  const auto checksums = manifest_.checksums.find(part.name);
  const int64_t parts = (num_bytes + manifest_.part_bytes - 1) / manifest_.part_bytes;
  if (checksums != manifest_.checksums.end() &&
      static_cast<int64_t>(checksums->second.size()) == parts) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("its manifest has not ", parts, " checksums of \"", part.name, "\""));
}

absl::Status PackedWeights::ReadPart(const std::string& name, int64_t offset,
                                     std::span<std::byte> to) const {
  const auto begin = static_cast<uint64_t>(offset);
  FOLIO_RETURN_IF_ERROR(file_.ReadBytes(file_.entries().at(name), begin, to));
  if (Checksum(to) == manifest_.checksums.at(name)[offset / manifest_.part_bytes]) {
    return absl::OkStatus();
  }
  return Refused(absl::DataLossError(absl::StrCat("bytes ", offset, " to ", offset + to.size(),
                                                  " of \"", name, "\" are not what was written")),
                 path());
}

absl::Status PackedWeights::ReadMatrix(const WeightPart& part, Backend* backend) const {
  const SafetensorsEntry& entry = file_.entries().at(part.name);
  auto matrix = backend->ReadPacked(
      {part.rows, part.cols, precision_.dtype, part.format},
      static_cast<int64_t>(entry.end - entry.begin), manifest_.part_bytes,
      [&](int64_t offset, std::span<std::byte> to) { return ReadPart(part.name, offset, to); });
  if (absl::IsInvalidArgument(matrix.status())) {
    const std::string problem = absl::StrCat("\"", part.name, "\": ", matrix.status().message());
    return Refused(absl::InvalidArgumentError(problem), path());
  }
  FOLIO_ASSIGN_OR_RETURN(*part.matrix, std::move(matrix));
  return absl::OkStatus();
}

absl::Status PackedWeights::ReadVector(const WeightPart& part, Backend* backend) const {
  std::vector<float> values(part.rows);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
  for (size_t offset = 0; offset < bytes.size();) {
    const size_t size = std::min<size_t>(manifest_.part_bytes, bytes.size() - offset);
    FOLIO_RETURN_IF_ERROR(
        ReadPart(part.name, static_cast<int64_t>(offset), bytes.subspan(offset, size)));
    offset += size;
  }
  FOLIO_ASSIGN_OR_RETURN(*part.vector, BufferOf<float>::CopyOf(backend->memory(), values));
  return absl::OkStatus();
}

absl::StatusOr<Weights> PackedWeights::Load(const ModelConfig& config, Backend* backend) const {
  if (backend->packed_layout() != manifest_.layout) {
    return absl::FailedPreconditionError(absl::StrCat(
        path(), ": was packed as ", manifest_.layout.substr(0, 100), ", which the backend ",
        backend->name(), " does not read; give --model the checkpoint that it was made of",
        backend->packed_layout().empty() ? ", or take --device cpu" : ", or make it again"));
  }
  Weights weights;
  for (const WeightPart& part : PartsOf(config, precision_, &weights)) {
    FOLIO_RETURN_IF_ERROR(part.matrix != nullptr ? ReadMatrix(part, backend)
                                                 : ReadVector(part, backend));
  }
  return weights;
}

absl::Status WritePackedWeights(const std::string& dir, const ModelConfig& config,
                                const Backend& backend, PackedManifest manifest, Weights* weights) {
  manifest.layout = backend.packed_layout();
  if (manifest.layout.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("matrices of the backend ", backend.name(), " are not kept in files"));
  }
  manifest.arrangement = ArrangementOf(config);
  FOLIO_ASSIGN_OR_RETURN(const WeightPrecision precision, manifest.Precision());
  const std::vector<WeightPart> parts = PartsOf(config, precision, weights);
  std::vector<SafetensorsItem> items;
  for (const WeightPart& part : parts) {
    const std::span<const std::byte> bytes = BytesOf(part);
    manifest.checksums[part.name] = ChecksumsOf(bytes, manifest.part_bytes);
    const bool is_matrix = part.matrix != nullptr;
    const auto size = is_matrix ? static_cast<int64_t>(bytes.size()) : part.rows;
    items.push_back({.name = part.name, .shape = {size}, .bytes = is_matrix});
  }
  const std::string text = manifest.ToText();
  FOLIO_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(absl::StrCat(dir, "/", kPackedFile), DType::kF32, items,
                                {{kManifestKey, text}, {kChecksumKey, ChecksumText(text)}}));
  for (const WeightPart& part : parts) {
    const std::span<const std::byte> bytes = BytesOf(part);
    FOLIO_RETURN_IF_ERROR(
        writer.Append({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  return writer.Finish();
}

}  // namespace folio
