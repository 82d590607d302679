#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/engine.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "engine/types/request.h"

namespace folio::server {

// The connection that sends a document.
class Uploader {
 public:
  virtual ~Uploader() = default;
  // Another connection sends it from now on.
  virtual void OnTakenOver() = 0;
};

// What the server knows of one document beside its tokens. It survives the connection that began
// it, for the next one to go on; a call that uses it keeps it alive after a deletion.
struct UploadState {
  UploadState(std::string document_id, std::string name, AttentionSpec spec,
              const Tokenizer& document_tokenizer)
      : id(std::move(document_id)),
        display_name(std::move(name)),
        attention(std::move(spec)),
        tokenizer(document_tokenizer) {}

  const std::string id;
  const std::string display_name;
  const AttentionSpec attention;
  const std::time_t create_time = std::time(nullptr);

  // Held for a whole part: parts are tokenised and appended one after the other. Prompt pool
  // threads only.
  std::mutex work_mu;
  StreamingTokenizer tokenizer;   // guarded by work_mu
  bool begun = false;             // guarded by work_mu; the beginning-of-sequence token is in
  std::weak_ptr<Uploader> owner;  // guarded by work_mu

  // Held for a moment: what Get and List show.
  mutable std::mutex mu;
  uint64_t next_offset = 0;  // guarded by mu; written by the holder of work_mu
  bool finished = false;     // guarded by mu; likewise
  absl::Status error;        // guarded by mu; not OK: the text was bad, the engine has forgotten it

  // Notes tokens that the engine gets. Holder of work_mu only.
  void NoteTokens(const std::vector<int32_t>& tokens, const Tokenizer& tokenizer);
  // Where a token begins in the text. Unset inside a group of kOffsetStride tokens, and where the
  // pieces do not add up to the text (a vocabulary without byte pieces, a normalising tokenizer).
  std::optional<uint64_t> ByteOffset(int64_t token) const;

 private:
  static constexpr int64_t kOffsetStride = 16;
  int64_t num_tokens_ = 0;              // guarded by mu
  uint64_t num_piece_bytes_ = 0;        // guarded by mu; text of the tokens so far
  std::vector<uint64_t> byte_offsets_;  // guarded by mu; of every kOffsetStride-th token
};

// All documents by id. Thread-safe.
class DocumentRegistry {
 public:
  struct Opened {
    std::shared_ptr<UploadState> state;
    bool is_new = false;
  };

  explicit DocumentRegistry(int max_documents) : max_documents_(max_documents) {}

  // The state of the document; a new one from display_name, attention and tokenizer of `fresh`,
  // whose empty id is replaced. Errors: RESOURCE_EXHAUSTED when there are too many documents.
  struct Fresh {
    std::string id;
    std::string display_name;
    AttentionSpec attention;
    const Tokenizer& tokenizer;
  };
  absl::StatusOr<Opened> FindOrCreate(const Fresh& fresh);
  // nullptr if there is none.
  std::shared_ptr<UploadState> Find(const std::string& id) const;
  // Up to `count` documents with ids after `after`, in order of id.
  std::vector<std::shared_ptr<UploadState>> List(const std::string& after, size_t count) const;
  // Returns whether there was one.
  bool Erase(const std::string& id);
  int size() const;

 private:
  const int max_documents_;
  mutable std::mutex mu_;
  std::map<std::string, std::shared_ptr<UploadState>> documents_;  // guarded by mu_
};

// The document as the engine sees it, or as an upload that the engine does not hold.
DocumentInfo DescribeDocument(const Engine& engine, const UploadState& state);

}  // namespace folio::server
