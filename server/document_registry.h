#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/streaming_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace folio::server {

// What the server knows of one document beside its tokens: the state of the upload. `mu` guards everything
// below it; the pointer outlives the registry's entry while a call uses it.
struct UploadState {
  UploadState(const Tokenizer& tokenizer, std::string id, std::string display_name)
      : id(std::move(id)), display_name(std::move(display_name)), tokenizer(tokenizer) {}

  const std::string id;
  const std::string display_name;
  const std::time_t create_time = std::time(nullptr);

  std::mutex mu;
  StreamingTokenizer tokenizer;
  uint64_t next_offset = 0;
  bool begun = false;     // the beginning-of-sequence token is in
  bool finished = false;
  // Number of the connection that may write: a later one takes over.
  uint64_t owner = 0;
};

// All documents by id. Thread-safe.
class DocumentRegistry {
 public:
  explicit DocumentRegistry(int max_documents) : max_documents_(max_documents) {}

  // The state of a new or an unfinished document. An empty id is replaced by a fresh one.
  // Errors: RESOURCE_EXHAUSTED when there are too many documents.
  absl::StatusOr<std::shared_ptr<UploadState>> OpenOrResume(const std::string& id,
                                                            const std::string& display_name,
                                                            const Tokenizer& tokenizer);
  // nullptr if there is none.
  std::shared_ptr<UploadState> Find(const std::string& id) const;
  void Erase(const std::string& id);
  int size() const;

 private:
  const int max_documents_;
  mutable std::mutex mu_;
  std::map<std::string, std::shared_ptr<UploadState>> uploads_;  // guarded by mu_
};

}  // namespace folio::server
