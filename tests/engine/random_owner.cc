#include "tests/engine/random_owner.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/base/checksum.h"
#include "engine/base/status_macros.h"

namespace folio::test {
namespace {

constexpr size_t kSliceBytes = 100;

ContentKey KeyOf(uint64_t seed) {
  ContentKey key{};
  std::memcpy(key.data(), &seed, sizeof(seed));
  return key;
}

}  // namespace

std::string SegmentBytes(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(kSliceBytes * 2 * 3, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

absl::StatusOr<StoredSegment> WriteSegment(DocumentWriter* writer, int64_t rendition,
                                           uint64_t seed) {
  FOLIO_ASSIGN_OR_RETURN(SegmentDraft draft,
                         writer->AddSegment(rendition, kTestShape, KeyOf(seed)));
  const std::string bytes = SegmentBytes(seed);
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  for (int slice = 0; slice < 2; ++slice) {
    const std::byte* pages[3];
    for (int page = 0; page < 3; ++page) pages[page] = data + (slice * 3 + page) * kSliceBytes;
    FOLIO_RETURN_IF_ERROR(draft.WriteSlice(slice, pages));
  }
  return draft.Finish();
}

absl::StatusOr<StoredSegment> LinkSegment(DocumentWriter* writer, int64_t rendition, uint64_t seed,
                                          FileSystem* pages) {
  FOLIO_RETURN_IF_ERROR(pages->Remove("pages"));
  FOLIO_ASSIGN_OR_RETURN(const auto file, pages->Create("pages"));
  const std::string bytes = SegmentBytes(seed);
  std::vector<uint64_t> checksums;
  for (int slice = 0; slice < 2; ++slice) {
    for (int page = 0; page < 3; ++page) {
      const auto data = std::as_bytes(std::span(bytes).subspan(
          static_cast<size_t>(slice * 3 + page) * kSliceBytes, kSliceBytes));
      FOLIO_RETURN_IF_ERROR(file->Write(SegmentWriter::DataOffset(kTestShape, slice, page), data));
      checksums.push_back(Checksum(data));
    }
  }
  FOLIO_ASSIGN_OR_RETURN(SegmentDraft draft, writer->LinkSegment(rendition, kTestShape, KeyOf(seed),
                                                                 {file.get(), checksums}));
  return draft.Finish();
}

absl::StatusOr<std::string> ReadSegment(const Segment& segment) {
  std::string bytes(kSliceBytes * 2 * 3, '\0');
  auto* data = reinterpret_cast<std::byte*>(bytes.data());
  for (int slice = 0; slice < 2; ++slice) {
    std::byte* to[3];
    for (int page = 0; page < 3; ++page) to[page] = data + (slice * 3 + page) * kSliceBytes;
    FOLIO_RETURN_IF_ERROR(segment.Read(slice, 0, to));
  }
  return bytes;
}

absl::StatusOr<DocumentContent> ReadContent(const DocumentStore& store, const Manifest& manifest) {
  const DocumentHandle handle = {manifest.id, manifest.incarnation};
  DocumentContent content;
  content.name = manifest.name;
  content.incarnation = manifest.incarnation;
  content.state = manifest.state;
  content.attributes = manifest.attributes;
  content.text_bytes = manifest.text_bytes;
  if (manifest.num_tokens() > 0) {
    FOLIO_ASSIGN_OR_RETURN(content.tokens, store.ReadTokens(handle));
    FOLIO_ASSIGN_OR_RETURN(content.offsets, store.ReadOffsets(handle));
  }
  for (const StoredRendition& rendition : manifest.renditions) {
    std::vector<std::string>& segments = content.renditions[rendition.attention];
    for (const StoredSegment& stored : rendition.segments) {
      FOLIO_ASSIGN_OR_RETURN(const Segment segment,
                             store.OpenSegment(handle, rendition.number, stored));
      FOLIO_ASSIGN_OR_RETURN(std::string bytes, ReadSegment(segment));
      segments.push_back(std::move(bytes));
    }
  }
  return content;
}

absl::Status RandomOwner::Open() {
  Die();
  FOLIO_ASSIGN_OR_RETURN(store_, DocumentStore::Open(files_, {}));
  return absl::OkStatus();
}

void RandomOwner::Die() {
  writing_.clear();
  store_.reset();
}

std::map<std::string, DocumentContent>::value_type* RandomOwner::RandomDocument() {
  if (durable_.empty()) return nullptr;
  return &*std::next(durable_.begin(), static_cast<std::ptrdiff_t>(Random(durable_.size())));
}

RandomOwner::Writing* RandomOwner::RandomWriting() {
  if (writing_.empty()) return nullptr;
  return &std::next(writing_.begin(), static_cast<std::ptrdiff_t>(Random(writing_.size())))->second;
}

void RandomOwner::Step() {
  absl::Status status;
  switch (Random(20)) {
    case 0:
    case 1:
    case 2:
      status = BeginWriting();
      break;
    case 3:
    case 4:
    case 5:
      status = Append();
      break;
    case 6:
    case 7:
    case 8:
      status = AddSegment();
      break;
    case 9:
      status = RemoveSegment();
      break;
    case 10:
    case 11:
    case 12:
    case 13:
      status = Commit();
      break;
    case 14:
      status = CloseWriter();
      break;
    case 15:
      status = Delete();
      break;
    case 16:
    case 17:
      status = Update();
      break;
    case 18:
      status = DropRendition();
      break;
    default:
      store_->EmptyTrash();
      break;
  }
  if (status.ok()) return;
  ++num_errors_;
  // Unless nothing can be read any more.
  if (files_->List("").ok()) problem_ += Resolve();
}

absl::Status RandomOwner::BeginWriting() {
  const std::string id = RandomId();
  if (writing_.contains(id)) return absl::OkStatus();
  Writing writing;
  if (durable_.contains(id)) {
    FOLIO_ASSIGN_OR_RETURN(writing.writer, store_->Resume(HandleOf(id)));
    writing.content = durable_[id];
    for (const StoredRendition& one : (*store_->Find(id))->renditions) {
      writing.renditions[one.attention] = one;
    }
  } else {
    writing.content.name = absl::StrCat("name ", Random(100));
    writing.content.incarnation = next_incarnation_++;
    NewDocument document;
    document.handle = {id, writing.content.incarnation};
    document.name = writing.content.name;
    FOLIO_ASSIGN_OR_RETURN(writing.writer, store_->Begin(document));
  }
  writing_[id] = std::move(writing);
  return absl::OkStatus();
}

absl::Status RandomOwner::Append() {
  Writing* writing = RandomWriting();
  if (writing == nullptr) return absl::OkStatus();
  // Now and then more than a record.
  const uint64_t count = Random(200) == 0 ? 40'000 : Random(60);
  std::vector<int32_t> ids;
  std::vector<int64_t> offsets;
  DocumentContent& content = writing->content;
  for (uint64_t n = 0; n < count; ++n) {
    ids.push_back(static_cast<int32_t>(random_()));
    offsets.push_back(content.text_bytes);
    content.text_bytes += static_cast<int64_t>(Random(9));
  }
  const absl::Status status = writing->writer->AppendTokens(ids, offsets, content.text_bytes);
  content.tokens.insert(content.tokens.end(), ids.begin(), ids.end());
  content.offsets.insert(content.offsets.end(), offsets.begin(), offsets.end());
  if (!status.ok()) writing_.erase(writing->writer->handle().id);
  return status;
}

absl::Status RandomOwner::AddSegment() {
  Writing* writing = RandomWriting();
  if (writing == nullptr) return absl::OkStatus();
  const std::string attention = Random(2) == 0 ? "full" : "long_heads chunk_tokens=64";
  FOLIO_ASSIGN_OR_RETURN(const int64_t number, writing->writer->RenditionOf({}, attention));
  const uint64_t seed = random_();
  FOLIO_ASSIGN_OR_RETURN(const StoredSegment segment,
                         Random(2) == 0
                             ? WriteSegment(writing->writer.get(), number, seed)
                             : LinkSegment(writing->writer.get(), number, seed, &pages_));
  // Not named by any commit: it must not be there afterwards.
  if (Random(8) == 0) return absl::OkStatus();
  StoredRendition& rendition = writing->renditions[attention];
  rendition.number = number;
  rendition.attention = attention;
  rendition.segments.push_back(segment);
  writing->content.renditions[attention].push_back(SegmentBytes(seed));
  return absl::OkStatus();
}

absl::Status RandomOwner::RemoveSegment() {
  Writing* writing = RandomWriting();
  if (writing == nullptr || writing->renditions.empty()) return absl::OkStatus();
  auto& [attention, rendition] = *writing->renditions.begin();
  if (rendition.segments.empty()) return absl::OkStatus();
  const auto at = static_cast<std::ptrdiff_t>(Random(rendition.segments.size()));
  rendition.segments.erase(rendition.segments.begin() + at);
  auto& contents = writing->content.renditions[attention];
  contents.erase(contents.begin() + at);
  return absl::OkStatus();
}

absl::Status RandomOwner::Note(const std::string& id, std::optional<DocumentContent> next,
                               absl::Status status) {
  if (!status.ok()) {
    maybe_[id] = std::move(next);
  } else if (next.has_value()) {
    durable_[id] = *std::move(next);
  } else {
    durable_.erase(id);
  }
  return status;
}

absl::Status RandomOwner::Commit() {
  Writing* writing = RandomWriting();
  if (writing == nullptr) return absl::OkStatus();
  const std::string id = writing->writer->handle().id;
  std::vector<StoredRendition> renditions;
  for (const auto& one : writing->renditions) renditions.push_back(one.second);
  writing->content.state = Random(3) == 0 ? StoredState::kComplete : StoredState::kReceiving;
  const absl::Status status = writing->writer->Commit(writing->content.state, renditions);
  const DocumentContent next = writing->content;
  if (!status.ok()) writing_.erase(id);
  return Note(id, next, status);
}

absl::Status RandomOwner::CloseWriter() {
  Writing* writing = RandomWriting();
  if (writing != nullptr) writing_.erase(writing->writer->handle().id);
  return absl::OkStatus();
}

absl::Status RandomOwner::Delete() {
  auto* document = RandomDocument();
  if (document == nullptr) return absl::OkStatus();
  const std::string id = document->first;
  const absl::Status status = store_->Delete(HandleOf(id));
  // Half of the time its writer goes on, in vain.
  if (status.ok() && Random(2) == 0 && writing_.contains(id) &&
      writing_[id].writer->Commit(StoredState::kComplete, {}).ok()) {
    problem_ += absl::StrCat(id, " was committed after it was deleted");
  }
  writing_.erase(id);
  return Note(id, std::nullopt, status);
}

absl::Status RandomOwner::Update() {
  auto* document = RandomDocument();
  if (document == nullptr) return absl::OkStatus();
  DocumentContent next = document->second;
  next.attributes.labels[absl::StrCat("key ", Random(3))] = absl::StrCat(Random(1000));
  next.attributes.pinned = Random(2) == 0;
  next.attributes.ttl_us = static_cast<int64_t>(Random(1000));
  const std::string id = document->first;
  if (writing_.contains(id)) writing_[id].content.attributes = next.attributes;
  const absl::Status status = store_->UpdateAttributes(
      HandleOf(id), [&](DocumentAttributes* attributes) { *attributes = next.attributes; });
  if (!status.ok()) writing_.erase(id);
  return Note(id, next, status);
}

absl::Status RandomOwner::DropRendition() {
  auto* document = RandomDocument();
  if (document == nullptr || document->second.renditions.empty()) return absl::OkStatus();
  const std::string id = document->first;
  const std::string attention = document->second.renditions.begin()->first;
  DocumentContent next = document->second;
  next.renditions.erase(attention);
  int64_t number = -1;
  for (const StoredRendition& one : (*store_->Find(id))->renditions) {
    if (one.attention == attention) number = one.number;
  }
  const absl::Status status = Random(2) == 0 ? store_->DropRendition(HandleOf(id), number)
                                             : store_->Quarantine(HandleOf(id), number);
  if (!status.ok()) {
    writing_.erase(id);
  } else if (writing_.contains(id)) {
    writing_[id].renditions.erase(attention);
    writing_[id].content.renditions.erase(attention);
  }
  return Note(id, next, status);
}

std::string RandomOwner::Resolve() {
  for (auto& [id, content] : maybe_) {
    const auto found = store_->Find(id);
    if (!found.ok()) {
      // Gone: as it was, if it never was there, or as it would have been.
      if (durable_.contains(id) && content.has_value()) return absl::StrCat(id, " is gone");
      durable_.erase(id);
      continue;
    }
    const auto read = ReadContent(*store_, **found);
    if (!read.ok()) return absl::StrCat(id, ": ", read.status().ToString());
    const bool is_new = content.has_value() && *read == *content;
    if (is_new) durable_[id] = *read;
  }
  maybe_.clear();
  return "";
}

std::string RandomOwner::Check() {
  problem_ += Resolve();
  if (!problem_.empty()) return problem_;
  const auto listed = store_->List();
  if (listed.size() != durable_.size()) {
    return absl::StrCat(listed.size(), " documents are there instead of ", durable_.size());
  }
  for (const auto& manifest : listed) {
    if (!durable_.contains(manifest->id)) return absl::StrCat(manifest->id, " has come back");
    const auto read = ReadContent(*store_, *manifest);
    if (!read.ok()) return absl::StrCat(manifest->id, ": ", read.status().ToString());
    if (!(*read == durable_[manifest->id])) return absl::StrCat(manifest->id, " is another");
  }
  return "";
}

std::string RandomOwner::CheckDisk() {
  if (store_->usage().num_quarantined != 0) return "something was found damaged";
  if (store_->usage().num_unremovable != 0) return "something could not be moved";
  store_->EmptyTrash();
  int64_t named = 0;
  size_t num_files = 0;
  for (const auto& manifest : store_->List()) {
    named += manifest->data_bytes();
    num_files += manifest->num_tokens() > 0 ? 3 : 1;
    for (const StoredRendition& one : manifest->renditions) num_files += one.segments.size();
  }
  size_t found = 0;
  int64_t manifest_bytes = 0;
  for (const std::string& path : files_->paths()) {
    if (path.starts_with("trash/")) return absl::StrCat(path, " was left");
    if (!path.starts_with("documents/")) continue;
    ++found;
    if (path.ends_with("/manifest")) {
      manifest_bytes += static_cast<int64_t>(files_->content(path)->size());
    }
  }
  if (found != num_files) return absl::StrCat(found, " files instead of ", num_files);
  const int64_t there = files_->BytesBelow("documents");
  const StoreBytes counted = store_->usage().bytes;
  if (there != named + manifest_bytes || there != counted.documents || counted.trash != 0 ||
      counted.quarantine != files_->BytesBelow("quarantine")) {
    return absl::StrCat(there, " bytes on disk, ", named, " + ", manifest_bytes, " named, ",
                        counted.documents, " counted");
  }
  return "";
}

}  // namespace folio::test
