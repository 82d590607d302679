#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
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

// What the caller keeps with a document, for as long as there is one. The engine never looks at it.
class DocumentAttachment {
 public:
  virtual ~DocumentAttachment() = default;
};

// One document at one moment.
struct DocumentInfo {
  DocumentHandle handle;
  // Of the upload; questions may bring others.
  AttentionSpec attention;
  std::shared_ptr<DocumentAttachment> attachment;

  DocumentState state = DocumentState::kUploading;
  absl::Status error;  // OK unless kFailed
  // Final from kPrefilling on.
  int64_t known_tokens = 0;
  int64_t prefilled_tokens = 0;
  // Of an upload: the cache has no room for its last tokens, but will have some.
  bool short_of_room = false;
  // Of all strategies under which it was prefilled.
  int64_t kv_bytes = 0;
  int64_t summary_bytes = 0;
};

// Numbers of documents, by state.
using DocumentCounts = std::array<int, kNumDocumentStates>;

}  // namespace folio
