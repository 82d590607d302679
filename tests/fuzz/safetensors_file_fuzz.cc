// Any bytes as a whole safetensors file; every tensor of an accepted one is read.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>

#include "engine/model/safetensors_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) abort();
  const auto file = folio::SafetensorsFile::Open(path);
  if (!file.ok()) return 0;
  for (const auto& [name, entry] : file->entries()) {
    const auto tensor = file->Tensor(name);
    if (!tensor.ok()) {
      // An accepted header names no byte outside the file.
      if (tensor.status().code() == absl::StatusCode::kDataLoss) abort();
      continue;
    }
    const auto* bytes = static_cast<const uint8_t*>(tensor->view.data);
    const auto sum = std::accumulate(bytes, bytes + tensor->view.num_bytes(), uint64_t{0});
    if (sum > 255 * size) abort();
  }
  return 0;
}
