#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio {

// Encodes a text that arrives in byte parts, which may end inside a UTF-8 character. Tokens come
// out as soon as they are certain; all of them together equal Encode of the whole text exactly.
//
// Where the tokenizer allows it (space_cut), the text is encoded in segments of at least
// kMinSegmentBytes, cut before a single space between two other characters; the space is dropped
// if the tokenizer puts one before every text. Otherwise, and in a text without such a place,
// everything is held until Finish. One text, one thread; the tokenizer must outlive it.
class StreamingTokenizer {
 public:
  static constexpr size_t kMinSegmentBytes = 4096;

  explicit StreamingTokenizer(const Tokenizer& tokenizer, TextStart start = TextStart::kBeginning)
      : tokenizer_(tokenizer), start_(start) {}
  // Goes on behind the first `text_offset` bytes of a text, up to where another one has encoded it.
  StreamingTokenizer(const Tokenizer& tokenizer, size_t text_offset)
      : tokenizer_(tokenizer), start_(AfterCut(tokenizer)), text_offset_(text_offset) {}

  // Takes the next bytes and appends tokens to *ids. After an error the object is of no more use.
  // Errors: INVALID_ARGUMENT with the offset in the whole text when it is not UTF-8, or when it
  // has no place to cut and is larger than the tokenizer takes in one piece; those of `interrupt`,
  // which is asked as Tokenizer::Encode does for the text that is encoded now.
  absl::Status Add(std::string_view bytes, std::vector<int32_t>* ids,
                   const Interrupt& interrupt = nullptr);

  // Ends the text and appends the remaining tokens. Errors: as Add.
  absl::Status Finish(std::vector<int32_t>* ids, const Interrupt& interrupt = nullptr);

  // Bytes of text that have become tokens: they are certain, whatever follows.
  size_t text_offset() const { return text_offset_; }
  // Bytes of text that have not become tokens yet.
  size_t held_bytes() const { return held_.size(); }

 private:
  absl::Status AddSlice(std::string_view bytes, std::vector<int32_t>* ids,
                        const Interrupt& interrupt);
  absl::Status CheckUtf8();
  static TextStart AfterCut(const Tokenizer& tokenizer);
  size_t FindCut() const;

  const Tokenizer& tokenizer_;
  TextStart start_;            // of held_
  size_t text_offset_ = 0;     // of held_ in the whole text
  std::string held_;           // text from text_offset_ on
  size_t valid_bytes_ = 0;     // of held_ known to be whole characters
  size_t searched_bytes_ = 0;  // of held_ known to have no place to cut
};

}  // namespace folio
