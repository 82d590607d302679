// Any bytes as a whole GGUF file; every tensor of an accepted one is read, and what it says of the
// model and its tokenizer becomes the files that Hugging Face has.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/model/gguf_config.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/gguf_tokenizer.h"
#include "engine/tokenizer/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("fuzz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) abort();
  const auto file = folio::GgufFile::Open(path);
  if (!file.ok()) return 0;
  for (const auto& [name, entry] : file->tensors()) {
    const auto tensor = file->Tensor(name);
    if (!tensor.ok()) {
      // An accepted header names no byte outside the file.
      if (tensor.status().code() == absl::StatusCode::kDataLoss) abort();
      continue;
    }
    // A byte of a file is at most eight numbers of fp32.
    if (static_cast<uint64_t>(tensor->view.num_elements()) > 8 * size) abort();
  }
  const auto config = folio::GgufConfigJson(*file);
  if (config.ok()) (void)folio::ParseModelConfig(*config);
  const auto files = folio::GgufTokenizerFiles(*file);
  if (!files.ok()) return 0;
  if (const auto json = files->find("tokenizer.json"); json != files->end()) {
    // What is written is JSON, whatever the file has.
    const auto tokenizer = folio::ParseTokenizerJson("tokenizer.json", json->second);
    if (!tokenizer.ok() &&
        tokenizer.status().message().find("no valid JSON") != std::string::npos) {
      abort();
    }
  }
  return 0;
}
