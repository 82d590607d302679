#include "engine/tokenizer/spm_processor.h"

#include <cmath>
#include <cstdlib>
#include <exception>
#include <set>
#include <utility>

#include "engine/tokenizer/utf8.h"

// No Abseil or gRPC header may be added here: see the header.
#include "sentencepiece_model.pb.h"
#include "sentencepiece_processor.h"

// Of the library's common.h, which also defines LOG and CHECK macros.
namespace sentencepiece::logging {
void SetMinLogLevel(int level);
}

namespace folio {
namespace {

// The library's levels are INFO, WARNING, ERROR, FATAL; it writes to stderr.
constexpr int kLogErrors = 2;

using sentencepiece::ModelProto;

std::string WithPlainSpaces(std::string_view name) {
  std::string text;
  for (size_t i = 0; i < name.size();) {
    const bool is_space = name.substr(i, kSpaceSymbol.size()) == kSpaceSymbol;
    text += is_space ? ' ' : name[i];
    i += is_space ? kSpaceSymbol.size() : 1;
  }
  return text;
}

// "<0xE2>" is the byte E2.
std::string ByteOf(const std::string& name) {
  return std::string(1, static_cast<char>(std::strtol(name.c_str() + 1, nullptr, 16)));
}

Piece MakePiece(const ModelProto::SentencePiece& entry, const std::string& unknown_text) {
  Piece piece;
  piece.name = entry.piece();
  switch (entry.type()) {
    case ModelProto::SentencePiece::CONTROL:
      piece.kind = PieceKind::kControl;
      break;
    case ModelProto::SentencePiece::UNKNOWN:
      piece.kind = PieceKind::kUnknown;
      piece.text = unknown_text;
      break;
    case ModelProto::SentencePiece::BYTE:
      piece.kind = PieceKind::kBytes;
      piece.text = ByteOf(piece.name);
      break;
    default:
      piece.text = WithPlainSpaces(piece.name);
  }
  return piece;
}

// Byte-pair encoding after a normalisation that only escapes, adds or removes spaces.
bool IsBpeOfPlainText(const ModelProto& model) {
  const auto& normalizer = model.normalizer_spec();
  const auto& trainer = model.trainer_spec();
  return trainer.model_type() == sentencepiece::TrainerSpec::BPE &&
         !trainer.treat_whitespace_as_suffix() && normalizer.precompiled_charsmap().empty() &&
         normalizer.escape_whitespaces();
}

bool HasSymbolAfterAnother(std::string_view name) {
  while (name.starts_with(kSpaceSymbol)) name.remove_prefix(kSpaceSymbol.size());
  return name.find(kSpaceSymbol) != std::string_view::npos;
}

bool PiecesEndAtSpaces(const ModelProto& model) {
  for (const auto& entry : model.pieces()) {
    if (HasSymbolAfterAnother(entry.piece())) return false;
  }
  return true;
}

// Whether no rule of the model can see across a cut before a space between two other characters:
//  - BPE only: merges are local. The unigram model adds up float scores from the start of the
//    text, so that rounding may decide ties differently.
//  - no normalisation rules: one could match a space together with its neighbours;
//  - the dummy prefix puts the dropped space back, as the symbol which a space becomes;
//  - no piece has the symbol after another character: no merge crosses the cut. Pieces of several
//    symbols ("▁▁" of Llama 2) lie on one side of it;
//  - the symbol is a piece: a run of unknown characters, which becomes one token, ends at it;
//  - no user-defined piece has a space or the symbol: these match before anything else;
//  - no piece is marked unused: the library takes such a piece apart as it was last put together
//    anywhere in the text.
// Source: own, from the published algorithm.
bool CanCutAtSpaces(const ModelProto& model) {
  if (!IsBpeOfPlainText(model) || !model.normalizer_spec().add_dummy_prefix() ||
      !PiecesEndAtSpaces(model)) {
    return false;
  }
  bool has_space_piece = false;
  for (const auto& entry : model.pieces()) {
    const std::string_view name = entry.piece();
    const bool has_symbol = name.find(kSpaceSymbol) != std::string_view::npos;
    if (entry.type() == ModelProto::SentencePiece::UNUSED) return false;
    if (entry.type() == ModelProto::SentencePiece::USER_DEFINED &&
        (has_symbol || name.find(' ') != std::string_view::npos)) {
      return false;
    }
    has_space_piece |= name == kSpaceSymbol && entry.type() == ModelProto::SentencePiece::NORMAL;
  }
  return has_space_piece;
}

// Whether pieces merge by their scores and nothing else is to be known:
//  - no user-defined pieces, which match before anything else, and no unused ones;
//  - no piece is named as one that no text has (<s>, <0x41>), nor is a character: the library then
//    gives that one's id;
//  - scores have an order;
//  - no piece is so long that the ways to take it apart (square in its bytes) are felt.
bool IsPlainBpe(const ModelProto& model) {
  if (!IsBpeOfPlainText(model)) return false;
  constexpr size_t kMaxPieceBytes = 1024;
  std::set<std::string_view> normal;
  for (const auto& entry : model.pieces()) {
    if (entry.type() != ModelProto::SentencePiece::NORMAL) continue;
    if (std::isnan(entry.score()) || entry.piece().size() > kMaxPieceBytes) return false;
    normal.insert(entry.piece());
  }
  for (const auto& entry : model.pieces()) {
    const std::string_view name = entry.piece();
    const bool is_character = name.size() == Utf8Length(name[0]);
    switch (entry.type()) {
      case ModelProto::SentencePiece::NORMAL:
        break;
      case ModelProto::SentencePiece::UNKNOWN:
      case ModelProto::SentencePiece::CONTROL:
      case ModelProto::SentencePiece::BYTE:
        if (is_character || normal.contains(name)) return false;
        break;
      default:
        return false;
    }
  }
  return true;
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Runs a library call; its status, or an exception it lets through, becomes a text.
template <typename Call>
bool Guarded(const Call& call, std::string* error) {
  try {
    const sentencepiece::util::Status status = call();
    if (status.ok()) return true;
    *error = status.ToString();
  } catch (const std::exception& exception) {
    *error = exception.what();
  }
  return false;
}

}  // namespace

class SpmProcessor::Library {
 public:
  sentencepiece::SentencePieceProcessor processor;
};

SpmProcessor::SpmProcessor(std::unique_ptr<Library> library) : library_(std::move(library)) {
  const auto& processor = library_->processor;
  const ModelProto& model = processor.model_proto();
  for (const auto& entry : model.pieces()) {
    pieces_.push_back(MakePiece(entry, model.trainer_spec().unk_surface()));
    scores_.push_back(entry.score());
  }
  traits_.bos_id = processor.bos_id();
  traits_.eos_id = processor.eos_id();
  traits_.unk_id = processor.unk_id();
  traits_.adds_dummy_prefix = model.normalizer_spec().add_dummy_prefix();
  traits_.removes_extra_spaces = model.normalizer_spec().remove_extra_whitespaces();
  traits_.has_denormalizer = !model.denormalizer_spec().precompiled_charsmap().empty();
  traits_.has_byte_pieces = model.trainer_spec().byte_fallback();
  traits_.can_cut_at_spaces = CanCutAtSpaces(model);
  traits_.pieces_end_at_spaces = PiecesEndAtSpaces(model);
  traits_.is_plain_bpe = IsPlainBpe(model);
}

SpmProcessor::~SpmProcessor() = default;

std::unique_ptr<SpmProcessor> SpmProcessor::Create(std::string_view model_bytes,
                                                   std::string* error) {
  sentencepiece::logging::SetMinLogLevel(kLogErrors);
  auto library = std::make_unique<Library>();
  const auto load = [&] { return library->processor.LoadFromSerializedProto(View(model_bytes)); };
  if (!Guarded(load, error)) return nullptr;
  return std::unique_ptr<SpmProcessor>(new SpmProcessor(std::move(library)));
}

bool SpmProcessor::Encode(std::string_view text, std::vector<int32_t>* ids,
                          std::string* error) const {
  return Guarded([&] { return library_->processor.Encode(View(text), ids); }, error);
}

bool SpmProcessor::Decode(const std::vector<int32_t>& ids, std::string* text,
                          std::string* error) const {
  return Guarded([&] { return library_->processor.Decode(ids, text); }, error);
}

}  // namespace folio
