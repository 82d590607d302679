#include "engine/model/safetensors_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/json_document.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxNameBytes = 512;
constexpr size_t kMaxRank = 32;

struct DTypeBits {
  const char* name;
  int bits;
};

// The dtypes of the format; those below one byte must fill whole bytes.
constexpr std::array<DTypeBits, 20> kDTypes = {{
    {"BOOL", 8}, {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

std::optional<int> BitsOf(const std::string& dtype) {
  for (const DTypeBits& known : kDTypes) {
    if (dtype == known.name) return known.bits;
  }
  return std::nullopt;
}

std::optional<DType> LoadableDType(const std::string& dtype) {
  if (dtype == "F32") return DType::kF32;
  if (dtype == "F16") return DType::kF16;
  if (dtype == "BF16") return DType::kBf16;
  if (dtype == "I32") return DType::kI32;
  return std::nullopt;
}

std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 100 ? text : absl::StrCat(text.substr(0, 100), "...");
}

absl::Status Bad(const std::string& tensor, const std::string& problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor \"", tensor.substr(0, kMaxNameBytes), "\": ", problem));
}

// nullptr when the key is absent or not an array.
const Json* FindArray(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || !it->is_array() ? nullptr : &*it;
}

absl::Status ReadShape(const std::string& name, const Json& json, SafetensorsEntry* entry) {
  const Json* shape = FindArray(json, "shape");
  if (shape == nullptr || shape->size() > kMaxRank) {
    return Bad(name, absl::StrCat("\"shape\" must be a list of at most ", kMaxRank, " numbers"));
  }
  for (const Json& dim : *shape) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > INT64_MAX) {
      return Bad(name, absl::StrCat("\"shape\" is ", Shown(*shape),
                                    ", dims must be integers and not negative"));
    }
    entry->shape.push_back(dim.get<int64_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadOffsets(const std::string& name, const Json& json, uint64_t data_bytes,
                         SafetensorsEntry* entry) {
  const Json* offsets = FindArray(json, "data_offsets");
  if (offsets == nullptr || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned()) {
    return Bad(name, "\"data_offsets\" must be a list of two integers that are not negative");
  }
  entry->begin = (*offsets)[0].get<uint64_t>();
  entry->end = (*offsets)[1].get<uint64_t>();
  if (entry->begin > entry->end || entry->end > data_bytes) {
    return Bad(name, absl::StrCat("\"data_offsets\" is ", Shown(*offsets),
                                  ", must be in order and inside the file's ", data_bytes,
                                  " data bytes; a file that was cut short looks like this"));
  }
  return absl::OkStatus();
}

absl::Status CheckByteCount(const std::string& name, const SafetensorsEntry& entry) {
  const std::optional<int> bits = BitsOf(entry.dtype);
  if (!bits) return Bad(name, absl::StrCat("\"dtype\" is unknown: ", entry.dtype.substr(0, 40)));
  uint64_t total_bits = static_cast<uint64_t>(*bits);
  for (const int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(total_bits, static_cast<uint64_t>(dim), &total_bits)) {
      return Bad(name, "\"shape\" overflows 64 bits");
    }
  }
  if (total_bits % 8 != 0 || total_bits / 8 != entry.end - entry.begin) {
    return Bad(name,
               absl::StrCat("\"shape\" and \"dtype\" ", entry.dtype, " need ", total_bits,
                            " bits, \"data_offsets\" hold ", entry.end - entry.begin, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsEntry> ReadEntry(const std::string& name, const Json& json,
                                           uint64_t data_bytes) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return Bad(name, absl::StrCat("the name must have 1 to ", kMaxNameBytes, " bytes"));
  }
  if (!json.is_object()) return Bad(name, "must be a JSON object");
  SafetensorsEntry entry;
  const auto dtype = json.find("dtype");
  if (dtype == json.end() || !dtype->is_string()) return Bad(name, "\"dtype\" must be a string");
  entry.dtype = dtype->get<std::string>();
  FOLIO_RETURN_IF_ERROR(ReadShape(name, json, &entry));
  FOLIO_RETURN_IF_ERROR(ReadOffsets(name, json, data_bytes, &entry));
  FOLIO_RETURN_IF_ERROR(CheckByteCount(name, entry));
  return entry;
}

// Every byte of the data belongs to exactly one tensor.
absl::Status CheckLayout(const SafetensorsEntries& entries, uint64_t data_bytes) {
  std::vector<const SafetensorsEntries::value_type*> order;
  for (const auto& item : entries) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  uint64_t next = 0;
  for (const auto* item : order) {
    const auto& [name, entry] = *item;
    if (entry.begin != next) {
      return Bad(name, absl::StrCat("begins at data byte ", entry.begin, ", expected ", next,
                                    entry.begin < next ? " (overlap)" : " (hole)"));
    }
    next = entry.end;
  }
  if (next != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at data byte ", next, ", but the file holds ", data_bytes));
  }
  return absl::OkStatus();
}

absl::Status ReadMetadata(const Json& json, SafetensorsMetadata* metadata) {
  const bool good = json.is_object() && std::all_of(json.begin(), json.end(),
                                                    [](const Json& v) { return v.is_string(); });
  if (!good) return absl::InvalidArgumentError("\"__metadata__\" must be an object of strings");
  if (metadata == nullptr) return absl::OkStatus();
  for (const auto& [key, text] : json.items()) (*metadata)[key] = text.get<std::string>();
  return absl::OkStatus();
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

absl::StatusOr<SafetensorsEntries> ParseSafetensorsHeader(std::string_view header,
                                                          uint64_t data_bytes,
                                                          SafetensorsMetadata* metadata) {
  if (header.size() > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the header has ", header.size(),
                                                   " bytes, limit ", kMaxSafetensorsHeaderBytes));
  }
  if (header.empty() || header.front() != '{') {
    return absl::InvalidArgumentError("the header must begin with {");
  }
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject("header", header));
  SafetensorsEntries entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      FOLIO_RETURN_IF_ERROR(ReadMetadata(value, metadata));
      continue;
    }
    FOLIO_ASSIGN_OR_RETURN(entries[name], ReadEntry(name, value, data_bytes));
  }
  FOLIO_RETURN_IF_ERROR(CheckLayout(entries, data_bytes));
  return entries;
}

