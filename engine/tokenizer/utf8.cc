#include "engine/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace folio {
namespace {

struct LeadByte {
  size_t num_bytes = 0;  // of the whole character; 0 when no character begins so
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

LeadByte ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2) return {0};
  if (lead < 0xE0) return {2};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

size_t AsciiPrefix(std::string_view bytes) {
  size_t length = 0;
  for (; length + 8 <= bytes.size(); length += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + length, sizeof(word));
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (length < bytes.size() && static_cast<uint8_t>(bytes[length]) < 0x80) ++length;
  return length;
}

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  const LeadByte lead = ClassifyLead(static_cast<uint8_t>(bytes[0]));
  if (lead.num_bytes == 0) return {Utf8State::kInvalid, 1};
  const size_t available = std::min(lead.num_bytes, bytes.size());
  for (size_t i = 1; i < available; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8State::kInvalid, 1};
  }
  if (available < lead.num_bytes) return {Utf8State::kIncomplete, available};
  return {Utf8State::kCharacter, lead.num_bytes};
}

size_t ValidUtf8Prefix(std::string_view bytes) {
  size_t length = AsciiPrefix(bytes);
  while (length < bytes.size()) {
    const Utf8Step step = NextUtf8(bytes.substr(length));
    if (step.state != Utf8State::kCharacter) break;
    length += step.num_bytes;
    length += AsciiPrefix(bytes.substr(length));
  }
  return length;
}

bool IsValidUtf8(std::string_view bytes) { return ValidUtf8Prefix(bytes) == bytes.size(); }

size_t IncompleteUtf8Tail(std::string_view bytes) {
  for (size_t length = 1; length <= std::min<size_t>(3, bytes.size()); ++length) {
    const std::string_view tail = bytes.substr(bytes.size() - length);
    // A lead byte decides; continuation bytes belong to a lead further left.
    if ((static_cast<uint8_t>(tail[0]) & 0xC0) == 0x80) continue;
    return NextUtf8(tail).state == Utf8State::kIncomplete ? length : 0;
  }
  return 0;
}

}  // namespace folio
