#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace folio {

// U+2581, which stands for a space in the names of pieces.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

enum class PieceKind : uint8_t {
  kText,     // stands for its text
  kBytes,    // stands for bytes that are no whole characters ("<0xE2>")
  kControl,  // <s>, </s> and the like: stands for no text
  kUnknown,  // stands for text that the vocabulary cannot say
};

// One entry of a vocabulary.
struct Piece {
  PieceKind kind = PieceKind::kText;
  std::string name;  // as in the model file, with kSpaceSymbol for a space
  std::string text;  // the bytes it stands for, with plain spaces; "" for kControl
};

}  // namespace folio
