#include "engine/tokenizer/bpe_model.h"

#include <queue>
#include <tuple>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace folio {
namespace {

constexpr int32_t kNone = -1;

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// A part of a word, in a list of its neighbours. Merged into its left one: id is kNone.
struct Part {
  int32_t id;
  int32_t before;
  int32_t after;
};

// A merge that was possible when it was found.
struct Candidate {
  int32_t rank;
  int32_t at;  // of the left part
  int32_t left;
  int32_t right;
  int32_t id;
  bool operator>(const Candidate& other) const {
    return std::tie(rank, at) > std::tie(other.rank, other.at);
  }
};

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Create(const Source& source) {
  BpeModel model;
  model.byte_ids_.fill(kNone);
  std::unordered_map<std::string, int32_t> ids;
  for (const auto& [bytes, id] : source.vocab) {
    ids.emplace(bytes, id);
    if (bytes.size() == 1) model.byte_ids_[static_cast<uint8_t>(bytes[0])] = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (model.byte_ids_[byte] != kNone) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has no token for the byte 0x", absl::Hex(byte)));
  }
  model.merges_.reserve(source.merges.size());
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
    model.merges_.try_emplace(PairKey(a->second, b->second),
                              Merge{static_cast<int32_t>(rank), merged->second});
  }
  if (source.whole_words_first) model.words_ = std::move(ids);
  return model;
}

const BpeModel::Merge* BpeModel::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void BpeModel::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (!words_.empty()) {
    if (const auto it = words_.find(std::string(word)); it != words_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  const auto size = static_cast<int32_t>(word.size());
  std::vector<Part> parts(word.size());
  for (int32_t i = 0; i < size; ++i) {
    parts[i] = {byte_ids_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < size ? i + 1 : kNone};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](int32_t at) {
    if (at == kNone || parts[at].after == kNone) return;
    const int32_t left = parts[at].id;
    const int32_t right = parts[parts[at].after].id;
    const Merge* merge = Find(left, right);
    if (merge != nullptr) candidates.push({merge->rank, at, left, right, merge->id});
  };
  for (int32_t i = 0; i < size; ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Part& left = parts[best.at];
    // Either part may have been merged with another neighbour since.
    if (left.id != best.left || left.after == kNone || parts[left.after].id != best.right) continue;
    Part& right = parts[left.after];
    left.id = best.id;
    left.after = right.after;
    if (right.after != kNone) parts[right.after].before = best.at;
    right.id = kNone;
    consider(left.before);
    consider(best.at);
  }
  for (const Part& part : parts) {
    if (part.id != kNone) ids->push_back(part.id);
  }
}

}  // namespace folio
