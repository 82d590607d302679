#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace folio {

// Bytes of a client's text that a message repeats. Messages go back in trailers, each byte as up to
// three, and gRPC clients refuse more than 8 KiB of them.
inline constexpr size_t kMaxQuotedBytes = 100;

// Text of a client as messages repeat it: in quotes, and of a long one the beginning, whole
// characters.
inline std::string Quoted(std::string_view text) {
  if (text.size() <= kMaxQuotedBytes) return "'" + std::string(text) + "'";
  size_t end = kMaxQuotedBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return "'" + std::string(text.substr(0, end)) + "...'";
}

}  // namespace folio
