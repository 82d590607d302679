#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tensor/tensor_view.h"

namespace folio {

struct SafetensorsItem {
  std::string name;
  std::vector<int64_t> shape;
  // Bytes ("U8") instead of numbers of the file's dtype.
  bool bytes = false;
};

// Writes a safetensors file front to back, holding none of its data: tensors of one dtype, and of
// bytes. Used by the model maker and by tests; one thread.
class SafetensorsWriter {
 public:
  // Writes the header of `items`, whose data must follow in the same order.
  static absl::StatusOr<SafetensorsWriter> Create(
      const std::string& path, DType dtype, const std::vector<SafetensorsItem>& items,
      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  // Adds data bytes; parts may be cut anywhere.
  absl::Status Append(std::string_view bytes);

  // Errors: FAILED_PRECONDITION when fewer or more bytes came than the items need; DATA_LOSS when
  // the file could not be written (disk full).
  absl::Status Finish();

 private:
  SafetensorsWriter(std::string path, std::ofstream file, int64_t expected_bytes);

  std::string path_;
  std::ofstream file_;
  int64_t expected_bytes_;
  int64_t written_bytes_ = 0;
};

}  // namespace folio
