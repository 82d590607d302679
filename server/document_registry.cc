#include "server/document_registry.h"

#include <random>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

std::string FreshId() {
  std::random_device random;
  const uint64_t bits = uint64_t{random()} << 32 | random();
  return absl::StrCat("doc-", absl::Hex(bits, absl::kZeroPad16));
}

}  // namespace

void UploadState::NoteTokens(const std::vector<int32_t>& tokens, const Tokenizer& tokenizer) {
  std::lock_guard<std::mutex> lock(mu);
  for (int32_t token : tokens) {
    if (num_tokens_++ % kOffsetStride == 0) byte_offsets_.push_back(num_piece_bytes_);
    num_piece_bytes_ += tokenizer.pieces()[token].text.size();
  }
}

std::optional<uint64_t> UploadState::ByteOffset(int64_t token) const {
  std::lock_guard<std::mutex> lock(mu);
  // Some tokenizers put one space in front of the text.
  const uint64_t added = num_piece_bytes_ - next_offset;
  if (!finished || num_piece_bytes_ < next_offset || added > 1) return std::nullopt;
  if (token >= num_tokens_) return next_offset;
  if (token % kOffsetStride != 0) return std::nullopt;
  const uint64_t offset = byte_offsets_[token / kOffsetStride];
  return offset == 0 ? 0 : offset - added;
}

absl::StatusOr<DocumentRegistry::Opened> DocumentRegistry::FindOrCreate(const Fresh& fresh) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = documents_.find(fresh.id);
  if (it != documents_.end()) return Opened{it->second, false};
  if (static_cast<int>(documents_.size()) >= max_documents_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the server holds its limit of ", max_documents_,
                     " documents; delete some or raise --max-documents"));
  }
  const std::string id = fresh.id.empty() ? FreshId() : fresh.id;
  auto state =
      std::make_shared<UploadState>(id, fresh.display_name, fresh.attention, fresh.tokenizer);
  documents_.emplace(id, state);
  return Opened{std::move(state), true};
}

std::shared_ptr<UploadState> DocumentRegistry::Find(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = documents_.find(id);
  return it == documents_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<UploadState>> DocumentRegistry::List(const std::string& after,
                                                                 size_t count) const {
  std::lock_guard<std::mutex> lock(mu_);
  std::vector<std::shared_ptr<UploadState>> list;
  for (auto it = documents_.upper_bound(after); it != documents_.end() && list.size() < count;
       ++it) {
    list.push_back(it->second);
  }
  return list;
}

bool DocumentRegistry::Erase(const std::string& id) {
  std::lock_guard<std::mutex> lock(mu_);
  return documents_.erase(id) > 0;
}

int DocumentRegistry::size() const {
  std::lock_guard<std::mutex> lock(mu_);
  return static_cast<int>(documents_.size());
}

DocumentInfo DescribeDocument(const Engine& engine, const UploadState& state) {
  DocumentInfo info = engine.GetDocument(state.id).value_or(DocumentInfo{});
  info.id = state.id;
  if (info.attention.strategy.name.empty()) info.attention = state.attention;
  std::lock_guard<std::mutex> lock(state.mu);
  if (!state.error.ok()) info.status = state.error;
  return info;
}

}  // namespace folio::server
