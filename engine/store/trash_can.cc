#include "engine/store/trash_can.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

// Deeper directories are not a store's.
constexpr int kMaxDepth = 8;

int64_t BytesBelow(FileSystem* files, const std::string& directory, int depth) {
  const auto entries = files->List(directory);
  if (!entries.ok() || depth == 0) return 0;
  int64_t total = 0;
  for (const DirectoryEntry& entry : *entries) {
    total += entry.is_directory
                 ? BytesBelow(files, absl::StrCat(directory, "/", entry.name), depth - 1)
                 : entry.size_bytes;
  }
  return total;
}

}  // namespace

int64_t BytesBelow(FileSystem* files, const std::string& directory) {
  return BytesBelow(files, directory, kMaxDepth);
}

absl::Status TrashCan::Open() {
  Entries trash;
  Entries quarantine;
  FOLIO_RETURN_IF_ERROR(OpenOne(kTrash, &trash));
  FOLIO_RETURN_IF_ERROR(OpenOne(kQuarantine, &quarantine));
  const MutexLock lock(&mu_);
  for (const Entries* entries : {&trash, &quarantine}) {
    if (!entries->empty()) next_number_ = std::max(next_number_, entries->rbegin()->first + 1);
  }
  trash_ = std::move(trash);
  quarantine_ = std::move(quarantine);
  return absl::OkStatus();
}

absl::Status TrashCan::OpenOne(const std::string& directory, Entries* entries) {
  FOLIO_RETURN_IF_ERROR(files_->MakeDirectory(directory));
  FOLIO_ASSIGN_OR_RETURN(const std::vector<DirectoryEntry> listed, files_->List(directory));
  for (const DirectoryEntry& entry : listed) {
    int64_t number = 0;
    // Names that were not given here are left alone.
    if (!absl::SimpleAtoi(entry.name, &number) || number < 0 || number > (int64_t{1} << 56) ||
        absl::StrCat(number) != entry.name) {
      continue;
    }
    const int64_t bytes = entry.is_directory
                              ? BytesBelow(files_, absl::StrCat(directory, "/", entry.name))
                              : entry.size_bytes;
    (*entries)[number] = bytes;
    space_->Add(directory == kTrash ? StoreBytes{.trash = bytes} : StoreBytes{.quarantine = bytes});
  }
  return absl::OkStatus();
}

int64_t TrashCan::TakeNumber() {
  const MutexLock lock(&mu_);
  return next_number_++;
}

absl::Status TrashCan::Discard(const std::string& path, int64_t bytes) {
  const int64_t number = TakeNumber();
  absl::Status moved = files_->Rename(path, absl::StrCat(kTrash, "/", number));
  const MutexLock lock(&mu_);
  if (absl::IsNotFound(moved)) {
    space_->Add({.documents = -bytes});
    return absl::OkStatus();
  }
  if (!moved.ok()) {
    ++num_unmovable_;
    return moved;
  }
  trash_[number] = bytes;
  space_->Add({.documents = -bytes, .trash = bytes});
  return absl::OkStatus();
}

absl::Status TrashCan::Reap(const std::string& path, int64_t bytes) {
  space_->Add({.documents = bytes});
  return Discard(path, bytes);
}

absl::Status TrashCan::Quarantine(const std::string& path, int64_t bytes) {
  const int64_t number = TakeNumber();
  absl::Status moved = files_->Rename(path, absl::StrCat(kQuarantine, "/", number));
  {
    const MutexLock lock(&mu_);
    ++num_quarantined_;
    if (absl::IsNotFound(moved)) {
      space_->Add({.documents = -bytes});
      return absl::OkStatus();
    }
    if (!moved.ok()) {
      ++num_unmovable_;
      return moved;
    }
    quarantine_[number] = bytes;
    space_->Add({.documents = -bytes, .quarantine = bytes});
  }
  ThinQuarantine();
  return absl::OkStatus();
}

void TrashCan::ThinQuarantine() {
  int64_t number = 0;
  int64_t bytes = 0;
  {
    const MutexLock lock(&mu_);
    if (quarantine_.size() <= kMaxQuarantined) return;
    number = quarantine_.begin()->first;
    bytes = quarantine_.begin()->second;
    quarantine_.erase(quarantine_.begin());
  }
  const std::string name = absl::StrCat("/", number);
  const bool moved = files_->Rename(kQuarantine + name, kTrash + name).ok();
  const MutexLock lock(&mu_);
  if (moved) {
    trash_[number] = bytes;
    space_->Add({.trash = bytes, .quarantine = -bytes});
  } else {
    quarantine_[number] = bytes;
    ++num_unmovable_;
  }
}

int64_t TrashCan::Empty() {
  Entries entries;
  {
    const MutexLock lock(&mu_);
    entries = trash_;
  }
  int64_t num_removed = 0;
  for (const auto& [number, bytes] : entries) {
    if (!files_->Remove(absl::StrCat(kTrash, "/", number)).ok()) continue;
    ++num_removed;
    const MutexLock lock(&mu_);
    trash_.erase(number);
    space_->Add({.trash = -bytes});
  }
  const MutexLock lock(&mu_);
  num_left_ = static_cast<int64_t>(entries.size()) - num_removed;
  return num_removed;
}

int64_t TrashCan::num_quarantined() const {
  const MutexLock lock(&mu_);
  return num_quarantined_;
}

int64_t TrashCan::num_unremovable() const {
  const MutexLock lock(&mu_);
  return num_unmovable_ + num_left_;
}

}  // namespace folio
