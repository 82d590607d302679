#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/attention/attention_registry.h"
#include "engine/kv/kv_store.h"
#include "engine/runtime/document_directory.h"
#include "engine/runtime/document_keeper.h"
#include "engine/runtime/restore_choice.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/tenant_account.h"
#include "engine/types/request.h"

namespace folio {

struct Document;

// UNAVAILABLE: of who has read pages that cannot be read any more, and cannot begin again.
absl::Status LostPagesError();
// UNAVAILABLE: `what` does not come from disk.
absl::Status CannotReadError(const char* what);

// To a sink that may be null.
inline void Send(const std::shared_ptr<EventSink>& sink, Event event) {
  if (sink != nullptr) sink->OnEvent(std::move(event));
}

// The cache of one document under one strategy and position scheme: the keys of every layer above
// the first depend on the attention that produced them, so each has its own.
struct Rendition {
  Document* document = nullptr;  // null once the document is gone
  AttentionSpec attention;
  TenantAccounts::Account account;  // of who pays for the document
  Sequence sequence;
  bool admitted = false;
  // Pages of it cannot be read any more; it is computed again once it is not being saved.
  bool lost = false;
  // Requests that wait for it or read it; and whoever saves it, or brings it back from disk.
  int num_users = 0;
  // Of its first tokens that are being brought back from disk; it does not run until then.
  int64_t restoring_tokens = 0;
  DiskProgressPtr restoring;
  // Its entry of DocumentTable::evictable_, kept in `place` while it is not there. Made with the
  // rendition, so that the end of a request needs no memory.
  std::list<Rendition*> place;
  std::list<Rendition*>::iterator entry;

  // Every token of the document is in the cache.
  bool complete() const {
    return admitted && !lost && sequence.num_in_kv == std::ssize(*sequence.tokens);
  }
};

// What the engine thread works with of a document that holds memory. Its state is in the directory.
struct Document {
  DocumentHandle handle;
  Payer payer;
  std::shared_ptr<std::vector<int32_t>> tokens;
  std::shared_ptr<EventSink> sink;
  SteadyTime followed;  // since when there is this sink
  // Its memory is its own until it is deleted, or may be taken (SetKept).
  bool kept = true;
  // Of its memory: what no disk takes, as far as is known.
  int64_t staying_bytes = 0;
  // It is on disk: its memory may be taken, for it comes back when somebody asks.
  bool stored = false;
  // What is there of its first rendition, maybe of its first tokens alone; null: nothing.
  std::shared_ptr<const StoredRendition> stored_cache;
  bool saving = false;
  // Its tokens are those of so many bytes of its text, and there will be no more of them.
  int64_t text_bytes = 0;
  bool finished = false;
  // It is prefilled though nobody asks: when there is nothing else to do, which is now.
  bool completing = false;
  bool completes_now = false;
  // How often it was computed again for pages that were lost, since it was complete.
  int times_repaired = 0;
  // Its client is gone: it is prefilled for others only.
  bool paused = false;
  // What there was when it was saved last, or that was tried: what came since waits for more.
  int64_t tried_text_bytes = 0;
  int64_t tried_cached_tokens = 0;
  bool tried_whole = false;
  // Of its text on disk.
  int64_t saved_text_bytes = 0;
  // More will not come soon.
  bool save_soon = false;
  // The first one is the strategy of the upload; others came with questions and may be evicted.
  std::list<std::unique_ptr<Rendition>> renditions;

  Rendition& primary() { return *renditions.front(); }
  const Rendition& primary() const { return *renditions.front(); }
  int64_t stored_tokens() const { return stored_cache == nullptr ? 0 : stored_cache->num_tokens; }
};

// The documents that hold memory, and their renditions. One that has failed or was deleted is not
// here any more; calls for it do nothing. A call that finds no host memory throws std::bad_alloc;
// nothing is lost then but what the document was given, and it can be dropped: to drop, release and
// evict needs none. Engine thread only; borrows the rest.
class DocumentTable {
 public:
  // Without a keeper nothing is saved.
  DocumentTable(const AttentionModel& model, Scheduler* scheduler, KvStore* store,
                DocumentDirectory* directory, TenantAccounts* accounts,
                DocumentKeeper* keeper = nullptr)
      : model_(model),
        scheduler_(scheduler),
        store_(store),
        directory_(directory),
        accounts_(accounts),
        keeper_(keeper) {}