SafetensorsFile::SafetensorsFile(InputFile file, uint64_t data_offset, SafetensorsEntries entries,
                                 SafetensorsMetadata metadata)
    : file_(std::move(file)),
      data_offset_(data_offset),
      entries_(std::move(entries)),
      metadata_(std::move(metadata)) {}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  FOLIO_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  uint64_t header_bytes = 0;
  if (file.size_bytes() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file.size_bytes(), " bytes, no safetensors file"));
  }
  FOLIO_RETURN_IF_ERROR(file.Read(0, kLengthBytes, &header_bytes));
  const uint64_t rest_bytes = file.size_bytes() - kLengthBytes;
  if (header_bytes > std::min(rest_bytes, kMaxSafetensorsHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": says that its header has ", header_bytes, " bytes, the file has ",
                     rest_bytes, " after the length, limit ", kMaxSafetensorsHeaderBytes));
  }
  std::string header(header_bytes, '\0');
  FOLIO_RETURN_IF_ERROR(file.Read(kLengthBytes, header.size(), header.data()));
  SafetensorsMetadata metadata;
  absl::StatusOr<SafetensorsEntries> entries =
      ParseSafetensorsHeader(header, rest_bytes - header_bytes, &metadata);
  if (!entries.ok()) return WithPath(path, entries.status());
  return SafetensorsFile(std::move(file), kLengthBytes + header_bytes, *std::move(entries),
                         std::move(metadata));
}

absl::StatusOr<const SafetensorsEntry*> SafetensorsFile::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it != entries_.end()) return &it->second;
  return absl::NotFoundError(absl::StrCat(path(), ": has no tensor \"", name, "\""));
}

absl::StatusOr<TensorView> SafetensorsFile::Describe(const std::string& name) const {
  FOLIO_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, Find(name));
  const std::optional<DType> dtype = LoadableDType(entry->dtype);
  TensorView view;
  if (!dtype || entry->shape.size() > view.shape.size()) {
    return WithPath(
        path(), absl::UnimplementedError(absl::StrCat(
                    "tensor \"", name, "\" has dtype ", entry->dtype, " and rank ",
                    entry->shape.size(), "; known: F32, F16, BF16, I32 with a rank of at most 4")));
  }
  view.dtype = *dtype;
  view.rank = static_cast<int>(entry->shape.size());
  std::copy(entry->shape.begin(), entry->shape.end(), view.shape.begin());
  return view;
}

absl::StatusOr<OwnedTensor> SafetensorsFile::Tensor(const std::string& name) const {
  FOLIO_ASSIGN_OR_RETURN(const TensorView shape, Describe(name));
  const uint64_t begin = data_offset_ + entries_.at(name).begin;
  OwnedTensor tensor = OwnedTensor::Like(shape);
  FOLIO_RETURN_IF_ERROR(
      file_.Read(begin, static_cast<size_t>(shape.num_bytes()), tensor.data.get()));
  return tensor;
}

absl::Status SafetensorsFile::ReadBytes(const SafetensorsEntry& entry, uint64_t offset,
                                        std::span<std::byte> to) const {
  return file_.Read(data_offset_ + entry.begin + offset, to.size(), to.data());
}

}  // namespace folio
