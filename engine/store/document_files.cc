#include "engine/store/document_files.h"

#include <algorithm>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/store/document_id.h"
#include "engine/types/document_name.h"

namespace folio {
namespace {

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Above all names that are given.
int64_t NextNumber(const Manifest& manifest) {
  int64_t next = 0;
  for (const StoredRendition& rendition : manifest.renditions) {
    next = std::max(next, rendition.number + 1);
    for (const StoredSegment& segment : rendition.segments) next = std::max(next, segment.file + 1);
  }
  return next;
}

}  // namespace

DocumentFiles::DocumentFiles(const Surroundings& surroundings, Manifest first)
    : use_(surroundings),
      handle_{first.id, first.incarnation},
      directory_(absl::StrCat(kDocumentsDirectory, "/", DirectoryNameOf(first.id))),
      first_(std::move(first)) {}

DocumentFiles::DocumentFiles(const Surroundings& surroundings, ManifestFile found)
    : use_(surroundings),
      handle_{found.manifest.id, found.manifest.incarnation},
      directory_(absl::StrCat(kDocumentsDirectory, "/", DirectoryNameOf(found.manifest.id))),
      manifest_bytes_(found.num_bytes),
      next_number_(NextNumber(found.manifest)),
      has_new_names_(false),
      manifest_(std::make_shared<const Manifest>(std::move(found.manifest))) {}

std::string DocumentFiles::DirectoryOf(int64_t rendition) const {
  return absl::StrCat(directory_, "/", rendition);
}

std::string DocumentFiles::PathOf(const SegmentName& name) const {
  return absl::StrCat(directory_, "/", name.first, "/", name.second);
}

std::shared_ptr<const Manifest> DocumentFiles::manifest() const {
  const MutexLock lock(&mu_);
  return manifest_;
}

bool DocumentFiles::is_gone() const {
  const MutexLock lock(&io_mu_);
  return gone_;
}

absl::Status DocumentFiles::CheckHere() const {
  if (!gone_) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat("document ", Quoted(DocumentName(handle_.id)), " was deleted"));
}

absl::Status DocumentFiles::Update(const Change& change, Disposal disposal) {
  const MutexLock lock(&io_mu_);
  FOLIO_ASSIGN_OR_RETURN(auto next, Prepare(change));
  return Publish(std::move(next), disposal);
}

absl::StatusOr<std::pair<Manifest, std::string>> DocumentFiles::Prepare(const Change& change) {
  FOLIO_RETURN_IF_ERROR(CheckHere());
  const std::shared_ptr<const Manifest> old = manifest();
  Manifest next = old == nullptr ? first_ : *old;
  FOLIO_RETURN_IF_ERROR(change(&next));
  FOLIO_ASSIGN_OR_RETURN(std::string bytes, EncodeManifest(next));
  return std::pair(std::move(next), std::move(bytes));
}

absl::Status DocumentFiles::Publish(std::pair<Manifest, std::string> next, Disposal disposal) {
  FOLIO_RETURN_IF_ERROR(SyncNames(next.first));
  const std::string path = directory_ + "/manifest";
  const std::string draft = directory_ + "/manifest.tmp";
  FOLIO_RETURN_IF_ERROR(use_.files->Remove(draft));
  {
    FOLIO_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, use_.files->Create(draft));
    FOLIO_RETURN_IF_ERROR(file->Write(0, BytesOf(next.second)));
    FOLIO_RETURN_IF_ERROR(file->Sync());
  }
  absl::Status renamed = use_.files->Rename(draft, path);
  if (!renamed.ok()) {
    // A device may do it and say that it failed.
    const auto there = ReadManifest(use_.files, path);
    if (!there.ok() || !(there->manifest == next.first)) return renamed;
  }
  Adopt(std::move(next.first), static_cast<int64_t>(next.second.size()), disposal);
  FOLIO_RETURN_IF_ERROR(renamed);
  FOLIO_RETURN_IF_ERROR(use_.files->SyncDirectory(directory_));
  DisposeOfDoomed();
  return absl::OkStatus();
}

