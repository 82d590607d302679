#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/attention/attention_registry.h"
#include "engine/kv/kv_store.h"
#include "engine/sched/scheduler.h"
#include "engine/types/request.h"

namespace folio {

struct Document;

// The cache of one document under one strategy and position scheme: the keys of every layer above
// the first depend on the attention that produced them, so each has its own.
struct Rendition {
  Document* document = nullptr;  // null once the document is deleted
  AttentionSpec attention;
  Sequence sequence;
  bool admitted = false;
  // Requests that wait for it or read it.
  int num_users = 0;
  // Order of last use, for eviction.
  uint64_t last_used = 0;

  // Every token of a finished document is in the cache.
  bool ready() const;
};

// Tokens that many questions are asked about.
struct Document {
  std::string id;
  std::shared_ptr<std::vector<int32_t>> tokens;
  bool finished = false;
  absl::Status status;
  std::shared_ptr<EventSink> sink;
  // The first one is the strategy of the upload; others came with questions and may be evicted.
  std::vector<std::unique_ptr<Rendition>> renditions;

  Rendition& primary() { return *renditions.front(); }
};

// All documents and their renditions. Engine thread only; borrows scheduler and store.
class DocumentTable {
 public:
  DocumentTable(const AttentionModel& model, Scheduler* scheduler, KvStore* store)
      : model_(model), scheduler_(scheduler), store_(store) {}

  // Creates a document, or gives an unfinished one a new sink and resumes its prefill.
  void Open(const std::string& id, const AttentionSpec& attention, std::shared_ptr<EventSink> sink);
  // A failure (no memory) is the document's own: it lets go of its memory and keeps the status.
  void Append(const std::string& id, const std::vector<int32_t>& tokens);
  void Finish(const std::string& id);
  void Pause(const std::string& id);
  void Delete(const std::string& id);

  // nullptr if there is none.
  Document* Find(const std::string& id);
  const std::map<std::string, std::unique_ptr<Document>>& documents() const { return documents_; }

  // The rendition of a document under a strategy, made if needed (not yet admitted). Counts a user.
  Rendition* Acquire(Document* document, const AttentionSpec& attention);
  // A user is gone; a rendition that nobody waits for any more stops, one of a deleted document is
  // freed.
  void ReleaseUser(Rendition* rendition);

  // Frees the renditions without users that questions made, least recently used first, until
  // `bytes` can be reserved. False if that is not enough.
  bool EvictFor(int64_t bytes);

  // The rendition that a sequence prefills; nullptr if it is none of a document.
  Rendition* RenditionOf(const Sequence* sequence);
  // The prefill of a rendition cannot go on: it lets go of its memory, and its document fails if it
  // is the upload's own. REQUIRES: no user.
  void FailRendition(Rendition* rendition, absl::Status status);

  // To be called after each step: tells sinks about progress, retires what is complete.
  void AfterStep(const std::vector<ScheduledTokens>& step);

 private:
  Rendition* AddRendition(Document* document, const AttentionSpec& attention);
  void FreeRendition(Rendition* rendition);
  void Fail(Document* document, absl::Status status);
  void NoteProgress(Rendition* rendition);

  const AttentionModel model_;
  Scheduler* const scheduler_;
  KvStore* const store_;
  uint64_t clock_ = 0;
  std::map<std::string, std::unique_ptr<Document>> documents_;
  // Of deleted documents, while questions still read them.
  std::list<std::unique_ptr<Rendition>> orphans_;
  std::unordered_map<const Sequence*, Rendition*> by_sequence_;
};

}  // namespace folio
