#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/store/document_store.h"
#include "tests/engine/memory_files.h"

namespace folio::test {

// All that is stored of a document, read byte by byte.
struct DocumentContent {
  std::string name;
  uint64_t incarnation = 0;
  StoredState state = StoredState::kReceiving;
  DocumentAttributes attributes;
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets;
  int64_t text_bytes = 0;
  // By attention; the bytes of its segments.
  std::map<std::string, std::vector<std::string>> renditions;

  bool operator==(const DocumentContent&) const = default;
};
absl::StatusOr<DocumentContent> ReadContent(const DocumentStore& store, const Manifest& manifest);

inline constexpr SegmentShape kTestShape = {.kind = SegmentKind::kPages,
                                            .num_slices = 2,
                                            .slice_bytes = 100,
                                            .first_page = 0,
                                            .num_pages = 3};
// The bytes of a segment of kTestShape, [slice][page].
std::string SegmentBytes(uint64_t seed);
absl::StatusOr<StoredSegment> WriteSegment(DocumentWriter* writer, int64_t rendition,
                                           uint64_t seed);
// The same made of a file of `pages`, which is not below the store.
absl::StatusOr<StoredSegment> LinkSegment(DocumentWriter* writer, int64_t rendition, uint64_t seed,
                                          FileSystem* pages);
absl::StatusOr<std::string> ReadSegment(const Segment& segment);

// Does random things to a store and knows what must be in it: a plain map of what was reported
// durable. After an error the document that was changed may be as before or as it would have been.
class RandomOwner {
 public:
  RandomOwner(MemoryFiles* files, uint64_t seed) : files_(files), random_(seed) {}

  // Opens the store, whatever was open before.
  absl::Status Open();
  // One random operation; its errors are noted. REQUIRES: open.
  void Step();
  // The process ends without a word.
  void Die();
  // What is wrong with the store; empty: it holds what it must.
  std::string Check();
  // What is on disk that nothing names, or is not counted right. REQUIRES: just opened.
  std::string CheckDisk();

  const DocumentStore& store() const { return *store_; }
  size_t num_documents() const { return durable_.size(); }
  int64_t num_errors() const { return num_errors_; }

 private:
  struct Writing {
    std::unique_ptr<DocumentWriter> writer;
    DocumentContent content;
    std::map<std::string, StoredRendition> renditions;  // by attention
  };

  uint64_t Random(uint64_t below) { return random_() % below; }
  std::string RandomId() { return std::string(1, static_cast<char>('A' + Random(5))); }
  // One that is durable; nullptr: none is.
  std::map<std::string, DocumentContent>::value_type* RandomDocument();
  Writing* RandomWriting();
  DocumentHandle HandleOf(const std::string& id) { return {id, durable_[id].incarnation}; }

  absl::Status BeginWriting();
  absl::Status Append();
  absl::Status AddSegment();
  absl::Status RemoveSegment();
  absl::Status Commit();
  absl::Status CloseWriter();
  absl::Status Delete();
  absl::Status Update();
  absl::Status DropRendition();
  // Finds out what a failed operation did. Empty: it did all or nothing.
  std::string Resolve();
  // The document `id` becomes `next`, or goes; `status` is what the store says.
  absl::Status Note(const std::string& id, std::optional<DocumentContent> next,
                    absl::Status status);

  MemoryFiles* const files_;
  MemoryFiles pages_;  // of which segments are made without copying
  std::mt19937_64 random_;
  std::unique_ptr<DocumentStore> store_;
  std::map<std::string, Writing> writing_;
  std::map<std::string, DocumentContent> durable_;
  // What the last failed operation would have made of it.
  std::map<std::string, std::optional<DocumentContent>> maybe_;
  uint64_t next_incarnation_ = 1;
  int64_t num_errors_ = 0;
  std::string problem_;
};

}  // namespace folio::test
