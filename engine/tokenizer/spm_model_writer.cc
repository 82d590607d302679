#include "engine/tokenizer/spm_model_writer.h"

#include <bit>
#include <cstdint>

namespace folio {
namespace {

// Field numbers of ModelProto and the messages in it.
enum ModelField { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField { kPiece = 1, kScore = 2, kType = 3 };
enum TrainerField { kModelType = 3, kByteFallback = 35, kBosPiece = 46, kEosPiece = 47 };
enum NormalizerField { kName = 1, kDummyPrefix = 3, kRemoveExtra = 4, kEscape = 5 };

constexpr int kBpe = 2;
// No vocabulary has a piece of that name; the library takes the name "" for "<s>" and "</s>".
constexpr char kNoPiece[] = "\x01";

enum WireType { kVarint = 0, kLengthDelimited = 2, kFixed32 = 5 };

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string Tag(int field, WireType type) {
  return Varint(static_cast<uint64_t>(field << 3 | type));
}

std::string Number(int field, int value) {
  return Tag(field, kVarint) + Varint(static_cast<uint64_t>(value));
}

std::string Bytes(int field, std::string_view value) {
  return Tag(field, kLengthDelimited) + Varint(value.size()) + std::string(value);
}

std::string Float(int field, float value) {
  std::string bytes = Tag(field, kFixed32);
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift);
  return bytes;
}

std::string NameOr(const std::string& piece) { return piece.empty() ? kNoPiece : piece; }

}  // namespace

void SpmModelWriter::Add(std::string_view piece, float score, int type) {
  pieces_ += Bytes(kPieces, Bytes(kPiece, piece) + Float(kScore, score) + Number(kType, type));
}

std::string SpmModelWriter::Finish() const {
  const std::string trainer = Number(kModelType, kBpe) + Number(kByteFallback, byte_fallback) +
                              Bytes(kBosPiece, NameOr(bos_piece)) +
                              Bytes(kEosPiece, NameOr(eos_piece));
  const std::string normalizer = Bytes(kName, "identity") + Number(kDummyPrefix, add_dummy_prefix) +
                                 Number(kRemoveExtra, remove_extra_whitespaces) +
                                 Number(kEscape, true);
  return pieces_ + Bytes(kTrainer, trainer) + Bytes(kNormalizer, normalizer);
}

}  // namespace folio
