#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/chat/chat_prompt.h"
#include "engine/grammar/grammar_source.h"
#include "engine/runtime/catalogue.h"
#include "engine/runtime/document_info.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/types/kv_types.h"
#include "engine/types/model_shape.h"
#include "engine/types/request.h"
#include "engine/types/slow_step.h"
#include "engine/types/step_times.h"

namespace folio {

class Backend;
class FileSystem;

// Errors: FAILED_PRECONDITION where there is no such device.
using MakeDeviceBackend = std::function<absl::StatusOr<std::unique_ptr<Backend>>()>;

// A directory as PEFT saves an adapter, and what requests call it.
struct AdapterSource {
  std::string name;  // 1 to 64 characters of [A-Za-z0-9_-]
  std::string dir;
};
inline constexpr int kMaxAdapters = 64;

struct EngineOptions {
  // A Hugging Face directory, a GGUF file, or "synthetic:NAME" for a known shape with random
  // weights.
  std::string model_dir;
  // cpu; cuda; or auto: cuda if this build has it and there is a device, else cpu.
  std::string device = "cpu";
  // LoRA adapters that requests may name, at most kMaxAdapters.
  std::vector<AdapterSource> adapters;
  // How a conversation becomes tokens: auto (what the checkpoint's chat template says), none, a
  // name of ChatFormats(), or a file that ends with .json (ReadChatFormatFile).
  std::string chat_format = "auto";
  // Of the CUDA backend; empty: this program has none.
  MakeDeviceBackend make_cuda;
  // Called once, on the engine thread, when the device has failed for good. Requests were failed
  // with UNAVAILABLE; the process should end and be started again.
  std::function<void(const absl::Status&)> on_device_failure;
  // A step that lasts longer is told of, on the engine thread, by a call that returns at once and
  // calls no method of the engine. 0: none is.
  double slow_step_seconds = 0;
  std::function<void(const SlowStep&)> on_slow_step;
  // Called after each change of a document, its progress included, by the thread that has made it;
  // returns at once, throws nothing and calls no method of the engine.
  std::function<void(const DocumentHandle&)> on_document_change;
  // 0: as many as the CPUs this process may use (affinity mask and cgroup quota).
  int num_threads = 0;
  // Instruction set of the CPU kernels: auto (the fastest there is), portable, avx2, avx512,
  // avx512_vnni, avx512_bf16, amx.
  std::string cpu_isa = "auto";
  // Tokens in a page; 0: 16 for models trained on at most 1024 tokens, 128 on a CPU for those
  // trained on 2048 and more, else 64.
  int page_tokens = 0;
  // fp32, bf16, or integers with a scale per output and group of inputs: int8, int4 (CPU backend
  // only); auto: as the checkpoint has them, or the integers nearest to those that it has. The
  // group is 32, 64 or 128; 0: as the checkpoint has it, else 128 of int8, 32 of int4.
  std::string weight_dtype = "auto";
  int weight_group = 0;
  // fp32, bf16 or auto: fp32 for fp32 weights, bf16 otherwise.
  std::string kv_dtype = "auto";
  // KV pages, sinks and chunk summaries together; 0: 70 % of the memory that weights and
  // activations leave of the host's, 95 % of a device's.
  int64_t kv_bytes = 0;
  // With a device: memory of the host where pages go once they are complete, of which the device
  // keeps what it reads; 0: they stay on the device.
  int64_t kv_host_bytes = 0;
  // A directory of this process alone where pages go that find no room in memory; empty: none do.
  // CPU backend only.
  std::string kv_dir;
  // Bytes of it for pages; 0: 45 % of what is free where it lies.
  int64_t kv_disk_bytes = 0;
  // Bytes of it for documents that outlive the process; 0: as much again.
  int64_t store_bytes = 0;
  // A read from disk that has not got on for so long is given up on.
  std::chrono::milliseconds read_deadline = std::chrono::seconds(10);
  // Tests put faults between the engine and its files; empty: nothing.
  std::function<std::unique_ptr<FileSystem>(std::unique_ptr<FileSystem>)> wrap_files;
  // What the caller keeps with a document that was stored. Called by Create, for each.
  std::function<std::shared_ptr<DocumentAttachment>(const StoredText&, const Tokenizer&)>
      restore_attachment;
  // Tokens in one step, decodes included; 0: as many as keep the device busy. And the most of them
  // that one prefill may take while others wait; 0: half of them.
  int step_tokens = 0;
  int prefill_share_tokens = 0;
  // A step that reads prompts beside answers takes at most so many times as long as one of the
  // answers alone; 0: no bound. Else above 1.
  double prefill_slowdown = 3;
  int max_running_requests = 64;
  int max_queued_requests = 256;
  // Of them for one tenant; 0: seven eighths.
  int max_queued_requests_per_client = 0;
  // Tokens of prompts that wait or are being prefilled, without what is in the cache already; 0: no
  // bound of its own. One tenant may have seven eighths of it.
  int64_t max_queued_prefill_tokens = int64_t{4} << 20;
  // What requests that wait have to reserve of the KV cache, together; 0: no bound of its own.
  int64_t max_queued_kv_bytes = 0;
  int max_documents = 1000;
  int64_t max_context_tokens = int64_t{1} << 30;
};

struct AdapterInfo {
  std::string name;
  int64_t rank = 0;                         // of most modules
  std::vector<std::string> target_modules;  // as its config has them; empty: all in the layers
  int64_t bytes = 0;
};

// What does not change after Create.
struct EngineInfo {
  std::string model_name;
  std::string architecture;
  int64_t num_parameters = 0;
  std::string weight_dtype;
  // What became of the numbers of a quantised checkpoint, in words; else "".
  std::string weight_conversion;
  bool synthetic = false;
  ModelShape shape;
  std::string backend;
  int num_threads = 0;
  int page_tokens = 0;
  std::string kv_dtype;
  int64_t weight_bytes = 0;
  // Where the memory went, in words.
  std::string memory_plan;
  int64_t kv_capacity_bytes = 0;
  AttentionSpec default_attention;
  std::vector<AdapterInfo> adapters;
  Catalogue catalogue;
  // Of the checkpoint and its tokenizer.
  std::vector<int32_t> eos_tokens;
  // The checkpoint's chat format; null: it has none, or none that is known, which then is what
  // `chat_note` says.
  std::shared_ptr<const Chat> chat;
  std::string chat_note;
  // Of the checkpoint's generation_config.json; greedy without one.
  SamplingParams checkpoint_sampling;
  // That the checkpoint was trained with and that is the default attention's; 0: none.
  int sliding_window = 0;
};

// A consistent picture of the engine after its last step. Counters only grow.
struct EngineStats {
  int running = 0;
  int waiting = 0;
  // On their way to the engine thread: in no other of these numbers.
  int posted = 0;
  // Have been accepted and do not run.
  int queued() const { return waiting + posted; }
  // Of those that wait, what for, as Scheduling has it. The rest waits for its turn.
  int waiting_for_memory = 0;
  int waiting_for_document = 0;
  int64_t waiting_prefill_tokens = 0;
  // What one of them takes beside the answers that run; 0: nothing is known yet.
  double prefill_token_seconds = 0;
  // In memory.
  int64_t kv_used_bytes = 0;
  int64_t summary_used_bytes = 0;
  // What admission counts: bytes in memory, or where pages go that leave it.
  int64_t kv_reserved_bytes = 0;
  int64_t kv_capacity_bytes = 0;
  // Of what is reserved: what documents keep until they are deleted, and what leaves for others.
  int64_t kv_staying_bytes = 0;
  int64_t kv_evictable_bytes = 0;
  // Where pages go that leave memory; kDevice: they do not. Then the rest is 0.
  Tier home = Tier::kDevice;
  int64_t kv_memory_bytes = 0;
  int64_t home_used_bytes = 0;
  // Slices of pages that attention has read: in memory, or brought there.
  int64_t slice_hits = 0;
  int64_t slice_misses = 0;
  int64_t home_read_bytes = 0;
  double disk_wait_seconds = 0;
  // Documents on disk, with a --kv-dir.
  bool stores_documents = false;
  int64_t stored_documents = 0;
  int64_t stored_bytes = 0;
  int64_t document_saves = 0;
  int64_t document_save_failures = 0;
  int64_t document_loads = 0;
  // Of them the caches that were read, and that were computed again because that was faster.
  int64_t caches_read = 0;
  int64_t caches_prefilled = 0;
  int64_t documents_quarantined = 0;
  int64_t steps = 0;
  StepTimes step_times;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t nonfinite_logits = 0;  // requests that failed for them
  // Unix seconds of the last step's start; busy while a step runs.
  double last_step_unix_seconds = 0;
  bool busy = false;
  // Of the last step that has ended: how long it took, the answers that got a token in it, and the
  // tokens of prompts, documents and scored texts.
  double step_seconds = 0;
  int step_answers = 0;
  int64_t step_prompt_tokens = 0;
};

// What one tenant has of the engine.
struct TenantUse {
  std::string tenant;
  // Reserved in the KV cache by its requests and documents: what TenantLimits::max_kv_bytes counts.
  int64_t kv_bytes = 0;
  int documents = 0;
};

// The front door of the inference engine: one model, one engine thread. All methods are thread-safe
// and return without waiting for the engine thread.
class Engine {
 public:
  // Loads the model and starts the engine thread. Blocks for as long as loading takes.
  // Errors: NOT_FOUND, INVALID_ARGUMENT, UNIMPLEMENTED for a model that cannot be served,
  // RESOURCE_EXHAUSTED if weights and cache do not fit.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);

