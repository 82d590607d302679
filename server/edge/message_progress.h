#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace folio::server {

// How much of a message has come that has not come whole, on one stream. A message is a byte of
// flags, four bytes of length, and the bytes. Source: gRPC over HTTP/2, Length-Prefixed-Message.
// One that is longer than `max_message_bytes` counts for nothing: gRPC refuses it by its length.
class MessageProgress {
 public:
  // The next bytes of the stream. Returns by how much partial_bytes has changed.
  int64_t Add(std::string_view bytes, uint64_t max_message_bytes) {
    const int64_t before = partial_bytes();
    while (!bytes.empty()) {
      if (left_ > 0) {
        const uint64_t part = std::min<uint64_t>(left_, bytes.size());
        bytes.remove_prefix(part);
        left_ -= part;
        if (counts_) arrived_ += static_cast<int64_t>(part);
        if (left_ == 0) arrived_ = 0;
        continue;
      }
      if (prefix_bytes_ > 0) length_ = length_ << 8 | static_cast<uint8_t>(bytes.front());
      bytes.remove_prefix(1);
      if (++prefix_bytes_ < kPrefixBytes) continue;
      left_ = length_;
      counts_ = length_ <= max_message_bytes;
      prefix_bytes_ = 0;
      length_ = 0;
    }
    return partial_bytes() - before;
  }

  int64_t partial_bytes() const { return arrived_; }

 private:
  static constexpr int kPrefixBytes = 5;

  int prefix_bytes_ = 0;
  uint32_t length_ = 0;
  uint64_t left_ = 0;
  bool counts_ = false;
  int64_t arrived_ = 0;
};

}  // namespace folio::server