  // A failure of Create or Append (no memory) is the document's own: it is dropped, and its state
  // in the directory becomes kFailed.
  void Create(const DocumentHandle& handle, const AttentionSpec& attention);
  // Tokens that the cache has no room for wait, if there will be some when what runs has ended.
  // With them it has the tokens of the first `text_bytes` bytes of its text.
  void Append(const DocumentHandle& handle, const std::vector<int32_t>& tokens, int64_t text_bytes);
  // Tokens that wait get their room, in the order they came, as far as there is some. Those that
  // will never find any, and all if nothing runs that frees memory, fail their document. To be
  // called before requests are admitted.
  void MakeRoom(bool something_runs);
  // Whether tokens wait for room.
  bool short_of_room() const { return !waiting_.empty(); }
  // The directory says that all tokens are known.
  void Finish(const DocumentHandle& handle);
  // Events of the upload go to `sink` from now on; a paused prefill goes on. One that an earlier
  // process has begun is loaded, and what comes until then waits.
  void Follow(const DocumentHandle& handle, std::shared_ptr<EventSink> sink);
  void Pause(const DocumentHandle& handle);
  // The document was deleted: Drop, and it is deleted from disk once no request reads it.
  void Delete(const DocumentHandle& handle, const absl::Status& reason);
  // The document has failed or was deleted: its sink gets Failed, its memory is freed once no
  // request reads it.
  void Drop(const DocumentHandle& handle, const absl::Status& reason);
  // Drop, and the state in the directory becomes kFailed.
  void Fail(const DocumentHandle& handle, const absl::Status& error);
  // Fails all documents.
  void FailAll(const absl::Status& reason);

  // nullptr if there is none in memory.
  Document* Find(const DocumentHandle& handle) { return Find(handle.incarnation); }
  // Whether it is on disk and can be loaded, or is being loaded.
  bool CanLoad(const DocumentHandle& handle) const;
  // Brings its tokens into memory, if that is not under way: EngineLoop::OnLoaded.
  void Load(const DocumentHandle& handle);
  // They are there, or cannot be had: the document fails then.
  void AddLoaded(const DocumentHandle& handle,
                 absl::StatusOr<DocumentKeeper::LoadedDocument> loaded);
  // AddLoaded has thrown: an upload cannot go on.
  void FailUpload(const DocumentHandle& handle, const absl::Status& error);
  // To be called when nobody waits for its tokens any more.
  void UnloadIfUnused(const DocumentHandle& handle);
  // When whoever waits for a read since a time gives up on it, if it does not get on; of a document
  // that is being loaded: nullopt if it is not.
  SteadyTime DeadlineOf(const DiskProgress& read, SteadyTime since) const {
    return std::max(read.last(), since) + keeper_->read_deadline();
  }
  std::optional<SteadyTime> LoadDeadline(const DocumentHandle& handle, SteadyTime since) const;
  // Uploads whose first part cannot be read now are told so. They may be followed again.
  void ExpireUploads(SteadyTime now);
  // The next time that ExpireUploads may do something.
  std::optional<SteadyTime> NextUploadDeadline() const;
  // Writes a document that is ready to disk, if it is not there.
  void Save(const DocumentHandle& handle);
  // It is, or is not; `may_fit`: there would be room if it were the only one. Takes a user away.
  struct SaveAttempt {
    bool may_fit = false;
    bool whole = false;  // the text, and the cache of all of it
    bool with_cache = false;
    bool again = false;  // after one that failed while the home took no pages
  };
  void NoteSaved(Rendition* rendition, const absl::StatusOr<DocumentKeeper::SavedDocument>& saved,
                 SaveAttempt attempt);
  // What it takes to bring the cache of a rendition back from disk until a question of so many
  // tokens has its first token; nullopt: nothing of it is there.
  std::optional<RestoreChoice::Work> WorkToRestore(const Rendition& rendition,
                                                   int64_t question_tokens) const;
  // Brings the cache of a rendition that was admitted back from disk, if it is there:
  // EngineLoop::OnRestored.
  void Restore(Rendition* rendition);
  // It is there, or has to be computed. Takes a user away.
  void NoteRestored(Rendition* rendition, const absl::Status& status);
  // Documents on disk whose text is whole and whose cache is not: they are prefilled one after the
  // other, the last one first, while there is nothing else to do and memory for them is free.
  void CompleteLater(std::vector<DocumentHandle> documents) { to_complete_ = std::move(documents); }
  bool has_incomplete() const { return completing_.has_value() || !to_complete_.empty(); }
  // To be called before each step. `idle`: no request or stream is there.
  void GoOnCompleting(bool idle);