  // Stops the engine thread; requests, streams and documents fail with UNAVAILABLE.
  virtual ~Engine() = default;

  virtual const EngineInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;

  // Fills in the defaults of strategy and position scheme and checks both, alone and together, for
  // a text of total_tokens (prompt and answer; 0: an upload of unknown length). Empty names are the
  // defaults. Errors: INVALID_ARGUMENT naming parameter, value and limit; the payload kFieldPayload
  // says which part of the spec is meant.
  virtual absl::StatusOr<AttentionSpec> ResolveAttention(const AttentionSpec& spec,
                                                         const PositionRequest& request) const = 0;

  // For GenerateSpec::grammar. Blocks for as long as that takes, up to some seconds for a new one.
  // Errors: INVALID_ARGUMENT with what is wrong with the source, FAILED_PRECONDITION without
  // folio-grammar-trial beside the program, INTERNAL.
  virtual absl::StatusOr<std::shared_ptr<const AnswerGrammar>> CompileGrammar(
      const GrammarSource& source) const = 0;

  // Whether a request of this tenant, however short, would find a place in the queue now: what
  // need not be read otherwise. Cheap. Errors: RESOURCE_EXHAUSTED as Submit.
  virtual absl::Status CheckQueue(const TenantPtr& tenant) const = 0;

