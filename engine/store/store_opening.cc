#include "engine/store/store_opening.h"

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/for_all.h"
#include "engine/base/status_macros.h"
#include "engine/base/task_threads.h"
#include "engine/store/document_id.h"

namespace folio {
namespace {

constexpr char kFormatFile[] = "folio-store";
constexpr char kFormatDraft[] = "folio-store.tmp";
constexpr char kFormatLine[] = "folio-store 1\n";

// Beside the caller: a document costs some small reads, and a disk serves many at a time.
constexpr int kOpeningHelpers = 7;

using Surroundings = DocumentFiles::Surroundings;
using Entries = std::vector<DirectoryEntry>;

std::string Below(const std::string& directory, const std::string& name) {
  return absl::StrCat(directory, "/", name);
}

// Of a file system, or of who opened it, before there is a store.
bool MayBeThereBefore(const std::string& name) {
  return name == "lock" || name == "lost+found" || name == kFormatDraft;
}

absl::Status MakeFormatFile(FileSystem* files) {
  FOLIO_RETURN_IF_ERROR(files->Remove(kFormatDraft));
  {
    FOLIO_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, files->Create(kFormatDraft));
    const std::string_view line = kFormatLine;
    FOLIO_RETURN_IF_ERROR(file->Write(0, std::as_bytes(std::span(line.data(), line.size()))));
    FOLIO_RETURN_IF_ERROR(file->Sync());
  }
  FOLIO_RETURN_IF_ERROR(files->Rename(kFormatDraft, kFormatFile));
  return files->SyncDirectory("");
}

int64_t BytesOf(FileSystem* files, const std::string& path, const DirectoryEntry& entry) {
  return entry.is_directory ? BytesBelow(files, path) : entry.size_bytes;
}

// Cuts or reaps a log that is longer than the manifest says.
void TrimLog(const Surroundings& use, const std::string& path, const DirectoryEntry& entry,
             const LogEnd& end) {
  // What fails here is counted by nothing and tried again: no token is read behind the end.
  if (end.num_bytes == 0) {
    use.trash->Reap(path, entry.size_bytes).IgnoreError();
  } else if (entry.size_bytes > end.num_bytes) {
    use.files->Reopen(path, end.num_bytes).status().IgnoreError();
  }
}

void ReapSegments(const Surroundings& use, const std::string& directory,
                  const StoredRendition& rendition) {
  const auto entries = use.files->List(directory);
  if (!entries.ok()) return;  // reading it will say
  std::set<std::string> named;
  for (const StoredSegment& segment : rendition.segments) named.insert(absl::StrCat(segment.file));
  for (const DirectoryEntry& entry : *entries) {
    const std::string path = Below(directory, entry.name);
    if (!named.contains(entry.name)) {
      use.trash->Reap(path, BytesOf(use.files, path, entry)).IgnoreError();
    }
  }
}

// What lies beside the manifest and is not named by it.
void ReapUnnamed(const Surroundings& use, const std::string& directory, const Entries& entries,
                 const Manifest& manifest) {
  std::map<std::string, const StoredRendition*> renditions;
  for (const StoredRendition& one : manifest.renditions) {
    renditions[absl::StrCat(one.number)] = &one;
  }
  for (const DirectoryEntry& entry : entries) {
    const std::string path = Below(directory, entry.name);
    if (const auto found = renditions.find(entry.name); found != renditions.end()) {
      ReapSegments(use, path, *found->second);
    } else if (entry.name == "tokens") {
      TrimLog(use, path, entry, manifest.logs.tokens);
    } else if (entry.name == "offsets") {
      TrimLog(use, path, entry, manifest.logs.offsets);
    } else if (entry.name != "manifest") {
      use.trash->Reap(path, BytesOf(use.files, path, entry)).IgnoreError();
    }
  }
}

// Null: it is none.
std::shared_ptr<DocumentFiles> FindDocument(const Surroundings& use, const std::string& name) {
  const std::string directory = Below(kDocumentsDirectory, name);
  const auto entries = use.files->List(directory);
  bool has_manifest = !entries.ok();
  if (entries.ok()) {
    for (const DirectoryEntry& entry : *entries) has_manifest |= entry.name == "manifest";
  }
  if (!has_manifest) {  // its first commit never came
    use.trash->Reap(directory, BytesBelow(use.files, directory)).IgnoreError();
    return nullptr;
  }
  auto found = ReadManifest(use.files, Below(directory, "manifest"));
  // The directory of another document, copied here by hand, is foreign too.
  if (!entries.ok() || !found.ok() || DirectoryNameOf(found->manifest.id) != name) {
    const int64_t bytes = BytesBelow(use.files, directory);
    use.space->Add({.documents = bytes});
    use.trash->Quarantine(directory, bytes).IgnoreError();
    return nullptr;
  }
  ReapUnnamed(use, directory, *entries, found->manifest);
  use.space->Add({.documents = found->num_bytes + found->manifest.data_bytes()});
  return std::make_shared<DocumentFiles>(use, *std::move(found));
}

}  // namespace

absl::Status CheckStoreFormat(FileSystem* files) {
  FOLIO_ASSIGN_OR_RETURN(const Entries entries, files->List(""));
  bool is_new = true;
  std::string foreign;
  for (const DirectoryEntry& entry : entries) {
    if (entry.name == kFormatFile) is_new = false;
    if (!MayBeThereBefore(entry.name)) foreign = entry.name;
  }
  if (is_new && foreign.empty()) return MakeFormatFile(files);
  const std::string_view expected = kFormatLine;
  std::string line(expected.size(), '\0');
  if (!is_new) {
    FOLIO_ASSIGN_OR_RETURN(const std::unique_ptr<StoredFile> file, files->Open(kFormatFile));
    const StoredFile::Piece piece{reinterpret_cast<std::byte*>(line.data()), line.size()};
    if (file->size_bytes() == static_cast<int64_t>(line.size())) {
      FOLIO_RETURN_IF_ERROR(file->Read(0, {&piece, 1}));
    }
  }
  if (line == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(
      is_new ? absl::StrCat("the directory holds '", foreign,
                            "', but no documents; give the store an empty one")
             : absl::StrCat("the directory holds documents in a format other than '",
                            std::string(expected.substr(0, expected.size() - 1)),
                            "'; use the version that wrote it, or give the store an empty one"));
}

absl::StatusOr<std::vector<std::shared_ptr<DocumentFiles>>> FindDocuments(
    const Surroundings& surroundings) {
  FOLIO_ASSIGN_OR_RETURN(const Entries entries, surroundings.files->List(kDocumentsDirectory));
  std::vector<std::shared_ptr<DocumentFiles>> documents(entries.size());
  TaskThreads helpers(kOpeningHelpers);
  FOLIO_RETURN_IF_ERROR(
      ForAll(static_cast<int>(entries.size()), kOpeningHelpers, &helpers, [&](int n) {
        const DirectoryEntry& entry = entries[n];
        if (entry.is_directory) {
          documents[n] = FindDocument(surroundings, entry.name);
        } else {
          surroundings.trash->Reap(Below(kDocumentsDirectory, entry.name), entry.size_bytes)
              .IgnoreError();
        }
        return absl::OkStatus();
      }));
  std::erase(documents, nullptr);
  return documents;
}

}  // namespace folio
