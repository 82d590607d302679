#include "engine/model/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "engine/base/for_all.h"
#include "engine/base/status_macros.h"
#include "engine/model/gguf_blocks.h"

namespace folio {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF data is little endian");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kOldestVersion = 2;
constexpr uint32_t kNewestVersion = 3;
constexpr size_t kMaxNameBytes = 512;
// Each takes many times its bytes in memory.
constexpr uint64_t kMaxPairs = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 17;
constexpr uint64_t kMaxListEntries = 1 << 22;  // of all lists together
constexpr uint32_t kMaxAlignment = 1 << 20;
constexpr uint32_t kMaxRank = 4;
constexpr int64_t kReadBytes = 1 << 20;

// Types of values.
enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

// Reads values off the front of the header.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  uint64_t at() const { return size_ - rest_.size(); }
  uint64_t left() const { return rest_.size(); }

  template <typename T>
  absl::StatusOr<T> Number() {
    static_assert(std::is_arithmetic_v<T>);
    if (rest_.size() < sizeof(T)) return Ends();
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  absl::StatusOr<std::string> String() {
    FOLIO_ASSIGN_OR_RETURN(const uint64_t size, Number<uint64_t>());
    if (size > rest_.size()) return Ends();
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }

 private:
  absl::Status Ends() const {
    return absl::InvalidArgumentError(
        absl::StrCat("a value after byte ", at(), " goes beyond the ", size_,
                     " bytes that the header can have; a file that was cut short looks like this"));
  }

  std::string_view rest_;
  const size_t size_;
};

absl::Status About(const std::string& what, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat(what.substr(0, kMaxNameBytes), ": ", status.message()));
}

class HeaderReader {
 public:
  HeaderReader(std::string_view start, uint64_t file_bytes)
      : cursor_(start), file_bytes_(file_bytes) {}

  absl::StatusOr<GgufHeader> Read();

 private:
  absl::Status ReadStart();
  absl::Status ReadPair();
  absl::Status ReadTensor();
  absl::Status CheckTensors() const;
  absl::StatusOr<Json> Value(uint32_t type);
  absl::StatusOr<Json> List();
  template <typename T>
  absl::StatusOr<Json> NumberValue() {
    FOLIO_ASSIGN_OR_RETURN(const T value, cursor_.Number<T>());
    return Json(value);
  }

  Cursor cursor_;
  const uint64_t file_bytes_;
  uint64_t num_tensors_ = 0;
  uint64_t num_pairs_ = 0;
  uint64_t list_entries_ = 0;
  GgufHeader header_;
};

absl::Status HeaderReader::ReadStart() {
  for (const char letter : kMagic) {
    FOLIO_ASSIGN_OR_RETURN(const uint8_t byte, cursor_.Number<uint8_t>());
    if (byte != static_cast<uint8_t>(letter)) {
      return absl::InvalidArgumentError(
          "is no GGUF file, and no directory as Hugging Face has it, with config.json, "
          "*.safetensors and tokenizer.model or tokenizer.json");
    }
  }
  FOLIO_ASSIGN_OR_RETURN(const uint32_t version, cursor_.Number<uint32_t>());
  if (version < kOldestVersion || version > kNewestVersion) {
    return absl::UnimplementedError(absl::StrCat(
        "has version ", version, " of GGUF", version > 0xffff ? " or big endian numbers" : "",
        "; known: 2 and 3, little endian; convert the model again"));
  }
  FOLIO_ASSIGN_OR_RETURN(num_tensors_, cursor_.Number<uint64_t>());
  FOLIO_ASSIGN_OR_RETURN(num_pairs_, cursor_.Number<uint64_t>());
  if (num_tensors_ <= kMaxTensors && num_pairs_ <= kMaxPairs) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("says that it has ", num_tensors_, " tensors and ",
                                                 num_pairs_, " keys, limits ", kMaxTensors, " and ",
                                                 kMaxPairs));
}

absl::StatusOr<Json> HeaderReader::Value(uint32_t type) {
  switch (type) {
    case kUint8:
      return NumberValue<uint8_t>();
    case kInt8:
      return NumberValue<int8_t>();
    case kUint16:
      return NumberValue<uint16_t>();
    case kInt16:
      return NumberValue<int16_t>();
    case kUint32:
      return NumberValue<uint32_t>();
    case kInt32:
      return NumberValue<int32_t>();
    case kFloat32:
      return NumberValue<float>();
    case kUint64:
      return NumberValue<uint64_t>();
    case kInt64:
      return NumberValue<int64_t>();
    case kFloat64:
      return NumberValue<double>();
    case kBool: {
      FOLIO_ASSIGN_OR_RETURN(const uint8_t value, cursor_.Number<uint8_t>());
      return Json(value != 0);
    }
    case kString: {
      FOLIO_ASSIGN_OR_RETURN(std::string text, cursor_.String());
      return Json(std::move(text));
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("has a value of the unknown type ", type));
  }
}

