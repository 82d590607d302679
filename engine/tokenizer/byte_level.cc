#include "engine/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

constexpr int kNoByte = -1;
constexpr uint32_t kFirstStandIn = 0x100;

bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Byte by code point.
std::array<int, 512> MakeTable() {
  std::array<int, 512> table;
  table.fill(kNoByte);
  uint32_t next = kFirstStandIn;
  for (int byte = 0; byte < 256; ++byte) {
    table[StandsForItself(byte) ? static_cast<uint32_t>(byte) : next++] = byte;
  }
  return table;
}

}  // namespace

std::optional<std::string> ByteLevelBytes(std::string_view token) {
  static const std::array<int, 512> table = MakeTable();
  std::string bytes;
  while (!token.empty()) {
    const Utf8Step step = NextUtf8(token);
    if (step.state != Utf8State::kCharacter || step.num_bytes > 2) return std::nullopt;
    const auto first = static_cast<uint8_t>(token[0]);
    const uint32_t code = step.num_bytes == 1
                              ? first
                              : (first & 0x1Fu) << 6 | (static_cast<uint8_t>(token[1]) & 0x3Fu);
    if (code >= table.size() || table[code] == kNoByte) return std::nullopt;
    bytes += static_cast<char>(table[code]);
    token.remove_prefix(step.num_bytes);
  }
  return bytes;
}

}  // namespace folio
