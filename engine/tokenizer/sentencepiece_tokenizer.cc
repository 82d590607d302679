#include "engine/tokenizer/sentencepiece_tokenizer.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

constexpr size_t kMaxModelBytes = 256 << 20;
// The library counts in 32 bits and needs about 60 bytes per byte of text.
constexpr size_t kMaxTextBytes = 256 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Open(
    const std::string& path, int max_vocab_size) {
  FOLIO_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(path, kMaxModelBytes));
  return FromBytes(path, bytes, max_vocab_size);
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::FromBytes(
    const std::string& what, std::string_view model_bytes, int max_vocab_size) {
  std::string error = "it is empty";
  std::unique_ptr<SpmProcessor> processor;
  if (!model_bytes.empty()) processor = SpmProcessor::Create(model_bytes, &error);
  if (processor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": no valid SentencePiece model: ", error));
  }
  if (processor->traits().has_denormalizer) {
    return absl::UnimplementedError(
        absl::StrCat(what, ": its denormalizer rewrites decoded text; known: models without"));
  }
  if (processor->pieces().size() > static_cast<size_t>(max_vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": has ", processor->pieces().size(), " pieces, but \"vocab_size\" of the model is ",
        max_vocab_size, "; use the tokenizer.model that belongs to the checkpoint"));
  }
  return std::unique_ptr<SentencePieceTokenizer>(new SentencePieceTokenizer(std::move(processor)));
}

absl::StatusOr<std::vector<int32_t>> SentencePieceTokenizer::Encode(std::string_view text) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("text of ", text.size(), " bytes in one piece, limit ", kMaxTextBytes));
  }
  if (const size_t valid_bytes = ValidUtf8Prefix(text); valid_bytes < text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not valid UTF-8 at byte ", valid_bytes));
  }
  std::vector<int32_t> ids;
  if (bpe_ != nullptr) {
    FOLIO_RETURN_IF_ERROR(bpe_->Encode(text, nullptr, &ids));
    return ids;
  }
  std::string error;
  if (processor_->Encode(text, &ids, &error)) return ids;
  return absl::InternalError(absl::StrCat("the tokenizer failed: ", error));
}

absl::StatusOr<std::string> SentencePieceTokenizer::Decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (!Contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size()));
    }
  }
  std::string text;
  std::string error;
  if (processor_->Decode({ids.begin(), ids.end()}, &text, &error)) return text;
  return absl::InternalError(absl::StrCat("the tokenizer failed: ", error));
}

Tokenizer::LeadingSpace SentencePieceTokenizer::leading_space() const {
  const SpmTraits& traits = processor_->traits();
  if (traits.removes_extra_spaces) return LeadingSpace::kAllDropped;
  return traits.adds_dummy_prefix ? LeadingSpace::kFirstDropped : LeadingSpace::kKept;
}

}  // namespace folio