absl::StatusOr<Json> HeaderReader::List() {
  FOLIO_ASSIGN_OR_RETURN(const uint32_t type, cursor_.Number<uint32_t>());
  FOLIO_ASSIGN_OR_RETURN(const uint64_t count, cursor_.Number<uint64_t>());
  if (type == kArray) return absl::UnimplementedError("is a list of lists, which no model needs");
  // Every entry has a byte at least.
  if (count > std::min(cursor_.left(), kMaxListEntries - list_entries_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("is a list of ", count, " entries, the file has ", cursor_.left(),
                     " bytes for them, limit of all ", kMaxListEntries));
  }
  list_entries_ += count;
  Json list = Json::array();
  for (uint64_t i = 0; i < count; ++i) {
    FOLIO_ASSIGN_OR_RETURN(Json value, Value(type));
    list.push_back(std::move(value));
  }
  return list;
}

absl::Status HeaderReader::ReadPair() {
  FOLIO_ASSIGN_OR_RETURN(const std::string key, cursor_.String());
  FOLIO_ASSIGN_OR_RETURN(const uint32_t type, cursor_.Number<uint32_t>());
  absl::StatusOr<Json> value = type == kArray ? List() : Value(type);
  if (!value.ok()) return About(absl::StrCat("\"", key, "\""), value.status());
  if (header_.metadata.emplace(key, *std::move(value)).second) return absl::OkStatus();
  return About(absl::StrCat("\"", key, "\""), absl::InvalidArgumentError("is given twice"));
}

