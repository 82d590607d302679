#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/document_files.h"

namespace folio {

// A segment that is being written. What is not finished is discarded. One thread; ends before its
// document's writer.
class SegmentDraft {
 public:
  SegmentDraft(std::shared_ptr<DocumentFiles> document, int64_t rendition,
               DocumentFiles::Draft draft)
      : document_(std::move(document)), rendition_(rendition), draft_(std::move(draft)) {}
  SegmentDraft(SegmentDraft&&) noexcept = default;
  SegmentDraft& operator=(SegmentDraft&&) = delete;
  ~SegmentDraft();

  // As SegmentWriter::WriteSlice.
  absl::Status WriteSlice(int slice, std::span<const std::byte* const> pages);
  // Durable when it returns, but for its name: a commit has to name what is returned. Errors: those
  // of SegmentWriter::Finish, NOT_FOUND if the rendition or the document is gone.
  absl::StatusOr<StoredSegment> Finish();

 private:
  std::shared_ptr<DocumentFiles> document_;  // null: finished, or moved from
  int64_t rendition_;
  DocumentFiles::Draft draft_;
};

// Adds to one document, which has one writer at a time. What was not committed when it is destroyed
// is discarded; a document of which nothing was committed is none. One thread; ends before its
// store.
class DocumentWriter {
 public:
  DocumentWriter(std::shared_ptr<DocumentFiles> document, std::function<void()> when_gone);
  ~DocumentWriter();
  DocumentWriter(const DocumentWriter&) = delete;
  DocumentWriter& operator=(const DocumentWriter&) = delete;

  const DocumentHandle& handle() const { return document_->handle(); }
  // Appended so far, committed or not.
  int64_t num_tokens() const { return num_tokens_; }
  int64_t text_bytes() const { return text_bytes_; }

  // Appends tokens and where each begins in the text; all of them so far are the tokens of its
  // first `text_bytes` bytes, whatever follows. They are written now or by Commit. Errors:
  // INVALID_ARGUMENT (not as many offsets); RESOURCE_EXHAUSTED beyond the quota: they are kept, and
  // a later call or Commit tries again. After any other error the writer takes no more.
  absl::Status AppendTokens(std::span<const int32_t> ids, std::span<const int64_t> offsets,
                            int64_t text_bytes);

  // The number of the rendition of a model and an attention, a new one if there is none. Errors:
  // NOT_FOUND if the document is gone, those of the file system.
  absl::StatusOr<int64_t> RenditionOf(const Fingerprint& model, const std::string& attention) {
    return document_->RenditionOf(model, attention);
  }
  // Errors: INVALID_ARGUMENT (shape), NOT_FOUND (document, rendition), RESOURCE_EXHAUSTED beyond
  // the quota, those of the file system. The writer goes on.
  absl::StatusOr<SegmentDraft> AddSegment(int64_t rendition, const SegmentShape& shape,
                                          const ContentKey& key);
  // The same of data that is in a file: nothing is left to be written. Errors besides: those of
  // SegmentWriter::Link, after which it may be added by copying.
  absl::StatusOr<SegmentDraft> LinkSegment(int64_t rendition, const SegmentShape& shape,
                                           const ContentKey& key, const SegmentData& data);

  // Makes durable, when it returns, what was appended, and the renditions that are given: each with
  // all of its segments, those it had and shall keep, and finished ones. Segments that are named no
  // more are discarded. Errors: NOT_FOUND (document, rendition), FAILED_PRECONDITION (a segment
  // that was not finished), INVALID_ARGUMENT (cannot be encoded), RESOURCE_EXHAUSTED (quota, disk),
  // those of the file system. What was committed before stays; after an error of the file system
  // the writer takes no more.
  absl::Status Commit(StoredState state, std::span<const StoredRendition> renditions);

 private:
  absl::Status WriteTokens();
  // Notes an error that ends the writer.
  absl::Status Broken(absl::Status status);

  const std::shared_ptr<DocumentFiles> document_;
  const std::function<void()> when_gone_;
  absl::Status broken_;
  std::optional<TokenLog> log_;  // opened by the first tokens
  TokenLogEnds ends_;
  std::vector<int32_t> ids_;  // not written yet
  std::vector<int64_t> offsets_;
  int64_t num_tokens_ = 0;
  int64_t text_bytes_ = 0;
};

}  // namespace folio