  // Queues a request; its events go to `sink`, the last one is Completed or Failed. Errors, nothing
  // queued: INVALID_ARGUMENT, NOT_FOUND (document), FAILED_PRECONDITION (can never fit; document
  // has failed or is not finished), UNIMPLEMENTED (evidence of a strategy that has none,
  // a report of a prompt that the strategy cuts),
  // RESOURCE_EXHAUSTED with a kLimitPayload (the queue is full, or its tenant's part of it),
  // FAILED_PRECONDITION with a kExpectedSecondsPayload (its answer is expected to end after its
  // deadline), UNAVAILABLE (draining).
  virtual absl::StatusOr<RequestId> Submit(GenerateSpec spec, std::shared_ptr<EventSink> sink) = 0;

  // What a request would take if it were submitted now, and whether there is memory for it. Errors:
  // as Submit, but for a queue that is full and a request that can never fit.
  virtual absl::StatusOr<Estimate> EstimateRequest(GenerateSpec spec) const = 0;
  // The same of a document of so many tokens. Errors: NOT_FOUND (adapter), INVALID_ARGUMENT
  // (attention, too many tokens).
  virtual absl::StatusOr<Estimate> EstimateDocument(const AttentionSpec& attention,
                                                    int64_t num_tokens,
                                                    const Payer& payer) const = 0;

  // Ends a request with `reason` between two steps and frees its memory. Unknown ids are ignored.
  virtual void Cancel(RequestId id, absl::Status reason) = 0;

  // A request that is held back gives its place in the batch to others until it is let go on: then
  // it is the first to get one. It keeps its cache, unless others need that memory: then it fails
  // with ABORTED. For readers that are slow. Unknown ids are ignored.
  virtual void HoldBack(RequestId id) = 0;
  virtual void LetGoOn(RequestId id) = 0;

  // Scores a stream of tokens of any length: Scored events as it goes on, Completed after
  // FinishScore. Ended by Cancel. Under a strategy of bounded memory the stream needs no more than
  // that, if the caller holds tokens back until earlier ones are scored. Errors: INVALID_ARGUMENT,
  // UNAVAILABLE; without memory the stream fails with RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<RequestId> OpenScore(const AttentionSpec& attention, const Payer& payer,
                                              std::shared_ptr<EventSink> sink) = 0;
  virtual absl::Status AppendToScore(RequestId id, std::vector<int32_t> tokens) = 0;
  virtual void FinishScore(RequestId id) = 0;

