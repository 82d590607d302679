#include "engine/tokenizer/bpe_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/utf8.h"

namespace folio {
namespace {

constexpr size_t kMaxFileBytes = 256 << 20;

// Patterns that never match across a space between two other characters, of Qwen2 and Llama 3.
constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

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

// -1: none is named, or the file has no such token.
int32_t IdOf(const TokenizerJson& file, const std::string& token) {
  if (token.empty()) return -1;
  for (const TokenizerJson::AddedToken& added : file.added) {
    if (added.content == token) return added.id;
  }
  for (const auto& [name, id] : file.vocab) {
    if (name == token) return id;
  }
  return -1;
}

// What the file beside `path` says, if there is one.
absl::StatusOr<TokenizerConfig> ConfigBeside(const std::string& path) {
  const std::string config_path =
      std::filesystem::path(path).replace_filename("tokenizer_config.json").string();
  const auto text = ReadSmallFile(config_path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return TokenizerConfig{};
  FOLIO_RETURN_IF_ERROR(text.status());
  return ParseTokenizerConfig(config_path, *text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Open(const std::string& path,
                                                                 int max_vocab_size) {
  FOLIO_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  FOLIO_ASSIGN_OR_RETURN(const TokenizerConfig config, ConfigBeside(path));
  return FromJson(path, text, max_vocab_size, config);
}

// A model was never taught an end that its tokenizer.json does not have; without the beginning that
// it was taught it would answer badly.
absl::StatusOr<BpeTokenizer::Ends> BpeTokenizer::EndsOf(const TokenizerJson& file,
                                                        const TokenizerConfig& config) {
  Ends ends = {file.bos_id, IdOf(file, config.eos_token)};
  if (!config.adds_bos.has_value()) return ends;
  ends.bos_id = *config.adds_bos ? IdOf(file, config.bos_token) : -1;
  if (*config.adds_bos && ends.bos_id < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("has no token \"", config.bos_token,
                     "\", the bos_token that tokenizer_config.json puts in front of a text"));
  }
  return ends;
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::FromJson(
    const std::string& what, std::string_view text, int max_vocab_size,
    const TokenizerConfig& config) {
  FOLIO_ASSIGN_OR_RETURN(const TokenizerJson file, ParseTokenizerJson(what, text));
  const auto about = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
  };
  int32_t last_id = file.bos_id;
  for (const auto& [token, id] : file.vocab) last_id = std::max(last_id, id);
  for (const AddedToken& token : file.added) last_id = std::max(last_id, token.id);
  if (last_id >= max_vocab_size) {
    return about(absl::InvalidArgumentError(absl::StrCat(
        "has the token id ", last_id, ", the model's vocab_size is ", max_vocab_size)));
  }
  const auto ends = EndsOf(file, config);
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

BpeTokenizer::BpeTokenizer(const TokenizerJson& file, Ends ends, BpeModel model,
                           TextSplitter splitter)
    : model_(std::move(model)), splitter_(std::move(splitter)), nfc_(file.nfc), ends_(ends) {
  FillPieces(file);
  bool cuts = !file.patterns.empty() && StopsAtSpaces(file.patterns.front());
  for (const AddedToken& token : file.added) {
    if (token.special) continue;
    (token.normalized ? normalized_added_ : raw_added_).Add(token);
    cuts = cuts && !HasInnerSpace(token.content);
  }
  if (cuts) space_cut_ = SpaceCut::kKeepsSpace;
}

void BpeTokenizer::FillPieces(const TokenizerJson& file) {
  const auto at = [&](int32_t id) -> Piece& {
    // Ids that the file leaves out stand for nothing.
    if (static_cast<size_t>(id) >= pieces_.size()) {
      pieces_.resize(id + 1, {PieceKind::kControl, "", ""});
    }
    return pieces_[id];
  };
  for (const auto& [token, id] : file.vocab) {
    std::string text = BytesOf(token);
    const PieceKind kind = IsValidUtf8(text) ? PieceKind::kText : PieceKind::kBytes;
    at(id) = {kind, token, std::move(text)};
  }
  for (const AddedToken& token : file.added) {
    at(token.id) = token.special ? Piece{PieceKind::kControl, token.content, ""}
                                 : Piece{PieceKind::kText, token.content, token.content};
  }
}

void BpeTokenizer::AddedTokens::Add(const AddedToken& token) {
  const auto longer = std::find_if(tokens.begin(), tokens.end(), [&](const AddedToken& other) {
    return other.content.size() < token.content.size();
  });
  tokens.insert(longer, token);
  first_bytes.set(static_cast<uint8_t>(token.content[0]));
}

const TokenizerJson::AddedToken* BpeTokenizer::AddedTokens::At(std::string_view text) const {
  if (!first_bytes.test(static_cast<uint8_t>(text[0]))) return nullptr;
  const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const AddedToken& token) {
    return text.starts_with(token.content);
  });
  return found == tokens.end() ? nullptr : &*found;
}

template <typename Between>
absl::Status BpeTokenizer::SplitAt(const AddedTokens& added, std::string_view text,
                                   std::vector<int32_t>* ids, Between between) {
  if (added.tokens.empty()) return between(text);
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* found = added.At(text.substr(at));
    if (found == nullptr) {
      ++at;
      continue;
    }
    FOLIO_RETURN_IF_ERROR(between(text.substr(begin, at - begin)));
    ids->push_back(found->id);
    begin = at += found->content.size();
  }
  return between(text.substr(begin));
}

struct BpeTokenizer::Work {
  InterruptCheck check;
  WindowMerger merger;
  std::vector<int32_t>* ids;
};

absl::Status BpeTokenizer::AppendTokens(std::string_view text, const Interrupt& interrupt,
                                        std::vector<int32_t>* ids) const {
  Work work = {InterruptCheck(interrupt), WindowMerger(model_.merges()), ids};
  return SplitAt(raw_added_, text, ids, [&](std::string_view part) -> absl::Status {
    if (!nfc_ || IsAscii(part)) return EncodeNormalized(part, &work);
    FOLIO_ASSIGN_OR_RETURN(const std::string composed, Nfc(part));
    return EncodeNormalized(composed, &work);
  });
}

absl::Status BpeTokenizer::EncodeNormalized(std::string_view text, Work* work) const {
  return SplitAt(normalized_added_, text, work->ids, [&](std::string_view part) {
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
  IncrementalDetokenizer detokenizer(*this, IncrementalDetokenizer::Start::kWholeText);
  std::string text;
  for (const int32_t id : ids) {
    if (!Contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", id, " is not in [0, ", vocab_size(), ")"));
    }
    text += detokenizer.Add(id);
  }
  return text + detokenizer.Flush();
}

}  // namespace folio
