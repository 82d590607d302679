#include "engine/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

constexpr size_t kMaxModelBytes = 256 << 20;
// Of text that the library encodes: 236 with a token for every byte (folio-tokenizer-bench), and
// more for spaces, of which it makes three bytes each.
constexpr size_t kLibraryBytesPerByte = 320;

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Open(
    const std::string& path, int max_vocab_size, const TokenizerConfig& config) {
  FOLIO_ASSIGN_OR_RETURN(const std::string bytes, ReadSmallFile(path, kMaxModelBytes));
  return FromBytes(path, bytes, max_vocab_size, config);
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::FromBytes(
    const std::string& what, std::string_view model_bytes, int max_vocab_size,
    const TokenizerConfig& config) {
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
  return std::unique_ptr<SentencePieceTokenizer>(
      new SentencePieceTokenizer(std::move(processor), config, max_vocab_size));
}

SentencePieceTokenizer::SentencePieceTokenizer(std::unique_ptr<SpmProcessor> processor,
                                               const TokenizerConfig& config, int max_vocab_size)
    : processor_(std::move(processor)),
      bpe_(CharacterBpe::Create(*processor_)),
      legacy_(config.legacy),
      pieces_(processor_->pieces()),
      eos_id_(processor_->traits().eos_id) {
  for (size_t id = 0; id < pieces_.size(); ++id) {
    if (pieces_[id].kind != PieceKind::kControl) continue;
    special_tokens_.push_back({pieces_[id].name, static_cast<int32_t>(id)});
  }
  AddSpecialTokens(config, max_vocab_size);
}

// Those of the file's own that are named again say more. Without an embedding a token is of no use.
void SentencePieceTokenizer::AddSpecialTokens(const TokenizerConfig& config, int max_vocab_size) {
  for (const SpecialToken& token : config.special_tokens) {
    if (token.id >= max_vocab_size) continue;
    const auto known =
        std::find_if(special_tokens_.begin(), special_tokens_.end(),
                     [&](const SpecialToken& other) { return other.id == token.id; });
    if (known != special_tokens_.end()) {
      *known = token;
    } else if (token.id >= static_cast<int32_t>(processor_->pieces().size())) {
      special_tokens_.push_back(token);
      if (token.id >= vocab_size()) pieces_.resize(token.id + 1, {PieceKind::kControl, "", ""});
      pieces_[token.id].name = token.name;
    } else if (pieces_[token.id].kind == PieceKind::kText && pieces_[token.id].name == token.name) {
      special_tokens_.push_back(token);
      pieces_[token.id] = {PieceKind::kControl, token.name, ""};
      special_pieces_.push_back(token.name);
    }
    if (token.name == config.eos_token) eos_id_ = token.id;
  }
}

absl::Status SentencePieceTokenizer::AppendTokens(std::string_view text, TextStart start,
                                                  const Interrupt& interrupt,
                                                  std::vector<int32_t>* ids) const {
  const bool takes_space =
      start == TextStart::kBeginning || (start == TextStart::kAfterSpecial && legacy_);
  // Cut behind its first character, the name of a special token is text.
  size_t begin = 0;
  for (size_t at = 0; at < text.size() && !special_pieces_.empty(); ++at) {
    const bool is_special =
        std::any_of(special_pieces_.begin(), special_pieces_.end(),
                    [&](const std::string& name) { return text.substr(at).starts_with(name); });
    if (!is_special) continue;
    const size_t cut = at + Utf8Length(text[at]);
    FOLIO_RETURN_IF_ERROR(
        AppendPart(text.substr(begin, cut - begin), takes_space && begin == 0, interrupt, ids));
    begin = cut;
  }
  return AppendPart(text.substr(begin), takes_space && begin == 0, interrupt, ids);
}

absl::Status SentencePieceTokenizer::AppendPart(std::string_view text, bool takes_space,
                                                const Interrupt& interrupt,
                                                std::vector<int32_t>* ids) const {
  if (bpe_ != nullptr) {
    const bool with_space = takes_space && processor_->traits().adds_dummy_prefix;
    return bpe_->Encode(text, with_space, interrupt, ids);
  }
  std::vector<int32_t> by_library;
  std::string error;
  if (!processor_->Encode(text, &by_library, &error)) {
    return absl::InternalError(absl::StrCat("the tokenizer failed: ", error));
  }
  // The library puts a space in front of every text. One that has become part of a word stays.
  const bool has_space = !takes_space && !by_library.empty() &&
                         processor_->traits().adds_dummy_prefix &&
                         pieces_[by_library.front()].name == kSpaceSymbol;
  ids->insert(ids->end(), by_library.begin() + (has_space ? 1 : 0), by_library.end());
  return absl::OkStatus();
}

size_t SentencePieceTokenizer::encode_bytes_per_byte() const {
  return bpe_ != nullptr ? Tokenizer::encode_bytes_per_byte() : kLibraryBytesPerByte;
}

size_t SentencePieceTokenizer::max_bytes_per_token() const {
  const SpmTraits& traits = processor_->traits();
  // The library may make one unknown piece of many characters, and one space of many.
  if (bpe_ == nullptr || !traits.has_byte_pieces || traits.removes_extra_spaces) return 0;
  size_t most = 1;
  // A text may have the space symbol itself, of three bytes, where a name has it.
  for (const Piece& piece : pieces()) most = std::max(most, piece.name.size());
  return most;
}

absl::StatusOr<std::string> SentencePieceTokenizer::Decode(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (!Contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is outside the vocabulary of ", vocab_size()));
    }
  }
  std::vector<int32_t> known;
  for (const int32_t id : ids) {
    const bool is_there = static_cast<size_t>(id) < processor_->pieces().size();
    if (is_there && pieces_[id].kind == processor_->pieces()[id].kind) known.push_back(id);
  }
  std::string text;
  std::string error;
  if (processor_->Decode(known, &text, &error)) return text;
  return absl::InternalError(absl::StrCat("the tokenizer failed: ", error));
}

Tokenizer::LeadingSpace SentencePieceTokenizer::leading_space() const {
  const SpmTraits& traits = processor_->traits();
  if (traits.removes_extra_spaces) return LeadingSpace::kAllDropped;
  return traits.adds_dummy_prefix ? LeadingSpace::kFirstDropped : LeadingSpace::kKept;
}

}  // namespace folio
