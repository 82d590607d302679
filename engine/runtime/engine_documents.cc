// The front door: documents.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/engine_impl.h"
#include "engine/runtime/stored_entry.h"
#include "engine/types/document_name.h"

namespace folio {
namespace {

// How commands fail: what they were for ends with the status.
auto FailDocumentOf(const DocumentHandle& handle) {
  return [handle](EngineLoop& loop, const absl::Status& status) {
    loop.documents().Fail(handle, status);
  };
}

}  // namespace

std::vector<DocumentHandle> EngineImpl::RestoreDocuments() {
  std::vector<std::pair<int64_t, DocumentHandle>> incomplete;  // by their last use
  for (const DocumentStore::ManifestPtr& manifest : keeper()->List()) {
    DocumentDirectory::Stored stored =
        StoredEntryOf(*manifest, *keeper(), info().default_attention,
                      [this](const AttentionSpec& spec) { return ResolveUnknownLength(spec); });
    if (options_.restore_attachment) {
      stored.attachment = options_.restore_attachment(
          {manifest->name, manifest->upload_token, manifest->created_us, manifest->text_bytes,
           stored.whole, manifest->prompt_format, manifest->lead_bytes},
          *model_->tokenizer);
    }
    directory_.AddStored(stored);
    if (LacksCache(*manifest, stored)) {
      incomplete.emplace_back(stored.attributes.last_used_us, stored.handle);
    }
  }
  std::stable_sort(incomplete.begin(), incomplete.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<DocumentHandle> handles;
  handles.reserve(incomplete.size());
  for (auto& [last_used_us, handle] : incomplete) handles.push_back(std::move(handle));
  return handles;
}

// The cache that another model has made stays until somebody asks.
bool EngineImpl::LacksCache(const Manifest& manifest,
                            const DocumentDirectory::Stored& stored) const {
  const bool of_this_model = manifest.renditions.empty() || keeper()->CacheOf(manifest) != nullptr;
  return of_this_model && stored.whole && stored.error.ok() &&
         stored.cached_tokens < stored.num_tokens;
}

void EngineImpl::CountStored(EngineStats* stats) const {
  const StoreUsage usage = keeper()->usage();
  stats->stores_documents = true;
  stats->stored_documents = usage.num_documents;
  stats->stored_bytes = usage.bytes.total();
  stats->documents_quarantined = usage.num_quarantined;
  const DocumentKeeper::Counts counts = keeper()->counts();
  stats->document_saves = counts.saves;
  stats->document_save_failures = counts.save_failures;
  stats->document_loads = counts.loads;
}

absl::Status EngineImpl::CheckDocumentSize(const AttentionSpec& attention,
                                           int64_t num_bytes) const {
  const auto most = static_cast<int64_t>(tokenizer().max_bytes_per_token());
  if (most == 0) return absl::OkStatus();
  const int64_t min_tokens = num_bytes / most;
  FOLIO_RETURN_IF_ERROR(
      CheckLength(absl::StrCat("a document of ", num_bytes,
                               " bytes, even in the longest tokens that there are,"),
                  min_tokens, options_.max_context_tokens));
  const int64_t bytes = model_->store->BytesNeeded(PlanFor(attention, model_->attention),
                                                   min_tokens, model_->scheduler.step_tokens, 0);
  return CheckCapacity(attention, min_tokens, bytes, model_->store->capacity_bytes(),
                       model_->attention);
}

absl::StatusOr<DocumentInfo> EngineImpl::OpenDocument(
    const std::string& id, const AttentionSpec& attention,
    std::shared_ptr<DocumentAttachment> attachment, const Payer& payer) {
  MutexLock lock(&order_mu_);
  if (auto document = directory_.Open(id, payer)) return *std::move(document);
  FOLIO_RETURN_IF_ERROR(CheckServing());
  FOLIO_ASSIGN_OR_RETURN(const AttentionSpec resolved, ResolveUnknownLength(attention));
  FOLIO_ASSIGN_OR_RETURN(DocumentInfo document,
                         directory_.Create(id, resolved, std::move(attachment), payer));
  absl::Cleanup forget = [&] { directory_.Remove(document.handle).IgnoreError(); };
  const auto create = [handle = document.handle, resolved](EngineLoop& loop) {
    loop.documents().Create(handle, resolved);
  };
  thread_.Post({create, FailDocumentOf(document.handle)});
  std::move(forget).Cancel();
  return document;
}

absl::Status EngineImpl::FollowDocument(const DocumentHandle& handle,
                                        std::shared_ptr<EventSink> sink) {
  FOLIO_RETURN_IF_ERROR(CheckServing());
  MutexLock lock(&order_mu_);
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(handle));
  FOLIO_RETURN_IF_ERROR(CheckUploading(document));
  const auto follow = [handle, sink](EngineLoop& loop) { loop.documents().Follow(handle, sink); };
  const auto fail = [sink](EngineLoop&, const absl::Status& status) {
    sink->OnEvent(FailedEvent{status, Phase::kPrefill});
  };
  thread_.Post({follow, fail});
  return absl::OkStatus();
}

absl::Status EngineImpl::AppendToDocument(const DocumentHandle& handle, std::vector<int32_t> tokens,
                                          int64_t text_bytes) {
  FOLIO_RETURN_IF_ERROR(CheckTokens(tokens, info().shape.vocab_size));
  const int64_t count = std::ssize(tokens);
  auto run = [handle, tokens = std::move(tokens), text_bytes](EngineLoop& loop) {
    loop.documents().Append(handle, tokens, text_bytes);
  };
  auto append = OneCommand({std::move(run), FailDocumentOf(handle)});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.AddTokens(handle, count));
  thread_.PostMade(std::move(append));
  return absl::OkStatus();
}

