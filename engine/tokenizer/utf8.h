#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace folio {

// U+FFFD, which stands for a byte that is no part of a character.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8State : uint8_t { kCharacter, kIncomplete, kInvalid };

struct Utf8Step {
  Utf8State state = Utf8State::kInvalid;
  size_t num_bytes = 0;  // of the character; of all input for kIncomplete; 1 for kInvalid
};

// Looks at the first character of `bytes`, which must not be empty. kIncomplete: the bytes end
// inside a character that more bytes can still complete. Source: Unicode 15, table 3-7 (no
// overlong forms, no surrogates, nothing above U+10FFFF).
Utf8Step NextUtf8(std::string_view bytes);

// Bytes of the character that begins with `lead`. REQUIRES: one does.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// How many bytes at the start of `bytes` are whole characters; stops at the first byte that is
// not, be it invalid or incomplete.
size_t ValidUtf8Prefix(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

// How many bytes at the end of `bytes` (0 to 3) begin a character which is not complete.
size_t IncompleteUtf8Tail(std::string_view bytes);

}  // namespace folio
