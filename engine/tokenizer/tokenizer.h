#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/interrupt.h"
#include "engine/tokenizer/piece.h"

namespace folio {

// A token that stands for no text: <s>, <|im_end|>. Encode never finds one in a text.
struct SpecialToken {
  std::string name;
  int32_t id = 0;
  // In a chat template it takes the spaces and line ends in front of it, or behind it, with it.
  bool strips_left = false;
  bool strips_right = false;

  bool operator==(const SpecialToken&) const = default;
};

// Where a text stands that is encoded. Some tokenizers put a space in front of a text.
enum class TextStart : uint8_t {
  kBeginning,     // nothing is in front of it
  kAfterSpecial,  // a special token is
  kContinued,     // text is, which has been encoded
};

// Text to tokens and back. Immutable and safe for concurrent use once made; owned by the runtime.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Tokens of a text, without BOS or EOS. A document goes through StreamingTokenizer instead.
  // Errors: INVALID_ARGUMENT when the text is not UTF-8 (with the byte offset) or larger than
  // kMaxTextBytes; those of `interrupt`, which is asked first and then at least once in 64 KiB of
  // text. While a library goes over a text in one call, it is not asked: encode_bytes_per_byte.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const Interrupt& interrupt = nullptr) const;

  // Encode, with the tokens appended to *ids; after an error some of them may be.
  absl::Status Append(std::string_view text, const Interrupt& interrupt, std::vector<int32_t>* ids,
                      TextStart start = TextStart::kBeginning) const;

  static constexpr size_t kMaxTextBytes = 256 << 20;

  // The most memory that Encode needs per byte of a long text, its tokens included.
  virtual size_t encode_bytes_per_byte() const { return 12; }

  // The most bytes of a text that one token stands for: a text of n bytes has at least n divided by
  // it tokens. 0: not known, where text is rewritten before it is cut into pieces.
  virtual size_t max_bytes_per_token() const { return 0; }

  // Text of a whole sequence. The space that Encode puts before a text is taken off again.
  // Errors: INVALID_ARGUMENT for an id outside the vocabulary.
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids) const = 0;

  // The vocabulary in id order.
  virtual const std::vector<Piece>& pieces() const = 0;

  // Those that a chat template can name.
  virtual const std::vector<SpecialToken>& special_tokens() const = 0;

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
  // their own, the later one as kBeginning (kDropsSpace) or kContinued (kKeepsSpace).
  enum class SpaceCut : uint8_t {
    kNever,
    kDropsSpace,  // Encode(a + " " + b) = Encode(a), Encode(b)
    kKeepsSpace,  // Encode(a + " " + b) = Encode(a), Encode(" " + b)
  };
  virtual SpaceCut space_cut() const = 0;

  int32_t vocab_size() const { return static_cast<int32_t>(pieces().size()); }
  bool Contains(int32_t id) const { return id >= 0 && id < vocab_size(); }

 private:
  // Append of a text that is UTF-8 and not too large.
  virtual absl::Status AppendTokens(std::string_view text, TextStart start,
                                    const Interrupt& interrupt,
                                    std::vector<int32_t>* ids) const = 0;
};

}  // namespace folio
