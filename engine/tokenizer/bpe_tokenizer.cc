#include "engine/tokenizer/bpe_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

// Patterns that never match across a space between two other characters.
bool StopsAtSpaces(const std::string& pattern) {
  return pattern == kGpt2Pattern || pattern == kQwen2Pattern || pattern == kLlama3Pattern;
}

// Whether a cut before the space of "x y" would cut the token.
bool HasInnerSpace(const std::string& content) {
  for (size_t i = 1; i < content.size(); ++i) {
    if (content[i] == ' ' && content[i - 1] != ' ') return true;
  }
  return false;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

absl::StatusOr<std::string> Nfc(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text cannot be normalised: ", utf8proc_errmsg(size)));
  }
  std::string result(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
  std::free(composed);
  return result;
}

// Characters that stand for no byte stay: such a token can be generated but not read.
std::string BytesOf(const std::string& token) { return ByteLevelBytes(token).value_or(token); }

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Create(const std::string& what,
                                                                   const TokenizerJson& file,
                                                                   const TokenizerConfig& config,
                                                                   int max_vocab_size) {
  const auto about = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
  };
  const auto ends = CheckIds(file, config, max_vocab_size);
  if (!ends.ok()) return about(ends.status());
  BpeModel::Source source;
  source.whole_words_first = file.ignore_merges;
  for (const auto& [token, id] : file.vocab) source.vocab.emplace_back(BytesOf(token), id);
  for (const auto& [left, right] : file.merges) {
    source.merges.emplace_back(BytesOf(left), BytesOf(right));
  }
  auto model = BpeModel::Create(source);
  if (!model.ok()) return about(model.status());
  auto splitter = TextSplitter::Create(file.patterns);
  if (!splitter.ok()) return about(splitter.status());
  return std::unique_ptr<BpeTokenizer>(
      new BpeTokenizer(file, *ends, *std::move(model), *std::move(splitter)));
}

BpeTokenizer::BpeTokenizer(const TokenizerJson& file, TextEnds ends, BpeModel model,
                           TextSplitter splitter)
    : model_(std::move(model)),
      splitter_(std::move(splitter)),
      nfc_(file.nfc),
      ends_(ends),
      pieces_(PiecesOf(file,
                       [](const std::string& token) {
                         std::string text = BytesOf(token);
                         const PieceKind kind =
                             IsValidUtf8(text) ? PieceKind::kText : PieceKind::kBytes;
                         return Piece{kind, token, std::move(text)};
                       })),
      special_tokens_(SpecialTokensOf(file)) {
  bool cuts = !file.patterns.empty() && StopsAtSpaces(file.patterns.front());
  for (const TokenizerJson::AddedToken& token : file.added) {
    if (token.special) continue;
    (token.normalized ? normalized_added_ : raw_added_).Add(token);
    cuts = cuts && !HasInnerSpace(token.content);
  }
  if (cuts) space_cut_ = SpaceCut::kKeepsSpace;
}

struct BpeTokenizer::Work {
  InterruptCheck check;
  WindowMerger merger;
  std::vector<int32_t>* ids;
};

absl::Status BpeTokenizer::AppendTokens(std::string_view text, TextStart,
                                        const Interrupt& interrupt,
                                        std::vector<int32_t>* ids) const {
  Work work = {InterruptCheck(interrupt), WindowMerger(model_.merges()), ids};
  return raw_added_.Split(text, ids, [&](std::string_view part) -> absl::Status {
    if (!nfc_ || IsAscii(part)) return EncodeNormalized(part, &work);
    FOLIO_ASSIGN_OR_RETURN(const std::string composed, Nfc(part));
    return EncodeNormalized(composed, &work);
  });
}

absl::Status BpeTokenizer::EncodeNormalized(std::string_view text, Work* work) const {
  return normalized_added_.Split(text, work->ids, [&](std::string_view part) {
    return splitter_.Split(part, [&](std::string_view word) {
      return model_.Encode(word, &work->merger, &work->check, work->ids);
    });
  });
}

size_t BpeTokenizer::max_bytes_per_token() const {
  if (nfc_) return 0;  // may make the text shorter
  size_t most = 1;
  for (const Piece& piece : pieces_) most = std::max(most, piece.text.size());
  return most;
}

absl::StatusOr<std::string> BpeTokenizer::Decode(std::span<const int32_t> ids) const {
  return DecodeByPieces(*this, ids);
}

}  // namespace folio
