#include "engine/store/document_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {

SegmentDraft::~SegmentDraft() {
  if (document_ != nullptr) document_->DiscardSegment(rendition_, draft_.segment);
}

absl::Status SegmentDraft::WriteSlice(int slice, std::span<const std::byte* const> pages) {
  return draft_.writer.WriteSlice(slice, pages);
}

absl::StatusOr<StoredSegment> SegmentDraft::Finish() {
  FOLIO_RETURN_IF_ERROR(draft_.writer.Finish());
  FOLIO_RETURN_IF_ERROR(document_->KeepSegment(rendition_, draft_.segment));
  document_.reset();
  return draft_.segment;
}

DocumentWriter::DocumentWriter(std::shared_ptr<DocumentFiles> document,
                               std::function<void()> when_gone)
    : document_(std::move(document)), when_gone_(std::move(when_gone)) {
  const std::shared_ptr<const Manifest> committed = document_->manifest();
  if (committed == nullptr) return;
  ends_ = committed->logs;
  num_tokens_ = committed->num_tokens();
  text_bytes_ = committed->text_bytes;
}

DocumentWriter::~DocumentWriter() {
  log_.reset();
  if (document_->EndWriting()) when_gone_();
}

absl::Status DocumentWriter::Broken(absl::Status status) {
  broken_ = status;
  return status;
}

absl::Status DocumentWriter::AppendTokens(std::span<const int32_t> ids,
                                          std::span<const int64_t> offsets, int64_t text_bytes) {
  FOLIO_RETURN_IF_ERROR(broken_);
  if (ids.size() != offsets.size() || text_bytes < text_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(ids.size(), " tokens with ", offsets.size(),
                                                   " offsets, up to byte ", text_bytes, " after ",
                                                   text_bytes_));
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  offsets_.insert(offsets_.end(), offsets.begin(), offsets.end());
  num_tokens_ += static_cast<int64_t>(ids.size());
  text_bytes_ = text_bytes;
  return ids_.size() < TokenLog::kTokensPerRecord ? absl::OkStatus() : WriteTokens();
}

absl::Status DocumentWriter::WriteTokens() {
  size_t written = 0;
  absl::Status status;
  while (written < ids_.size() && status.ok()) {
    if (!log_.has_value()) {
      auto log = document_->OpenTokenLog();
      if (!log.ok()) return Broken(log.status());
      log_ = *std::move(log);
    }
    const size_t count = std::min(ids_.size() - written, TokenLog::kTokensPerRecord);
    const auto offsets = std::span(offsets_).subspan(written, count);
    status = document_->TakeLogBytes(TokenLog::BytesOf(offsets));
    if (!status.ok()) break;
    status = log_->Append(std::span(ids_).subspan(written, count), offsets);
    if (!status.ok()) return Broken(status);
    written += count;
  }
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(written));
  offsets_.erase(offsets_.begin(), offsets_.begin() + static_cast<std::ptrdiff_t>(written));
  return status;
}

absl::StatusOr<SegmentDraft> DocumentWriter::AddSegment(int64_t rendition,
                                                        const SegmentShape& shape,
                                                        const ContentKey& key) {
  FOLIO_RETURN_IF_ERROR(broken_);
  FOLIO_ASSIGN_OR_RETURN(DocumentFiles::Draft draft,
                         document_->CreateSegment(rendition, shape, key));
  return SegmentDraft(document_, rendition, std::move(draft));
}

absl::StatusOr<SegmentDraft> DocumentWriter::LinkSegment(int64_t rendition,
                                                         const SegmentShape& shape,
                                                         const ContentKey& key,
                                                         const SegmentData& data) {
  FOLIO_RETURN_IF_ERROR(broken_);
  FOLIO_ASSIGN_OR_RETURN(DocumentFiles::Draft draft,
                         document_->CreateSegment(rendition, shape, key, &data));
  return SegmentDraft(document_, rendition, std::move(draft));
}

absl::Status DocumentWriter::Commit(StoredState state,
                                    std::span<const StoredRendition> renditions) {
  FOLIO_RETURN_IF_ERROR(broken_);
  FOLIO_RETURN_IF_ERROR(WriteTokens());
  if (log_.has_value()) {
    if (const absl::Status synced = log_->Sync(); !synced.ok()) return Broken(synced);
    ends_ = log_->ends();
  }
  bool refused = false;
  const absl::Status committed =
      document_->Commit({.state = state,
                         .text_bytes = text_bytes_,
                         .logs = ends_,
                         .renditions = {renditions.begin(), renditions.end()}},
                        &refused);
  return committed.ok() || refused ? committed : Broken(committed);
}

}  // namespace folio