absl::Status EngineImpl::FinishDocument(const DocumentHandle& handle) {
  const auto run = [handle](EngineLoop& loop) { loop.documents().Finish(handle); };
  auto finish = OneCommand({run, FailDocumentOf(handle)});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.FinishUpload(handle));
  thread_.PostMade(std::move(finish));
  return absl::OkStatus();
}

absl::Status EngineImpl::FailDocument(const DocumentHandle& handle, const absl::Status& error) {
  auto drop =
      OneCommand({[handle, error](EngineLoop& loop) { loop.documents().Delete(handle, error); }});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.Fail(handle, error));
  thread_.PostMade(std::move(drop));
  return absl::OkStatus();
}

void EngineImpl::PauseDocument(const DocumentHandle& handle) {
  thread_.Post({[handle](EngineLoop& loop) { loop.documents().Pause(handle); }});
}

absl::Status EngineImpl::SaveDocument(const DocumentHandle& handle) {
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.Get(handle));
  if (keeper() == nullptr) {
    return absl::FailedPreconditionError(
        "documents are not stored: the server was started without --kv-dir");
  }
  FOLIO_RETURN_IF_ERROR(CheckFinished(document));
  if (document.saved) return absl::OkStatus();
  EngineCommands save = OneCommand({[handle](EngineLoop& loop) { loop.documents().Save(handle); }});
  directory_.ForgetSaveError(handle);
  thread_.PostMade(std::move(save));
  return absl::OkStatus();
}

absl::Status EngineImpl::UpdateDocument(const DocumentHandle& handle,
                                        absl::FunctionRef<void(DocumentAttributes*)> change,
                                        Updated done) {
  FOLIO_ASSIGN_OR_RETURN(const DocumentInfo document, directory_.UpdateAttributes(handle, change));
  if (document.saved || document.stored_bytes > 0) {
    keeper()->UpdateAttributes(handle, AttributesOf(handle), done);
  } else {
    done(absl::OkStatus());  // they are written with it
  }
  return absl::OkStatus();
}

absl::Status EngineImpl::DeleteDocument(const DocumentHandle& handle) {
  const absl::Status reason = absl::NotFoundError(
      absl::StrCat("document ", Quoted(DocumentName(handle.id)), " was deleted"));
  auto drop =
      OneCommand({[handle, reason](EngineLoop& loop) { loop.documents().Delete(handle, reason); }});
  MutexLock lock(&order_mu_);
  FOLIO_RETURN_IF_ERROR(directory_.Remove(handle));
  thread_.PostMade(std::move(drop));
  return absl::OkStatus();
}

}  // namespace folio