  // Why Find gives none: NOT_FOUND, or what the document failed of.
  absl::Status WhyGone(const DocumentHandle& handle) const;

  // The rendition of a document under a strategy, made if needed (not yet admitted). Counts a user.
  Rendition* Acquire(Document* document, const AttentionSpec& attention);
  // A user is gone; a rendition that nobody waits for any more stops, one of a document that is
  // gone is freed.
  void ReleaseUser(Rendition* rendition);

  // Frees complete renditions without users that questions made, least recently used first, until
  // `bytes` can be reserved. False if that is not enough.
  bool EvictFor(int64_t bytes);

  // Whether it is the one that its document was uploaded with.
  static bool IsOfUpload(const Rendition& rendition) {
    return rendition.document != nullptr && &rendition == &rendition.document->primary();
  }

  // What documents keep of the cache until they are deleted: their renditions of the upload. All
  // others are evicted when nobody reads them.
  int64_t kept_bytes() const { return kept_bytes_; }
  // Of them: what is not to be saved, or could not be. The rest may be evicted once it is.
  int64_t staying_bytes() const { return keeper_ == nullptr ? kept_bytes_ : staying_bytes_; }
  // Whether a rendition is being saved, or brought back from disk: it cannot leave until then.
  bool moves_something() const { return num_moving_ > 0; }
  // What EvictFor may free.
  int64_t evictable_bytes() const { return evictable_bytes_; }

  // The rendition that a sequence prefills; nullptr if it is none of a document.
  Rendition* RenditionOf(const Sequence* sequence);
  // The prefill of a rendition cannot go on: it lets go of its memory, and its document fails if it
  // is the upload's own. REQUIRES: no user.
  void FailRendition(Rendition* rendition, const absl::Status& error);

  // Pages of a rendition are lost. It is computed again: at once if its document has nothing else,
  // else when somebody asks. A document that this happens to again and again fails. REQUIRES: no
  // request reads it; others than the upload's own have no user at all.
  void Repair(Rendition* rendition);

  // To be called after each step with the sequences that were in it: publishes the progress of a
  // rendition, retires what is complete.
  void AfterStep(const Sequence* sequence);