  // Documents: token sequences prefilled ahead of the questions, in the states of DocumentState.
  // Only the handle of a document reaches it: what is meant for a deleted one never reaches another
  // that has taken its id, it gets NOT_FOUND.
  //
  // OK unless a text of `num_bytes` can never become a document under `attention`, which is
  // resolved: the text has more tokens than a document may have (INVALID_ARGUMENT), or needs more
  // KV cache than there is (FAILED_PRECONDITION), even if each token stands for as much text as one
  // can.
  virtual absl::Status CheckDocumentSize(const AttentionSpec& attention,
                                         int64_t num_bytes) const = 0;
  // The document of this id in whatever state it is, or a new one, whose prefill `payer` pays for.
  // Errors, of new ones: RESOURCE_EXHAUSTED with a kLimitPayload when there are too many, in all or
  // of the tenant, INVALID_ARGUMENT (attention), UNAVAILABLE.
  virtual absl::StatusOr<DocumentInfo> OpenDocument(const std::string& id,
                                                    const AttentionSpec& attention,
                                                    std::shared_ptr<DocumentAttachment> attachment,
                                                    const Payer& payer) = 0;
  // Events of the upload go to `sink` from now on, and a paused prefill goes on: Prefill as it goes
  // on; Completed once all tokens of a finished upload are in the cache, or Failed. Errors:
  // NOT_FOUND, FAILED_PRECONDITION (finished or failed), UNAVAILABLE.
  virtual absl::Status FollowDocument(const DocumentHandle& handle,
                                      std::shared_ptr<EventSink> sink) = 0;
  // BOS is put in front by the caller. With these tokens the document has those of the first
  // `text_bytes` bytes of its text, whatever follows; an upload that was stored goes on there after
  // a restart. Errors: NOT_FOUND, INVALID_ARGUMENT (tokens; too many), RESOURCE_EXHAUSTED with a
  // kLimitPayload (documents of the tenant would take too much of the disk), FAILED_PRECONDITION
  // (finished or failed).
  virtual absl::Status AppendToDocument(const DocumentHandle& handle, std::vector<int32_t> tokens,
                                        int64_t text_bytes) = 0;
  // Errors: NOT_FOUND, INVALID_ARGUMENT (no tokens), FAILED_PRECONDITION (finished or failed).
  virtual absl::Status FinishDocument(const DocumentHandle& handle) = 0;
  // The upload cannot go on: the document fails with `error` and lets go of its memory. Errors:
  // NOT_FOUND, FAILED_PRECONDITION (has failed already).
  virtual absl::Status FailDocument(const DocumentHandle& handle, const absl::Status& error) = 0;
  // Stops the prefill until somebody follows it again (the uploading client is gone). Ignored for a
  // document that is gone.
  virtual void PauseDocument(const DocumentHandle& handle) = 0;
  // Has a document that is ready written to disk, if that was tried and did not work; GetDocument
  // tells when it is. Errors: NOT_FOUND, FAILED_PRECONDITION (not ready; there is no --kv-dir).
  virtual absl::Status SaveDocument(const DocumentHandle& handle) = 0;
  // Changes what the owner of a document says of it, whatever its state; that counts as a use.
  // `done` is called once, with OK when the change is as durable as the document, or with an error
  // of the disk: it holds until a restart then. It is called before this returns or on another
  // thread, and calls no method of the engine. Errors, and no call: NOT_FOUND, RESOURCE_EXHAUSTED
  // (pinned documents would take too much of the disk).
  using Updated = std::function<void(const absl::Status&)>;
  virtual absl::Status UpdateDocument(const DocumentHandle& handle,
                                      absl::FunctionRef<void(DocumentAttributes*)> change,
                                      Updated done) = 0;
  // Documents that nobody has asked for as long as their TTL says.
  virtual std::vector<DocumentHandle> ExpiredDocuments() const = 0;
  // Its memory is freed, and what is on disk of it deleted, once no request reads it; its sink gets
  // Failed. Errors: NOT_FOUND.
  virtual absl::Status DeleteDocument(const DocumentHandle& handle) = 0;
  virtual std::optional<DocumentInfo> GetDocument(const std::string& id) const = 0;
  // Up to `count` documents with ids after `after`, in order of id.
  virtual std::vector<DocumentInfo> ListDocuments(const std::string& after, size_t count) const = 0;
  virtual DocumentCounts CountDocuments() const = 0;

  virtual EngineStats Stats() const = 0;
  // Of each tenant that has work or documents, by name.
  virtual std::vector<TenantUse> TenantUses() const = 0;

  // Refuses new requests, streams, documents and followers with UNAVAILABLE; what runs goes on.
  virtual void StopAdmission() = 0;
};

}  // namespace folio
