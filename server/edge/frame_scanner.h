#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace folio::server {

// Frame types and flags that matter here. Source: RFC 9113, section 6.
enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

struct FrameHeader {
  static constexpr uint8_t kEndStream = 0x1;
  static constexpr uint8_t kEndHeaders = 0x4;
  static constexpr uint8_t kPadded = 0x8;
  static constexpr uint8_t kHasPriority = 0x20;

  uint32_t length = 0;
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;

  bool Has(uint8_t flag) const { return (flags & flag) != 0; }
};

// Cuts what one side of an HTTP/2 connection sends into frames, however it arrives.
class FrameScanner {
 public:
  // Calls on_header(frame) at the beginning of each frame, then on_payload(frame, bytes) for its
  // payload in pieces, the last one with `frame` complete. A callback that returns false ends the
  // scan; so does the end of the bytes. Returns false in the first case.
  template <typename OnHeader, typename OnPayload>
  bool Scan(std::string_view bytes, OnHeader on_header, OnPayload on_payload) {
    while (!bytes.empty()) {
      if (payload_left_ > 0) {
        const std::string_view part = Take(&bytes, payload_left_);
        payload_left_ -= static_cast<uint32_t>(part.size());
        if (!on_payload(frame_, part)) return false;
        continue;
      }
      const std::string_view part = Take(&bytes, kHeaderBytes - header_size_);
      std::copy(part.begin(), part.end(), header_ + header_size_);
      header_size_ += part.size();
      if (header_size_ < kHeaderBytes) return true;
      header_size_ = 0;
      frame_ = Parse();
      payload_left_ = frame_.length;
      if (!on_header(frame_)) return false;
    }
    return true;
  }

  // Whether the next byte begins a frame.
  bool between_frames() const { return payload_left_ == 0 && header_size_ == 0; }

 private:
  static constexpr size_t kHeaderBytes = 9;

  static std::string_view Take(std::string_view* bytes, size_t most) {
    const std::string_view part = bytes->substr(0, most);
    bytes->remove_prefix(part.size());
    return part;
  }
  uint32_t Byte(int i) const { return static_cast<uint8_t>(header_[i]); }
  FrameHeader Parse() const {
    FrameHeader frame;
    frame.length = Byte(0) << 16 | Byte(1) << 8 | Byte(2);
    frame.type = static_cast<FrameType>(Byte(3));
    frame.flags = static_cast<uint8_t>(Byte(4));
    frame.stream = (Byte(5) << 24 | Byte(6) << 16 | Byte(7) << 8 | Byte(8)) & 0x7fffffffu;
    return frame;
  }

  char header_[kHeaderBytes] = {};
  size_t header_size_ = 0;
  uint32_t payload_left_ = 0;
  FrameHeader frame_;
};

}  // namespace folio::server
