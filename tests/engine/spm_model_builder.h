#pragma once

#include <bit>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace folio {

// Writes the bytes of small SentencePiece model files, by the protobuf wire format, so that tests
// need no trainer. The first three pieces are <unk>, <s> and </s>.
class SpmModelBuilder {
 public:
  enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  enum ModelType { kUnigram = 1, kBpe = 2 };

  SpmModelBuilder() {
    Add("<unk>", 0, kUnknown);
    Add("<s>", 0, kControl);
    Add("</s>", 0, kControl);
  }

  SpmModelBuilder& Add(std::string_view piece, float score, Type type = kNormal) {
    std::string entry = Bytes(1, piece);
    entry += Tag(2, 5);
    const auto bits = std::bit_cast<uint32_t>(score);
    for (int shift = 0; shift < 32; shift += 8) entry += static_cast<char>(bits >> shift);
    entry += Number(3, type);
    pieces_ += Bytes(1, entry);
    return *this;
  }

  // One piece per character of a text of ASCII letters, then merges in falling order of score.
  SpmModelBuilder& AddCharacters(std::string_view letters) {
    for (const char letter : letters) Add(std::string(1, letter), next_score_--);
    return *this;
  }
  SpmModelBuilder& AddMerge(std::string_view piece) { return Add(piece, next_score_--); }

  SpmModelBuilder& AddBytePieces() {
    byte_fallback_ = true;
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", byte);
      Add(name, 0, kByte);
    }
    return *this;
  }

  ModelType model_type = kBpe;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;

  std::string Build() const {
    const std::string trainer =
        Number(3, model_type) + Number(24, whitespace_as_suffix) + Number(35, byte_fallback_);
    const std::string normalizer = Bytes(1, "identity") + Number(3, add_dummy_prefix) +
                                   Number(4, remove_extra_whitespaces) +
                                   Number(5, escape_whitespaces);
    return pieces_ + Bytes(2, trainer) + Bytes(3, normalizer);
  }

 private:
  static std::string Varint(uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
  }
  static std::string Tag(int field, int wire_type) {
    return Varint(static_cast<uint64_t>(field << 3 | wire_type));
  }
  static std::string Number(int field, int value) {
    return Tag(field, 0) + Varint(static_cast<uint64_t>(value));
  }
  static std::string Bytes(int field, std::string_view value) {
    return Tag(field, 2) + Varint(value.size()) + std::string(value);
  }

  std::string pieces_;
  bool byte_fallback_ = false;
  float next_score_ = -1;
};

}  // namespace folio
