#pragma once

#include <cstdint>
#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace folio {

// Turns generated tokens into text one at a time, on the borders of UTF-8 characters. Bytes of
// pieces that are no whole characters are kept until their character is complete; a byte that can
// no longer become part of one is given out as U+FFFD. Control pieces give no text. O(1) per token.
//
// All texts of Add and Flush together equal Tokenizer::Decode of all tokens for kWholeText. For
// kContinuation they equal the same text, but with a leading space kept: "▁the" after a prompt is
// " the". One sequence, one thread; the tokenizer must outlive it.
class IncrementalDetokenizer {
 public:
  enum class Start : uint8_t { kWholeText, kContinuation };

  IncrementalDetokenizer(const Tokenizer& tokenizer, Start start);

  // Returns what text became final; often "". An id outside the vocabulary (a model may have more
  // logits than the tokenizer has pieces) gives U+FFFD.
  std::string Add(int32_t token);

  // Gives out the bytes still kept, each as U+FFFD. Call once, at the end.
  std::string Flush();

 private:
  std::string AddByte(char byte);
  std::string AddText(const Piece& piece);

  const Tokenizer& tokenizer_;
  std::string pending_bytes_;  // at most 3: the start of a character
  bool drops_spaces_;          // a leading space of the next piece is to be dropped
};

// Tokenizer::Decode by the pieces alone. Errors: INVALID_ARGUMENT for an id outside the vocabulary.
absl::StatusOr<std::string> DecodeByPieces(const Tokenizer& tokenizer,
                                           std::span<const int32_t> ids);

}  // namespace folio
