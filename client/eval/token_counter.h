// Counting tokens with the server's tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace folio::eval {

// Number of tokens of a text, without the beginning-of-sequence token. Must be thread-safe.
using TokenCounter = std::function<absl::StatusOr<uint64_t>(const std::string& text)>;

// Counts with Client::Tokenize. Texts above `max_part_bytes` are counted in parts that end before a
// space, which is exact for tokenizers that never join words. `client` must outlive the counter.
TokenCounter ServerTokenCounter(client::Client& client, client::CancelToken cancel,
                                size_t max_part_bytes = size_t{1} << 20);

// Cuts `text` into parts of at most `max_bytes` that begin at a space wherever there is one, and
// never inside a UTF-8 character.  REQUIRES: max_bytes >= 4.
std::vector<std::string> SplitAtSpaces(const std::string& text, size_t max_bytes);

}  // namespace folio::eval
