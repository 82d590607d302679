#include "engine/model/safetensors_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

const char* SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBf16:
      return "BF16";
    case DType::kI32:
      return "I32";
  }
  return "";
}

absl::Status WriteError(const std::string& path) {
  return absl::DataLossError(absl::StrCat("cannot write ", path, "; is the disk full?"));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, std::ofstream file, int64_t expected_bytes)
    : path_(std::move(path)), file_(std::move(file)), expected_bytes_(expected_bytes) {}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, DType dtype, const std::vector<SafetensorsItem>& items,
    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = {{"__metadata__", metadata}};
  int64_t offset = 0;
  for (const SafetensorsItem& item : items) {
    int64_t num_bytes = item.bytes ? 1 : DTypeBytes(dtype);
    for (const int64_t dim : item.shape) num_bytes *= dim;
    header[item.name] = {{"dtype", item.bytes ? "U8" : SafetensorsName(dtype)},
                         {"shape", item.shape},
                         {"data_offsets", {offset, offset + num_bytes}}};
    offset += num_bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data aligned to 8 bytes
  const uint64_t header_bytes = text.size();

  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) return WriteError(path);
  return SafetensorsWriter(path, std::move(file), offset);
}

absl::Status SafetensorsWriter::Append(std::string_view bytes) {
  file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  written_bytes_ += static_cast<int64_t>(bytes.size());
  return file_ ? absl::OkStatus() : WriteError(path_);
}

absl::Status SafetensorsWriter::Finish() {
  file_.close();
  if (!file_) return WriteError(path_);
  if (written_bytes_ != expected_bytes_) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": got ", written_bytes_, " data bytes, its header says ", expected_bytes_));
  }
  return absl::OkStatus();
}

}  // namespace folio
