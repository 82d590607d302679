#pragma once

#include <string>
#include <string_view>

namespace folio {

// Writes the bytes of a SentencePiece model file of the kind BPE whose normalisation does no more
// than escape, add or remove spaces.
// Source: sentencepiece_model.proto, by the protobuf wire format, as its header cannot share a
// translation unit with Abseil (spm_processor.h).
class SpmModelWriter {
 public:
  // The next piece; `type` as SentencePiece numbers them.
  void Add(std::string_view piece, float score, int type);
  std::string Finish() const;

  // Pieces that begin and end a text; "": none.
  std::string bos_piece;
  std::string eos_piece;
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;

 private:
  std::string pieces_;
};

}  // namespace folio