 private:
  Document* Find(uint64_t incarnation);
  // A document with its first rendition, not admitted.
  Document* AddDocument(const DocumentHandle& handle, const AttentionSpec& attention,
                        std::vector<int32_t> tokens);
  Rendition* AddRendition(Document* document, const AttentionSpec& attention);
  // Writes what there is of it, if that is worth it; else it is done later.
  void SaveIfDue(Document* document);
  enum class SavedPart : uint8_t { kTextAndCache, kText };
  void Save(Document* document, SavedPart part = SavedPart::kTextAndCache, bool again = false);
  // Pages from first_page on are read from where they were saved, as far as that stays.
  void AdoptSavedPages(const Document& document, int64_t first_page, bool whole);
  // Pages of the stored cache that are sealed, in segments that are full.
  int64_t NumFixedPages(const Document& document) const;
  void NoteSavedCache(Document* document, const std::shared_ptr<const StoredRendition>& cache,
                      bool whole);
  void SetStayingBytes(Document* document, int64_t bytes);
  // Whether it is an upload that nobody goes on with or asks about, and whose text is on disk.
  bool MayLeave(const Document& document) const;
  // An upload that may leave does when others need its memory, and is loaded when it goes on. To be
  // called when something has changed of what MayLeave looks at.
  void SetKept(Document* document);
  void SaveAttributesIfNot(const DocumentHandle& handle, const DocumentAttributes& saved);
  // A document on disk leaves memory. REQUIRES: no user of its first rendition, and no other one.
  void Unload(Document* document);
  // Unloads one that nobody reads; false if there is none.
  bool UnloadOne();
  // Nobody reads or computes the first rendition of a document on disk any more.
  void LetGoOfFirst(Rendition* rendition);
  // The first rendition of a document on disk leaves memory, the document stays for the others.
  void LetCacheGo(Rendition* rendition);
  void FreeRendition(Rendition* rendition);
  void SetEvictable(Rendition* rendition, bool evictable);
  // Whether its sequence waits.
  static void SetPaused(Rendition* rendition);
  // Which frames the cache of so many tokens has. Any thread.
  static CacheImage LayoutImage(const KvStore& store, const AttentionPlan& plan,
                                int64_t num_tokens);
  // What comes for an upload while its first part is being loaded.
  struct LoadingUpload {
    std::shared_ptr<EventSink> sink;
    SteadyTime followed;
    std::vector<int32_t> tokens;
    int64_t text_bytes = 0;
    bool finished = false;
    bool paused = false;
  };
  // Its tokens are in memory: it gets a user. False if that is in vain.
  bool BeginCompleting(Document* document);
  // There is room for its cache, in memory and on disk, that nobody has to leave for it.
  bool HasRoomToComplete(const DocumentHandle& handle) const;
  void StopCompleting(Document* document);
  // It lets go of its memory, for others; false if there is none or it cannot.
  bool PutOffCompleting();
  LoadingUpload* FindLoading(const DocumentHandle& handle);
  void BeginLoading(const DocumentHandle& handle, std::shared_ptr<EventSink> sink);
  // An upload that has left memory comes back, though its client has not.
  void LoadIfLeft(const DocumentHandle& handle);
  // Its first part is there: what has come meanwhile follows it.
  void GoOn(Document* document, LoadingUpload upload);
  // Lets the prefill of an upload go on with all its tokens; false if there is no room for them.
  bool TakeRoom(Document* document);
  // TakeRoom, or it waits for room, or fails if there will be none.
  void AwaitRoom(Document* document);
  // Whether its tokens would have room if only documents held memory.
  bool MayFindRoom(const Document& document) const;
  absl::Status NoRoom(const Document& document) const;
  // Tells the directory what the document holds; the state then.
  std::optional<DocumentState> Publish(Document* document);
  void NoteProgress(Rendition* rendition);

  const AttentionModel model_;
  Scheduler* const scheduler_;
  KvStore* const store_;
  DocumentDirectory* const directory_;
  TenantAccounts* const accounts_;
  DocumentKeeper* const keeper_;
  std::unordered_map<uint64_t, std::unique_ptr<Document>> documents_;  // by incarnation
  std::map<uint64_t, DiskProgressPtr> loading_;                        // by incarnation
  std::vector<Rendition*> restoring_;
  std::map<uint64_t, LoadingUpload> loading_uploads_;  // by incarnation
  // Of documents that were deleted: to be deleted from disk with their renditions.
  std::unordered_map<const Rendition*, DocumentHandle> deleted_;
  // Of documents that are gone, while questions still read them.
  std::list<std::unique_ptr<Rendition>> orphans_;
  std::unordered_map<const Sequence*, Rendition*> by_sequence_;
  // What EvictFor may free, the least recently used first.
  std::list<Rendition*> evictable_;
  std::vector<Document*> waiting_;  // for room, in the order they began to
  // Reserved for the documents themselves: nothing that ends frees it.
  int64_t kept_bytes_ = 0;
  int64_t staying_bytes_ = 0;  // the sum over documents
  int64_t evictable_bytes_ = 0;
  int num_moving_ = 0;
  std::vector<DocumentHandle> to_complete_;  // the last one first
  std::optional<DocumentHandle> completing_;
};

}  // namespace folio
