// What a document's writer does with its files.

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/store/document_files.h"
#include "engine/types/document_name.h"

namespace folio {
namespace {

constexpr int kMaxTriesOfAName = 1000;

}  // namespace

absl::Status DocumentFiles::MakeDirectory() {
  const MutexLock lock(&io_mu_);
  FOLIO_RETURN_IF_ERROR(CheckHere());
  // One that is there could not be moved when its document went.
  if (use_.files->List(directory_).ok()) {
    FOLIO_RETURN_IF_ERROR(use_.trash->Reap(directory_, BytesBelow(use_.files, directory_)));
  }
  return use_.files->MakeDirectory(directory_);
}

absl::Status DocumentFiles::BeginWriting() {
  const MutexLock lock(&io_mu_);
  FOLIO_RETURN_IF_ERROR(CheckHere());
  if (has_writer_) {
    return absl::FailedPreconditionError(absl::StrCat("document ", Quoted(DocumentName(handle_.id)),
                                                      " is being written by another"));
  }
  has_writer_ = true;
  return absl::OkStatus();
}

bool DocumentFiles::EndWriting() {
  const MutexLock lock(&io_mu_);
  has_writer_ = false;
  if (gone_) return true;
  const std::shared_ptr<const Manifest> committed = manifest();
  if (committed == nullptr) {
    // If it cannot be moved, it is counted; nothing names it.
    use_.trash->Discard(directory_, BytesHeld()).IgnoreError();
    gone_ = true;
    return true;
  }
  for (const auto& [name, fresh] : fresh_) {
    use_.trash->Discard(PathOf(name), fresh.segment.num_bytes()).IgnoreError();
  }
  fresh_.clear();
  for (const auto& one : fresh_renditions_) {
    use_.trash->Discard(DirectoryOf(one.first), 0).IgnoreError();
  }
  fresh_renditions_.clear();
  if (log_bytes_ > 0 && TokenLog::Open(use_.files, directory_, committed->logs).ok()) {
    use_.space->Add({.documents = -log_bytes_});
    log_bytes_ = 0;
  }
  return false;
}

absl::StatusOr<TokenLog> DocumentFiles::OpenTokenLog() {
  const MutexLock lock(&io_mu_);
  FOLIO_RETURN_IF_ERROR(CheckHere());
  const std::shared_ptr<const Manifest> committed = manifest();
  const TokenLogEnds ends = committed == nullptr ? TokenLogEnds{} : committed->logs;
  if (ends == TokenLogEnds{}) has_new_names_ = true;
  FOLIO_ASSIGN_OR_RETURN(TokenLog log, TokenLog::Open(use_.files, directory_, ends));
  // It is cut to what is committed.
  use_.space->Add({.documents = -log_bytes_});
  log_bytes_ = 0;
  return log;
}

absl::Status DocumentFiles::TakeLogBytes(int64_t bytes) {
  const MutexLock lock(&io_mu_);
  FOLIO_RETURN_IF_ERROR(CheckHere());
  FOLIO_RETURN_IF_ERROR(
      use_.space->Take(bytes, absl::StrCat("text of document ", Quoted(DocumentName(handle_.id)))));
  log_bytes_ += bytes;
  return absl::OkStatus();
}

bool DocumentFiles::HasRendition(int64_t number) const {
  const std::shared_ptr<const Manifest> committed = manifest();
  return fresh_renditions_.contains(number) ||
         (committed != nullptr && committed->FindRendition(number) != nullptr);
}

absl::StatusOr<int64_t> DocumentFiles::RenditionOf(const Fingerprint& model,
                                                   const std::string& attention) {
  const MutexLock lock(&io_mu_);
  FOLIO_RETURN_IF_ERROR(CheckHere());
  const auto is_it = [&](const StoredRendition& one) {
    return one.model == model && one.attention == attention;
  };
  if (const auto committed = manifest(); committed != nullptr) {
    for (const StoredRendition& one : committed->renditions) {
      if (is_it(one)) return one.number;
    }
  }
  for (const auto& [number, one] : fresh_renditions_) {
    if (is_it(one)) return number;
  }
  const int64_t number = next_number_++;
  FOLIO_RETURN_IF_ERROR(use_.files->MakeDirectory(DirectoryOf(number)));
  has_new_names_ = true;
  StoredRendition& fresh = fresh_renditions_[number];
  fresh.number = number;
  fresh.model = model;
  fresh.attention = attention;
  return number;
}

absl::StatusOr<DocumentFiles::Draft> DocumentFiles::CreateSegment(int64_t rendition,
                                                                  const SegmentShape& shape,
                                                                  const ContentKey& key,
                                                                  const SegmentData* data) {
  FOLIO_RETURN_IF_ERROR(shape.Check());
  const MutexLock lock(&io_mu_);
  FOLIO_RETURN_IF_ERROR(CheckHere());
  if (!HasRendition(rendition)) {
    return absl::NotFoundError(absl::StrCat("document ", Quoted(DocumentName(handle_.id)),
                                            " has no rendition ", rendition));
  }
  const int64_t bytes = shape.FileBytes();
  FOLIO_RETURN_IF_ERROR(
      use_.space->Take(bytes, absl::StrCat("KV of document ", Quoted(DocumentName(handle_.id)))));
  absl::Status status;
  for (int tries = 0; tries < kMaxTriesOfAName; ++tries) {
    const StoredSegment segment = {next_number_++, shape, key};
    const std::string path = PathOf({rendition, segment.file});
    auto writer = data == nullptr ? SegmentWriter::Create(use_.files, path, key, shape)
                                  : SegmentWriter::Link(use_.files, path, key, shape, *data);
    if (writer.ok()) {
      fresh_[{rendition, segment.file}] = {.segment = segment};
      return Draft{segment, *std::move(writer)};
    }
    status = writer.status();
    // Left by a process that ended, and not to be removed.
    if (!absl::IsAlreadyExists(status)) break;
  }
  use_.space->Add({.documents = -bytes});
  return status;
}

absl::Status DocumentFiles::KeepSegment(int64_t rendition, const StoredSegment& segment) {
  const MutexLock lock(&io_mu_);
  const auto fresh = fresh_.find({rendition, segment.file});
  if (fresh == fresh_.end()) {
    return absl::NotFoundError(absl::StrCat("rendition ", rendition, " of document ",
                                            Quoted(DocumentName(handle_.id)), " was dropped"));
  }
  fresh->second.finished = true;
  return absl::OkStatus();
}

void DocumentFiles::DiscardSegment(int64_t rendition, const StoredSegment& segment) {
  const MutexLock lock(&io_mu_);
  if (fresh_.erase({rendition, segment.file}) == 0) return;
  use_.trash->Discard(PathOf({rendition, segment.file}), segment.num_bytes()).IgnoreError();
}

absl::Status DocumentFiles::SetRendition(const StoredRendition& next, Manifest* manifest) const {
  const auto old = std::find_if(manifest->renditions.begin(), manifest->renditions.end(),
                                [&](const auto& one) { return one.number == next.number; });
  if (old == manifest->renditions.end() && !fresh_renditions_.contains(next.number)) {
    return absl::NotFoundError(absl::StrCat("document ", Quoted(DocumentName(handle_.id)),
                                            " has no rendition ", next.number));
  }
  const StoredRendition& known =
      old == manifest->renditions.end() ? fresh_renditions_.at(next.number) : *old;
  if (known.model != next.model || known.attention != next.attention) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendition ", next.number, " is of another model or attention"));
  }
  std::map<int64_t, const StoredSegment*> named;
  for (const StoredSegment& segment : known.segments) named[segment.file] = &segment;
  for (const StoredSegment& segment : next.segments) {
    const auto kept = named.find(segment.file);
    if (kept != named.end() && *kept->second == segment) continue;
    const auto fresh = fresh_.find({next.number, segment.file});
    if (fresh != fresh_.end() && fresh->second.finished && fresh->second.segment == segment) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("segment ", segment.file, " of rendition ", next.number, " was not finished"));
  }
  if (old == manifest->renditions.end()) {
    manifest->renditions.push_back(next);
  } else {
    *old = next;
  }
  return absl::OkStatus();
}

absl::Status DocumentFiles::Commit(const Progress& progress, bool* refused) {
  const MutexLock lock(&io_mu_);
  auto next = Prepare([&](Manifest* manifest) FOLIO_REQUIRES(io_mu_) -> absl::Status {
    manifest->state = progress.state;
    manifest->text_bytes = progress.text_bytes;
    manifest->logs = progress.logs;
    manifest->updated_us = use_.now_us();
    for (const StoredRendition& rendition : progress.renditions) {
      FOLIO_RETURN_IF_ERROR(SetRendition(rendition, manifest));
    }
    return absl::OkStatus();
  });
  *refused = !next.ok();
  if (!next.ok()) return next.status();
  return Publish(*std::move(next), Disposal::kTrash);
}

}  // namespace folio
