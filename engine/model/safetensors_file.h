#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/input_file.h"
#include "engine/tensor/owned_tensor.h"

namespace folio {

// One entry of a safetensors header. begin and end count from the first byte after the header.
struct SafetensorsEntry {
  std::string dtype;  // as in the file: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

using SafetensorsEntries = std::map<std::string, SafetensorsEntry>;
// The texts under "__metadata__".
using SafetensorsMetadata = std::map<std::string, std::string>;

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Reads the JSON header of a safetensors file which has `data_bytes` bytes after the header.
// Holds for every result: dtypes are known, dims are not negative, dims x dtype = bytes without
// overflow, and the tensors in order of begin fill the data from 0 to data_bytes without a hole
// or an overlap. `metadata`, if there is one, gets the texts that the file says of itself.
// Errors: INVALID_ARGUMENT names the tensor, the field, its value and the rule.
absl::StatusOr<SafetensorsEntries> ParseSafetensorsHeader(std::string_view header,
                                                          uint64_t data_bytes,
                                                          SafetensorsMetadata* metadata = nullptr);

// A safetensors file. Move-only; const members are safe for concurrent use.
class SafetensorsFile {
 public:
  // Errors: those of InputFile::Open; INVALID_ARGUMENT names the file and what is wrong in it.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsEntries& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  bool Contains(const std::string& name) const { return entries_.count(name) != 0; }

  // Shape and dtype of a tensor, without data.
  // Errors: NOT_FOUND; UNIMPLEMENTED for a dtype other than F32, F16, BF16, I32 or a rank above 4.
  absl::StatusOr<TensorView> Describe(const std::string& name) const;

  // Reads a tensor. Errors: those of Describe; DATA_LOSS when the file was cut.
  absl::StatusOr<OwnedTensor> Tensor(const std::string& name) const;

  // Reads to.size() bytes of a tensor of any dtype. REQUIRES: the entry is one of entries() and has
  // so many from `offset` on. Errors: DATA_LOSS when the file was cut.
  absl::Status ReadBytes(const SafetensorsEntry& entry, uint64_t offset,
                         std::span<std::byte> to) const;

 private:
  SafetensorsFile(InputFile file, uint64_t data_offset, SafetensorsEntries entries,
                  SafetensorsMetadata metadata);
  absl::StatusOr<const SafetensorsEntry*> Find(const std::string& name) const;

  InputFile file_;
  uint64_t data_offset_;
  SafetensorsEntries entries_;
  SafetensorsMetadata metadata_;
};

}  // namespace folio
