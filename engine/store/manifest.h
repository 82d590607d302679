#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/store/content_key.h"
#include "engine/store/file_system.h"
#include "engine/store/segment_file.h"
#include "engine/store/token_log.h"
#include "engine/types/document_attributes.h"

namespace folio {

// Of the encoding below. Version 1 had no prompt format.
inline constexpr uint32_t kManifestVersion = 2;

// A file of a rendition.
struct StoredSegment {
  int64_t file = 0;  // its name in the directory of the rendition
  SegmentShape shape;
  ContentKey key = {};

  bool operator==(const StoredSegment&) const = default;
  int64_t num_bytes() const { return shape.FileBytes(); }
};

// The KV of a document under one model and one attention spec.
struct StoredRendition {
  int64_t number = 0;  // the name of its directory
  Fingerprint model = {};
  std::string attention;   // canonical text of the resolved spec
  int64_t num_tokens = 0;  // in KV
  std::vector<StoredSegment> segments;

  bool operator==(const StoredRendition&) const = default;
  int64_t num_bytes() const;
};

enum class StoredState : uint8_t {
  kReceiving,  // its text is not whole
  kComplete,
};

// What is stored of one document. Token ids, offsets and KV lie in other files, so that a store is
// listed by its manifests alone.
struct Manifest {
  std::string id;
  std::string name;
  std::string upload_token;
  // Canonical text of the attention that it was uploaded for.
  std::string attention;
  uint64_t incarnation = 0;
  int64_t created_us = 0;  // Unix time
  int64_t updated_us = 0;  // of the last commit
  StoredState state = StoredState::kReceiving;
  DocumentAttributes attributes;
  // Token ids stay valid as long as the tokenizer has it.
  Fingerprint tokenizer = {};
  // Of the text, up to the last place where its tokens so far are final: an upload goes on here.
  int64_t text_bytes = 0;
  TokenLogEnds logs;
  std::vector<StoredRendition> renditions;
  // What the tokens say beside the text; StoredText says more.
  std::string prompt_format;
  int64_t lead_bytes = 0;

  bool operator==(const Manifest&) const = default;
  int64_t num_tokens() const { return logs.tokens.num_items; }
  // Of all its files but the manifest.
  int64_t data_bytes() const;
  // Null: there is none.
  const StoredRendition* FindRendition(int64_t number) const;
};

// magic, version, length, fields, XXH3-64 of all before. Little-endian. Errors: INVALID_ARGUMENT if
// DecodeManifest would refuse it.
absl::StatusOr<std::string> EncodeManifest(const Manifest& manifest);
// Takes no memory that the bytes do not account for. Errors: DATA_LOSS if they are no manifest of
// this version or the one before, torn, or say what cannot be.
absl::StatusOr<Manifest> DecodeManifest(std::string_view bytes);

struct ManifestFile {
  Manifest manifest;
  int64_t num_bytes = 0;
};
// Errors: NOT_FOUND, DATA_LOSS, those of StoredFile::Read.
absl::StatusOr<ManifestFile> ReadManifest(FileSystem* files, const std::string& path);

}  // namespace folio
