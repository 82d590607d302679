#include "engine/tokenizer/bpe_model.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr int32_t kNone = -1;

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Create(const Source& source) {
  BpeModel model;
  model.byte_ids_.fill(kNone);
  absl::flat_hash_map<std::string, int32_t> ids;
  for (const auto& [bytes, id] : source.vocab) {
    ids.emplace(bytes, id);
    if (bytes.size() == 1) model.byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (model.byte_ids_[byte] != kNone) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has no token for the byte 0x", absl::Hex(byte)));
  }
  for (size_t rank = 0; rank < source.merges.size(); ++rank) {
    const auto& [left, right] = source.merges[rank];
    const auto a = ids.find(left);
    const auto b = ids.find(right);
    const auto merged = ids.find(left + right);
    if (a == ids.end() || b == ids.end() || merged == ids.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, " (\"", absl::CHexEscape(left), "\", \"",
                       absl::CHexEscape(right), "\") names a token that the vocabulary lacks"));
    }
    if (left.empty() || right.empty()) continue;  // no text has such a pair
    model.merges_.Add(a->second, b->second, {static_cast<int32_t>(rank), merged->second});
  }
  if (source.whole_words_first) model.words_ = std::move(ids);
  return model;
}

absl::Status BpeModel::Encode(std::string_view word, WindowMerger* merger, InterruptCheck* check,
                              std::vector<int32_t>* ids) const {
  if (!words_.empty()) {
    if (const auto it = words_.find(absl::string_view(word.data(), word.size()));
        it != words_.end()) {
      ids->push_back(it->second);
      return check->Advance(word.size());
    }
  }
  while (!word.empty()) {
    const std::string_view slice = word.substr(0, InterruptCheck::kIntervalBytes);
    for (const char byte : slice) merger->Add(byte_ids_[static_cast<uint8_t>(byte)]);
    FOLIO_RETURN_IF_ERROR(check->Advance(slice.size()));
    word.remove_prefix(slice.size());
  }
  merger->Finish([&](int32_t token) { ids->push_back(token); });
  return absl::OkStatus();
}

}  // namespace folio
