#include "engine/tokenizer/byte_tokenizer.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr int kFirstByte = 3;
constexpr int kNumBytes = 256;

}  // namespace

ByteTokenizer::ByteTokenizer(int vocab_size) {
  pieces_ = {{PieceKind::kUnknown, "<unk>", " \xE2\x81\x87 "},
             {PieceKind::kControl, "<s>", ""},
             {PieceKind::kControl, "</s>", ""}};
  for (int byte = 0; byte < kNumBytes; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    const std::string name = absl::StrCat("<0x", absl::Hex(byte, absl::kZeroPad2), ">");
    pieces_.push_back({byte < 0x80 ? PieceKind::kText : PieceKind::kBytes, name, text});
  }
  while (static_cast<int>(pieces_.size()) < vocab_size) {
    const std::string text = absl::StrCat("[", pieces_.size(), "]");
    pieces_.push_back({PieceKind::kText, text, text});
  }
}

absl::Status ByteTokenizer::AppendTokens(std::string_view text, TextStart,
                                         const Interrupt& interrupt,
                                         std::vector<int32_t>* ids) const {
  InterruptCheck check(interrupt);
  for (const char c : text) {
    ids->push_back(kFirstByte + static_cast<unsigned char>(c));
    FOLIO_RETURN_IF_ERROR(check.Advance(1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ByteTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!Contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " is outside the vocabulary of ", vocab_size()));
    }
    text += pieces_[id].text;
  }
  return text;
}

}  // namespace folio
