#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/piece.h"

namespace folio {

// Text to tokens and back. Immutable and safe for concurrent use once made; owned by the runtime.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Tokens of a text, without BOS or EOS. Needs about 60 bytes of memory per byte of text: a
  // document goes through StreamingTokenizer instead.
  // Errors: INVALID_ARGUMENT when the text is not UTF-8 (with the byte offset) or too large.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const = 0;

  // Text of a whole sequence. The space that Encode puts before a text is taken off again.
  // Errors: INVALID_ARGUMENT for an id outside the vocabulary.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const = 0;

  // The vocabulary in id order.
  virtual const std::vector<Piece>& pieces() const = 0;

  // Token ids; -1 where the vocabulary has none.
  virtual int32_t bos_id() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t unk_id() const = 0;

  // What Decode does with a space at the start of the first piece that has text.
  enum class LeadingSpace : uint8_t {
    kKept,
    kFirstDropped,  // one space of the first piece
    kAllDropped,    // one space of each piece, until there is text
  };
  virtual LeadingSpace leading_space() const = 0;

  // Whether a text may be cut at a space between two other characters and the parts encoded on
  // their own.
  enum class SpaceCut : uint8_t {
    kNever,
    kDropsSpace,  // Encode(a + " " + b) = Encode(a), Encode(b)
    kKeepsSpace,  // Encode(a + " " + b) = Encode(a), Encode(" " + b)
  };
  virtual SpaceCut space_cut() const = 0;

  int32_t vocab_size() const { return static_cast<int32_t>(pieces().size()); }
  bool Contains(int32_t id) const { return id >= 0 && id < vocab_size(); }
};

}  // namespace folio
