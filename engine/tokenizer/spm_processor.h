#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/piece.h"

namespace folio {

// What a SentencePiece model file says beside its vocabulary.
struct SpmTraits {
  int32_t bos_id = -1;
  int32_t eos_id = -1;
  int32_t unk_id = -1;
  bool adds_dummy_prefix = false;
  bool removes_extra_spaces = false;
  bool has_denormalizer = false;
  bool has_byte_pieces = false;  // they stand for characters that are no pieces
  bool can_cut_at_spaces = false;
  bool pieces_end_at_spaces = false;  // none has the space symbol after another character
  bool is_plain_bpe = false;          // CharacterBpe knows all of its rules
};

// The SentencePiece library behind a plain interface. Its header defines an absl namespace of its
// own and cannot share a translation unit with Abseil or gRPC, so this header has neither, and
// errors are texts. Immutable once made; const members are safe for concurrent use.
class SpmProcessor {
 public:
  // nullptr and a reason in *error when the bytes are no SentencePiece model.
  static std::unique_ptr<SpmProcessor> Create(std::string_view model_bytes, std::string* error);
  ~SpmProcessor();

  // False and a reason in *error on failure.
  bool Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const;
  bool Decode(const std::vector<int32_t>& ids, std::string* text, std::string* error) const;

  const std::vector<Piece>& pieces() const { return pieces_; }
  // By id.
  const std::vector<float>& scores() const { return scores_; }
  const SpmTraits& traits() const { return traits_; }

 private:
  class Library;
  explicit SpmProcessor(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
  std::vector<Piece> pieces_;
  std::vector<float> scores_;
  SpmTraits traits_;
};

}  // namespace folio
