#include "client/eval/token_counter.h"

#include <utility>

namespace folio::eval {
namespace {

bool IsContinuationByte(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

TokenCounter ServerTokenCounter(client::Client& client, client::CancelToken cancel,
                                size_t max_part_bytes) {
  return [&client, cancel = std::move(cancel),
          max_part_bytes](const std::string& text) -> absl::StatusOr<uint64_t> {
    uint64_t num_tokens = 0;
    for (const std::string& part : SplitAtSpaces(text, max_part_bytes)) {
      const auto ids = client.Tokenize(part, /*add_bos=*/false, {.cancel = cancel});
      if (!ids.ok()) return ids.status();
      num_tokens += ids->size();
    }
    return num_tokens;
  };
}

std::vector<std::string> SplitAtSpaces(const std::string& text, size_t max_bytes) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (text.size() - begin > max_bytes) {
    size_t end = text.rfind(' ', begin + max_bytes);
    if (end == std::string::npos || end <= begin) {
      end = begin + max_bytes;
      while (end > begin + 1 && IsContinuationByte(text[end])) --end;
    }
    parts.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  if (begin < text.size()) parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace folio::eval