absl::Status HeaderReader::ReadTensor() {
  FOLIO_ASSIGN_OR_RETURN(const std::string name, cursor_.String());
  const std::string what = absl::StrCat("tensor \"", name, "\"");
  if (name.empty() || name.size() > kMaxNameBytes) {
    return About(what, absl::InvalidArgumentError(
                           absl::StrCat("the name must have 1 to ", kMaxNameBytes, " bytes")));
  }
  FOLIO_ASSIGN_OR_RETURN(const uint32_t rank, cursor_.Number<uint32_t>());
  if (rank < 1 || rank > kMaxRank) {
    return About(what, absl::InvalidArgumentError(
                           absl::StrCat("has ", rank, " dims, expected 1 to ", kMaxRank)));
  }
  GgufTensor tensor;
  int64_t numbers = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    FOLIO_ASSIGN_OR_RETURN(const uint64_t dim, cursor_.Number<uint64_t>());
    if (dim < 1 || dim > std::numeric_limits<int64_t>::max() ||
        __builtin_mul_overflow(numbers, static_cast<int64_t>(dim), &numbers)) {
      return About(
          what, absl::InvalidArgumentError(absl::StrCat(
                    "has a dim of ", dim, ", dims must be positive and their product below 2^63")));
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  FOLIO_ASSIGN_OR_RETURN(tensor.type, cursor_.Number<uint32_t>());
  FOLIO_ASSIGN_OR_RETURN(tensor.begin, cursor_.Number<uint64_t>());
  if (header_.tensors.emplace(name, std::move(tensor)).second) return absl::OkStatus();
  return About(what, absl::InvalidArgumentError("is given twice"));
}

// The numbers of each lie inside the file; whether two share bytes matters to nobody who reads.
absl::Status HeaderReader::CheckTensors() const {
  const uint64_t data_bytes = file_bytes_ - header_.data_begin;
  for (const auto& [name, tensor] : header_.tensors) {
    const std::string what = absl::StrCat("tensor \"", name, "\"");
    const GgufType* type = FindGgufType(tensor.type);
    if (type == nullptr) continue;
    if (tensor.shape.back() % type->block_numbers != 0) {
      return About(what, absl::InvalidArgumentError(
                             absl::StrCat("has rows of ", tensor.shape.back(), " numbers, ",
                                          type->name, " has blocks of ", type->block_numbers)));
    }
    uint64_t blocks = 1;
    for (const int64_t dim : tensor.shape) blocks *= static_cast<uint64_t>(dim);
    blocks /= static_cast<uint64_t>(type->block_numbers);
    const uint64_t room = tensor.begin > data_bytes ? 0 : data_bytes - tensor.begin;
    if (blocks > room / static_cast<uint64_t>(type->block_bytes)) {
      return About(what, absl::InvalidArgumentError(absl::StrCat(
                             "needs ", blocks, " blocks of ", type->block_bytes,
                             " bytes from data byte ", tensor.begin, " on, the file has ",
                             data_bytes, "; a file that was cut short looks like this")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufHeader> HeaderReader::Read() {
  header_.metadata = Json::object();
  FOLIO_RETURN_IF_ERROR(ReadStart());
  for (uint64_t i = 0; i < num_pairs_; ++i) FOLIO_RETURN_IF_ERROR(ReadPair());
  FOLIO_ASSIGN_OR_RETURN(const int parts,
                         OptionalInt(header_.metadata, "split.count", {0, 65535}, 0));
  if (parts > 1) {
    return absl::UnimplementedError(absl::StrCat("is one of ", parts,
                                                 " files of a model; join them to one file with "
                                                 "llama-gguf-split --merge"));
  }
  for (uint64_t i = 0; i < num_tensors_; ++i) FOLIO_RETURN_IF_ERROR(ReadTensor());
  FOLIO_ASSIGN_OR_RETURN(const int alignment, OptionalInt(header_.metadata, "general.alignment",
                                                          {1, kMaxAlignment}, 32));
  const auto unit = static_cast<uint64_t>(alignment);
  // A file without tensors may end before that.
  header_.data_begin = std::min((cursor_.at() + unit - 1) / unit * unit, file_bytes_);
  FOLIO_RETURN_IF_ERROR(CheckTensors());
  return std::move(header_);
}

}  // namespace

absl::StatusOr<GgufHeader> ParseGgufHeader(std::string_view start, uint64_t file_bytes) {
  return HeaderReader(start, file_bytes).Read();
}

bool IsModelFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) && !std::filesystem::is_directory(path, error);
}

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  FOLIO_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  std::string start(std::min(file.size_bytes(), kMaxGgufHeaderBytes), '\0');
  FOLIO_RETURN_IF_ERROR(file.Read(0, start.size(), start.data()));
  absl::StatusOr<GgufHeader> header = ParseGgufHeader(start, file.size_bytes());
  if (!header.ok()) return About(path, header.status());
  return GgufFile(std::move(file), *std::move(header));
}

absl::StatusOr<OwnedTensor> GgufFile::Tensor(const std::string& name, TaskThreads* helpers,
                                             int num_helpers) const {
  const GgufTensor& tensor = tensors().at(name);
  const GgufType* type = FindGgufType(tensor.type);
  if (type == nullptr) {
    return absl::UnimplementedError(absl::StrCat(path(), ": tensor \"", name, "\" has the type ",
                                                 GgufTypeName(tensor.type),
                                                 "; known: ", KnownGgufTypes()));
  }
  TensorView shape;
  shape.dtype = DType::kF32;
  shape.rank = static_cast<int>(tensor.shape.size());
  std::copy(tensor.shape.begin(), tensor.shape.end(), shape.shape.begin());
  OwnedTensor numbers = OwnedTensor::Like(shape);
  auto* out = reinterpret_cast<float*>(numbers.data.get());
  const int64_t blocks = shape.num_elements() / type->block_numbers;
  const int64_t at_a_time = kReadBytes / type->block_bytes;
  const auto num_parts = static_cast<int>((blocks + at_a_time - 1) / at_a_time);
  std::vector<float> scales(type->has_scales ? blocks : 0);
  FOLIO_RETURN_IF_ERROR(ForAll(num_parts, num_helpers, helpers, [&](int part) -> absl::Status {
    const int64_t first = part * at_a_time;
    const int64_t count = std::min(blocks - first, at_a_time);
    const auto size = static_cast<size_t>(count * type->block_bytes);
    const auto bytes = std::make_unique_for_overwrite<std::byte[]>(size);
    const uint64_t offset = header_.data_begin + tensor.begin + first * type->block_bytes;
    FOLIO_RETURN_IF_ERROR(file_.Read(offset, size, bytes.get()));
    type->decode(bytes.get(), count, out + first * type->block_numbers);
    for (int64_t i = 0; type->has_scales && i < count; ++i) {
      scales[first + i] = GgufScale(bytes.get() + i * type->block_bytes);
    }
    return absl::OkStatus();
  }));
  if (type->has_scales) numbers.SetScales(std::move(scales), type->block_numbers);
  return numbers;
}

}  // namespace folio
