#include "engine/tokenizer/streaming_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/piece.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

// Bounds the memory of the tokenizer, and the time before the first tokens come out.
constexpr size_t kSliceBytes = 4 << 10;

bool Has(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }

// Whether text[at] is a single space between two other characters. Line ends and the like count as
// spaces, and so does all beyond ASCII that begins as spaces there do (U+0085, U+00A0, U+1680,
// U+2000 to U+205F, U+2581, which is kSpaceSymbol, U+3000): the rest of a character may not have
// arrived. REQUIRES: 0 < at, and text has a byte after `at`.
bool IsSafeCut(std::string_view text, size_t at) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  constexpr std::string_view kFirstBytes = "\xC2\xE1\xE2\xE3";
  if (text[at] != ' ') return false;
  if (Has(kSpaces, text[at + 1]) || Has(kFirstBytes, text[at + 1])) return false;
  size_t before = at - 1;
  while (before > 0 && (text[before] & 0xC0) == 0x80) --before;
  return !Has(kSpaces, text[before]) && !Has(kFirstBytes, text[before]);
}

}  // namespace

absl::Status StreamingTokenizer::Add(std::string_view bytes, std::vector<int32_t>* ids,
                                     const Interrupt& interrupt) {
  while (!bytes.empty()) {
    const std::string_view slice = bytes.substr(0, kSliceBytes);
    FOLIO_RETURN_IF_ERROR(AddSlice(slice, ids, interrupt));
    bytes.remove_prefix(slice.size());
  }
  return absl::OkStatus();
}

absl::Status StreamingTokenizer::AddSlice(std::string_view bytes, std::vector<int32_t>* ids,
                                          const Interrupt& interrupt) {
  held_ += bytes;
  FOLIO_RETURN_IF_ERROR(CheckUtf8());
  if (tokenizer_.space_cut() == Tokenizer::SpaceCut::kNever || held_.size() < kMinSegmentBytes)
    return absl::OkStatus();
  const size_t cut = FindCut();
  if (cut == 0) {
    // The last byte waits for its neighbour.
    searched_bytes_ = held_.size() - 1;
    return absl::OkStatus();
  }
  FOLIO_RETURN_IF_ERROR(
      tokenizer_.Append(std::string_view(held_).substr(0, cut), interrupt, ids, start_));
  start_ = AfterCut(tokenizer_);
  const size_t taken = tokenizer_.space_cut() == Tokenizer::SpaceCut::kDropsSpace ? cut + 1 : cut;
  held_.erase(0, taken);
  text_offset_ += taken;
  valid_bytes_ -= taken;
  // FindCut took the last place there was.
  searched_bytes_ = held_.empty() ? 0 : held_.size() - 1;
  return absl::OkStatus();
}

absl::Status StreamingTokenizer::Finish(std::vector<int32_t>* ids, const Interrupt& interrupt) {
  if (valid_bytes_ != held_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text ends inside a UTF-8 character, which begins at byte ",
                     text_offset_ + valid_bytes_));
  }
  FOLIO_RETURN_IF_ERROR(tokenizer_.Append(held_, interrupt, ids, start_));
  text_offset_ += held_.size();
  held_.clear();
  valid_bytes_ = 0;
  searched_bytes_ = 0;
  return absl::OkStatus();
}

absl::Status StreamingTokenizer::CheckUtf8() {
  valid_bytes_ += ValidUtf8Prefix(std::string_view(held_).substr(valid_bytes_));
  if (valid_bytes_ == held_.size() ||
      NextUtf8(std::string_view(held_).substr(valid_bytes_)).state == Utf8State::kIncomplete) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the text is not valid UTF-8 at byte ", text_offset_ + valid_bytes_));
}

TextStart StreamingTokenizer::AfterCut(const Tokenizer& tokenizer) {
  return tokenizer.space_cut() == Tokenizer::SpaceCut::kDropsSpace ? TextStart::kBeginning
                                                                   : TextStart::kContinued;
}

// The last place to cut, or 0.
size_t StreamingTokenizer::FindCut() const {
  const size_t first = std::max<size_t>(searched_bytes_, 1);
  for (size_t at = held_.size() - 1; at > first;) {
    --at;
    if (IsSafeCut(held_, at)) return at;
  }
  return 0;
}

}  // namespace folio
