#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/runtime/document_info.h"
#include "engine/tokenizer/streaming_tokenizer.h"

namespace folio::server {

// The connection that sends a document.
class Uploader {
 public:
  virtual ~Uploader() = default;
  // Another connection sends it from now on.
  virtual void OnTakenOver() = 0;
};

// What the server keeps with a document of the engine: its name, and the text behind its tokens. It
// survives the connection that began it, for the next one to go on; who uses it keeps it alive
// after a deletion. Thread-safe.
class DocumentUpload final : public DocumentAttachment {
 public:
  // An empty token is replaced by a random one.
  DocumentUpload(std::string name, std::string token, const Tokenizer& tokenizer);

  // Of a document that the server has opened.
  static std::shared_ptr<DocumentUpload> Of(const DocumentInfo& document) {
    return std::static_pointer_cast<DocumentUpload>(document.attachment);
  }

  const std::string display_name;
  // What a connection must know to go on with the text.
  const std::string token;
  const std::time_t create_time = std::time(nullptr);

  // Held for a whole part: parts are tokenised and appended one after the other. Prompt pool
  // threads only.
  Mutex work_mu;
  std::weak_ptr<Uploader> owner FOLIO_GUARDED_BY(work_mu);

  // The tokens that are certain with the next part of the text, the beginning-of-sequence token in
  // front of the first ones; and the rest of them. Errors: INVALID_ARGUMENT (no UTF-8, no place to
  // cut); nothing can be added then.
  absl::StatusOr<std::vector<int32_t>> Add(std::string_view part) FOLIO_REQUIRES(work_mu);
  absl::StatusOr<std::vector<int32_t>> Finish() FOLIO_REQUIRES(work_mu);

  // Whether `other` is the token, in a time that does not tell how much of it is right.
  bool HasToken(std::string_view other) const;

  // Of the text that has come so far.
  uint64_t size_bytes() const;
  // Where a token begins in the text of a finished upload. Unset inside a group of kOffsetStride
  // tokens, and where the pieces do not add up to the text (a vocabulary without byte pieces, a
  // normalising tokenizer).
  std::optional<uint64_t> ByteOffset(int64_t token) const;

 private:
  static constexpr int64_t kOffsetStride = 16;

  // Puts BOS in front of the first tokens and notes where they begin.
  void NoteTokens(std::vector<int32_t>* tokens, size_t num_bytes) FOLIO_REQUIRES(work_mu);

  const Tokenizer& tokenizer_;
  StreamingTokenizer text_ FOLIO_GUARDED_BY(work_mu);
  bool begun_ FOLIO_GUARDED_BY(work_mu) = false;

  // Held for a moment, within work_mu or alone.
  mutable Mutex mu_;
  uint64_t size_bytes_ FOLIO_GUARDED_BY(mu_) = 0;
  int64_t num_tokens_ FOLIO_GUARDED_BY(mu_) = 0;
  uint64_t num_piece_bytes_ FOLIO_GUARDED_BY(mu_) = 0;  // text of the tokens so far
  // Of every kOffsetStride-th token.
  std::vector<uint64_t> byte_offsets_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
