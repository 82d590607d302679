#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/input_file.h"
#include "engine/base/task_threads.h"
#include "engine/model/json_fields.h"
#include "engine/tensor/owned_tensor.h"

namespace folio {

// One tensor of a GGUF file.
struct GgufTensor {
  std::vector<int64_t> shape;  // rows first; the file has the dims the other way round
  uint32_t type = 0;           // FindGgufType
  uint64_t begin = 0;          // counts from the first byte of the data
};

// What stands in front of the numbers.
struct GgufHeader {  // NOLINT(bugprone-exception-escape): moving JSON does not throw
  // By key; arrays of strings or numbers are lists. Strings are any bytes.
  Json metadata;
  std::map<std::string, GgufTensor> tensors;
  uint64_t data_begin = 0;  // byte of the file
};

inline constexpr uint64_t kMaxGgufHeaderBytes = 64 << 20;

// Reads the header of a GGUF file of version 2 or 3. `start` is the beginning of the file, or all
// of it, of at most kMaxGgufHeaderBytes. Holds for every result: dims are positive and their
// product fits 63 bits, rows of known types are whole blocks, and the bytes of tensors of known
// types lie inside the file. Memory is at most a small multiple of `start`.
// Errors: INVALID_ARGUMENT names the key or tensor; UNIMPLEMENTED for another version, and for one
// of several files of a model.
absl::StatusOr<GgufHeader> ParseGgufHeader(std::string_view start, uint64_t file_bytes);

// Whether a model's path names a file, which is then one of GGUF.
bool IsModelFile(const std::string& path);

// A GGUF file. Move-only; const members are safe for concurrent use.
class GgufFile {
 public:
  // Errors: those of InputFile::Open and ParseGgufHeader with the name of the file.
  static absl::StatusOr<GgufFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const Json& metadata() const { return header_.metadata; }
  const std::map<std::string, GgufTensor>& tensors() const { return header_.tensors; }

  // Reads a tensor as fp32, with up to so many of the threads of `helpers`. REQUIRES: it is one of
  // tensors(). Errors: UNIMPLEMENTED for a type that is not known; DATA_LOSS when the file was cut.
  absl::StatusOr<OwnedTensor> Tensor(const std::string& name, TaskThreads* helpers,
                                     int num_helpers) const;
  absl::StatusOr<OwnedTensor> Tensor(const std::string& name) const {
    TaskThreads none(0);
    return Tensor(name, &none, 0);
  }

 private:
  GgufFile(InputFile file, GgufHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  InputFile file_;
  GgufHeader header_;
};

}  // namespace folio