// What the manifest will name is durable before it is.
absl::Status DocumentFiles::SyncNames(const Manifest& next) {
  for (const StoredRendition& rendition : next.renditions) {
    const auto fresh = fresh_.lower_bound({rendition.number, 0});
    if (fresh == fresh_.end() || fresh->first.first != rendition.number) continue;
    FOLIO_RETURN_IF_ERROR(use_.files->SyncDirectory(DirectoryOf(rendition.number)));
  }
  if (has_new_names_) FOLIO_RETURN_IF_ERROR(use_.files->SyncDirectory(directory_));
  has_new_names_ = false;
  if (manifest() != nullptr) return absl::OkStatus();
  return use_.files->SyncDirectory(kDocumentsDirectory);
}

void DocumentFiles::Adopt(Manifest next, int64_t num_bytes, Disposal disposal) {
  const std::shared_ptr<const Manifest> old = manifest();
  if (old != nullptr) Doom(*old, next, disposal);
  for (const StoredRendition& rendition : next.renditions) {
    fresh_renditions_.erase(rendition.number);
    for (const StoredSegment& segment : rendition.segments) {
      fresh_.erase({rendition.number, segment.file});
    }
  }
  const int64_t old_log_bytes =
      old == nullptr ? 0 : old->logs.tokens.num_bytes + old->logs.offsets.num_bytes;
  log_bytes_ -= next.logs.tokens.num_bytes + next.logs.offsets.num_bytes - old_log_bytes;
  use_.space->Add({.documents = num_bytes - manifest_bytes_});
  manifest_bytes_ = num_bytes;
  const MutexLock lock(&mu_);
  manifest_ = std::make_shared<const Manifest>(std::move(next));
}

void DocumentFiles::Doom(const Manifest& old, const Manifest& next, Disposal disposal) {
  for (const StoredRendition& rendition : old.renditions) {
    const StoredRendition* now = next.FindRendition(rendition.number);
    if (now == nullptr) {
      const int64_t bytes = rendition.num_bytes() + ForgetFresh(rendition.number);
      doomed_.push_back({DirectoryOf(rendition.number), bytes, disposal});
      continue;
    }
    std::set<int64_t> named;
    for (const StoredSegment& segment : now->segments) named.insert(segment.file);
    for (const StoredSegment& segment : rendition.segments) {
      if (named.contains(segment.file)) continue;
      doomed_.push_back({PathOf({rendition.number, segment.file}), segment.num_bytes(), disposal});
    }
  }
}

void DocumentFiles::DisposeOfDoomed() {
  for (const Doomed& one : doomed_) {
    // What cannot be moved is counted, and reaped when the store is opened next.
    const absl::Status moved = one.disposal == Disposal::kTrash
                                   ? use_.trash->Discard(one.path, one.bytes)
                                   : use_.trash->Quarantine(one.path, one.bytes);
    moved.IgnoreError();
  }
  doomed_.clear();
}

int64_t DocumentFiles::ForgetFresh(int64_t rendition) {
  int64_t bytes = 0;
  for (auto it = fresh_.lower_bound({rendition, 0});
       it != fresh_.end() && it->first.first == rendition; it = fresh_.erase(it)) {
    bytes += it->second.segment.num_bytes();
  }
  return bytes;
}

int64_t DocumentFiles::BytesHeld() const {
  const std::shared_ptr<const Manifest> committed = manifest();
  int64_t bytes = manifest_bytes_ + log_bytes_;
  if (committed != nullptr) bytes += committed->data_bytes();
  for (const auto& one : fresh_) bytes += one.second.segment.num_bytes();
  for (const Doomed& one : doomed_) bytes += one.bytes;
  return bytes;
}

absl::Status DocumentFiles::Remove(Disposal disposal) {
  const MutexLock lock(&io_mu_);
  FOLIO_RETURN_IF_ERROR(CheckHere());
  FOLIO_RETURN_IF_ERROR(disposal == Disposal::kTrash
                            ? use_.trash->Discard(directory_, BytesHeld())
                            : use_.trash->Quarantine(directory_, BytesHeld()));
  gone_ = true;
  fresh_.clear();
  doomed_.clear();
  log_bytes_ = 0;
  FOLIO_RETURN_IF_ERROR(use_.files->SyncDirectory(
      disposal == Disposal::kTrash ? TrashCan::kTrash : TrashCan::kQuarantine));
  return use_.files->SyncDirectory(kDocumentsDirectory);
}

}  // namespace folio
