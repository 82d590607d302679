#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/runtime/document_info.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "server/clock.h"
#include "server/memory_budget.h"
#include "server/prompt_format.h"

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
  // What the server lends to every upload; outlives them.
  struct Surroundings {
    const Tokenizer& tokenizer;
    MemoryBudget* memory;  // for text that waits for more of it
    Clock clock;
    std::chrono::seconds patience;
  };
  // An empty token is replaced by a random one. `lead` is in front of the text.
  DocumentUpload(std::string name, std::string token, PromptLead lead, Surroundings surroundings);
  // Of a document that was stored. If its text is not whole, it goes on behind what is there.
  DocumentUpload(const StoredText& stored, Surroundings surroundings);

  StoredText stored_text() const override;
  void OnTokensRead(std::span<const int32_t> tokens) override;

  // Of a document that the server has opened.
  static std::shared_ptr<DocumentUpload> Of(const DocumentInfo& document) {
    return std::static_pointer_cast<DocumentUpload>(document.attachment);
  }

  const std::string display_name;
  // What a connection must know to go on with the text.
  const std::string token;
  const std::time_t create_time;
  // Of PromptLead.
  const std::string prompt_format;

  // Held for a whole part: parts are tokenised and appended one after the other. Prompt pool
  // threads only.
  Mutex work_mu;
  std::weak_ptr<Uploader> owner FOLIO_GUARDED_BY(work_mu);
  // A part is in work; once that is over: it was not taken whole, and no other can follow it.
  bool part_open FOLIO_GUARDED_BY(work_mu) = false;

  // The tokens that are certain with the next part of the text, those of the lead in front of the
  // first ones; and the rest of them. Errors: INVALID_ARGUMENT (no UTF-8, no place to
  // cut), RESOURCE_EXHAUSTED (no memory for text without a place to cut); nothing can be added
  // then.
  absl::StatusOr<std::vector<int32_t>> Add(std::string_view part) FOLIO_REQUIRES(work_mu);
  absl::StatusOr<std::vector<int32_t>> Finish() FOLIO_REQUIRES(work_mu);

  // Of the text so far, what has become tokens: whatever follows, they stay as they are.
  uint64_t tokenised_bytes() const FOLIO_REQUIRES(work_mu);

  // Whether `other` is the token, in a time that does not tell how much of it is right.
  bool HasToken(std::string_view other) const;

  // Of the text that has come so far.
  uint64_t size_bytes() const;

  // When an unfinished upload is deleted: so long after its last byte, or after its header.
  std::chrono::seconds patience() const { return surroundings_.patience; }
  SteadyTime expires_at() const;
  // The same by the calendar.
  std::time_t expire_time() const;

  // Where a token begins in the text of a finished upload. Unset inside a group of kOffsetStride
  // tokens, and where the pieces do not add up to the text (a vocabulary without byte pieces, a
  // normalising tokenizer).
  std::optional<uint64_t> ByteOffset(int64_t token) const;

 private:
  static constexpr int64_t kOffsetStride = 16;

  // Of held text, which becomes tokens in one go when the upload ends.
  int64_t MemoryFor(size_t held_bytes) const;
  // Notes where they begin.
  void NoteTokens(const std::vector<int32_t>& tokens, size_t num_bytes) FOLIO_REQUIRES(work_mu);
  void NoteOffsets(std::span<const int32_t> tokens) FOLIO_REQUIRES(mu_);
  const Surroundings surroundings_;
  const uint64_t lead_bytes_;  // of the text of its tokens
  PromptLead lead_ FOLIO_GUARDED_BY(work_mu);
  StreamingTokenizer text_ FOLIO_GUARDED_BY(work_mu);
  MemoryBudget::Share held_text_ FOLIO_GUARDED_BY(work_mu);
  bool begun_ FOLIO_GUARDED_BY(work_mu);  // the lead has been given out

  // Held for a moment, within work_mu or alone.
  mutable Mutex mu_;
  SteadyTime last_byte_ FOLIO_GUARDED_BY(mu_);
  uint64_t size_bytes_ FOLIO_GUARDED_BY(mu_);
  // The first tokens were stored and have not been read; those that came since.
  bool awaits_stored_tokens_ FOLIO_GUARDED_BY(mu_);
  std::vector<int32_t> later_tokens_ FOLIO_GUARDED_BY(mu_);
  int64_t num_tokens_ FOLIO_GUARDED_BY(mu_) = 0;
  uint64_t num_piece_bytes_ FOLIO_GUARDED_BY(mu_) = 0;  // text of the tokens so far
  // Of every kOffsetStride-th token.
  std::vector<uint64_t> byte_offsets_ FOLIO_GUARDED_BY(mu_);
};

}  // namespace folio::server
