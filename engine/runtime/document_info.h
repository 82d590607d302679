#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "engine/types/document_attributes.h"
#include "engine/types/request.h"

namespace folio {

enum class DocumentState : uint8_t {
  kUploading,   // tokens may be appended
  kPrefilling,  // all tokens are known, not all of them are in the cache
  kReady,       // all of them are
  kFailed,      // holds no memory; `error` says why
};
inline constexpr int kNumDocumentStates = 4;

// Lower case, as metrics show it.
const char* DocumentStateName(DocumentState state);

// What is stored of a document beside its tokens, and belongs to the caller, who need not say
// `num_bytes` and `whole`: the tokens say that.
struct StoredText {
  std::string name;
  std::string upload_token;
  int64_t created_us = 0;  // Unix time
  int64_t num_bytes = 0;   // of the text
  // False: the text goes on behind these bytes.
  bool whole = true;
  // How the text became tokens (ChatFormat::Identity), empty: as it is; and the bytes that tokens
  // in front of it stand for.
  std::string prompt_format = {};
  int64_t lead_bytes = 0;
};

// What the caller keeps with a document, for as long as there is one.
class DocumentAttachment {
 public:
  virtual ~DocumentAttachment() = default;
  // Asked when a document is stored. Engine thread.
  virtual StoredText stored_text() const { return {}; }
  // The tokens of a document that was stored have been read; called before any question is answered
  // about it, maybe more than once. Not on the engine thread.
  virtual void OnTokensRead(std::span<const int32_t> /*tokens*/) {}
};

// One document at one moment.
struct DocumentInfo {
  DocumentHandle handle;
  // Of the upload; questions may bring others.
  AttentionSpec attention;
  std::shared_ptr<DocumentAttachment> attachment;
  Payer payer;

  DocumentState state = DocumentState::kUploading;
  absl::Status error;  // OK unless kFailed
  // Final from kPrefilling on.
  int64_t known_tokens = 0;
  int64_t prefilled_tokens = 0;
  // Of an upload: the cache has no room for its last tokens, but will have some.
  bool short_of_room = false;
  // Of all strategies under which it was prefilled.
  int64_t device_kv_bytes = 0;
  int64_t host_kv_bytes = 0;
  int64_t disk_kv_bytes = 0;
  int64_t summary_bytes = 0;
  DocumentAttributes attributes;
  // It is on disk, in so many bytes: a restart does not lose it.
  bool saved = false;
  int64_t stored_bytes = 0;
  // On disk once it is saved, while that goes on.
  int64_t saving_bytes = 0;
  // Of the text of an upload: so much is on disk, and it goes on there after a restart.
  int64_t saved_text_bytes = 0;
  // attributes.last_used_us as it is there, or will be soon.
  int64_t stored_use_us = 0;
  // Why it could not be saved; OK unless that was tried.
  absl::Status save_error;
};

// Numbers of documents, by state.
using DocumentCounts = std::array<int, kNumDocumentStates>;

}  // namespace folio
