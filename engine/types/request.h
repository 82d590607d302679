#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/types/answer_grammar.h"
#include "engine/types/param.h"
#include "engine/types/position.h"
#include "engine/types/sampling.h"
#include "engine/types/tenant.h"

namespace folio {

using RequestId = uint64_t;
using SteadyTime = std::chrono::steady_clock::time_point;

// Names one document for good: an id is free again after a deletion, its incarnation never is.
struct DocumentHandle {
  std::string id;
  uint64_t incarnation = 0;

  bool operator==(const DocumentHandle&) const = default;
};

// Two resolved specs are equal exactly if KV prefilled under one can be read under the other.
using StrategySpec = MethodSpec<struct StrategyTag>;

// An adapter of the model, which changes what its projections compute. Empty: none.
struct AdapterSpec {
  std::string name;
  // Of its files; filled in when it is resolved. Other files under the same name make other KV.
  std::string content;

  bool operator==(const AdapterSpec&) const = default;
};

// How a request attends: one row and one column of the table of legal combinations, and the adapter
// that its tokens go through. Empty names are the defaults of the engine and of the checkpoint, and
// no adapter.
struct AttentionSpec {
  StrategySpec strategy;
  PositionSpec position;
  AdapterSpec adapter = {};

  bool operator==(const AttentionSpec&) const = default;
};

// Payload of an error about an AttentionSpec: "strategy", "position" or "adapter", the part
// that is wrong.
inline constexpr char kFieldPayload[] = "folio/field";

// Payload of a RESOURCE_EXHAUSTED: the bound that is reached, as one of these names; with "tenant."
// in front if it is one of the tenant alone (TenantLimits).
inline constexpr char kLimitPayload[] = "folio/limit";
inline constexpr char kQueuedRequests[] = "queued_requests";
inline constexpr char kQueuedPrefillTokens[] = "queued_prefill_tokens";
inline constexpr char kQueuedKvBytes[] = "queued_kv_bytes";
inline constexpr char kKvBytes[] = "kv_bytes";
inline constexpr char kDocuments[] = "documents";
inline constexpr char kUnfinishedUploads[] = "unfinished_uploads";
inline constexpr char kStoredBytes[] = "stored_bytes";

// Payload of a refusal for want of time: the seconds that the answer takes at least, as expected.
inline constexpr char kExpectedSecondsPayload[] = "folio/expected_seconds";

struct StopParams {
  int max_new_tokens = 128;
  // Before so many tokens no token that ends the answer is drawn, and their text is not searched
  // for stop strings.
  int min_new_tokens = 0;
  std::vector<std::string> stop_strings = {};
  std::vector<int32_t> stop_token_ids = {};
  bool ignore_eos = false;
};

// One question, ready to run. Token ids only: text was tokenised by the caller.
struct GenerateSpec {
  // Who pays for it: tenants share steps, places and queue (FairShare). Null: nobody else.
  TenantPtr tenant;
  // Among the requests of its tenant: lower ones run sooner, -100 to 100.
  int priority = 0;
  // Context that is already known to the engine.
  std::optional<DocumentHandle> document;
  // The prompt, or the question that follows the document. BOS is included by the caller for a
  // prompt.
  std::vector<int32_t> tokens;
  // Of several answers to one prompt, which is computed once for all that differ in sampling alone:
  // how many there are, and the first of them; 0: it is the first.
  int num_answers = 1;
  RequestId first_answer = 0;
  AttentionSpec attention;
  SamplingParams sampling;
  StopParams stop;
  // What the answer must be; null: any text. It ends the answer once nothing can follow.
  std::shared_ptr<const AnswerGrammar> grammar;
  bool logprobs = false;
  int num_top_logprobs = 0;
  // Of `tokens` but the first one.
  bool prompt_logprobs = false;
  int num_prompt_top_logprobs = 0;
  // `tokens` and their text come back.
  bool echo = false;
  // Spans of the evidence that are reported; 0: none is wanted.
  int max_evidence_spans = 0;
  bool layer_evidence = false;
  // Fails with DEADLINE_EXCEEDED at the next step after this time, or as soon as it is certain that
  // its first token would come later.
  std::optional<SteadyTime> deadline;
};

enum class Phase : uint8_t { kQueued, kPrefill, kDecode };
enum class FinishReason : uint8_t { kStop, kLength };

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

struct Timings {
  double queue_seconds = 0;
  double prefill_seconds = 0;
  double time_to_first_token_seconds = 0;
  double decode_seconds = 0;
};

struct MemoryReceipt {
  int64_t device_kv_bytes_peak = 0;
  int64_t host_kv_bytes_peak = 0;
  int64_t disk_kv_bytes_peak = 0;
  int64_t shared_kv_bytes = 0;
  int64_t summary_bytes_peak = 0;
  double attended_tokens_mean = 0;
  // Slices of pages that have left memory, or the device: there already when attention read them,
  // or brought there, and how long its steps have waited for the disk, be it for others in them.
  int64_t slice_hits = 0;
  int64_t slice_misses = 0;
  int64_t host_read_bytes = 0;
  int64_t disk_read_bytes = 0;
  double disk_wait_seconds = 0;
};

// How a request came to run.
struct Scheduling {
  // Timings::queue_seconds, by what it waited for: its turn, room in the cache, its document.
  double turn_seconds = 0;
  double memory_seconds = 0;
  double document_seconds = 0;
  // Steps that worked for it; of these the mean number of requests, and its part of their tokens.
  int64_t num_steps = 0;
  double mean_step_requests = 0;
  double step_token_share = 0;
  // It gave its place to another; it began again, for pages of its cache were lost.
  int times_preempted = 0;
  int times_restarted = 0;
};

// What a request or a document would take.
struct Estimate {
  enum class Fit : uint8_t {
    kNow,
    kWhenIdle,  // once no other request runs
    kNever,     // while the documents that there are stay; or at all
  };
  AttentionSpec attention;    // resolved
  int64_t prompt_tokens = 0;  // with the document
  int64_t total_tokens = 0;   // with the longest answer, after truncation
  // Of the longest answer: the bytes; nothing is known of what it reads.
  MemoryReceipt memory;
  // Of a question: to prefill the document for its attention, if it has to be.
  MemoryReceipt document;
  Fit fit = Fit::kNow;
  std::string reason;  // unless it fits now
  // Until it runs, and until its first token (of a document: until it is ready), as the work that
  // is there and the speed of the last steps say. nullopt: no step says anything yet, or it never
  // fits.
  std::optional<double> queue_seconds;
  std::optional<double> first_token_seconds;
};

// What the engine tells a request. Order: Queued*, Prefill* with Prompt* between them if wanted,
// Delta*, Evidence if wanted, then Completed; or Failed at any time. The last comes once.
struct QueuedEvent {
  int position = 0;
};
struct PrefillEvent {
  int64_t total_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t processed_tokens = 0;
};
// Of tokens of the prompt, in their order. Either list may be empty: not asked for, or nothing
// rates these tokens.
struct PromptEvent {
  int64_t first_position = 0;  // document first
  std::string text;            // whole UTF-8 characters
  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // as long as logprobs, or empty
};
struct DeltaEvent {
  // Whole UTF-8 characters; may be empty.
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<std::vector<TokenLogprob>> top_logprobs;
};
// Parts of the prompt that the heads chose most while the answer was made.
struct EvidenceEvent {
  struct Span {
    int64_t token_begin = 0;
    int64_t token_end = 0;
    int64_t votes = 0;
    std::vector<int64_t> votes_by_layer_group;
    // Of all choices.
    double share = 0;
    std::vector<int32_t> tokens;
  };
  // All choices of one layer, chunks ascending.
  struct Layer {
    struct Chunk {
      int64_t chunk = 0;
      int64_t votes = 0;
      int64_t first_votes = 0;  // as the best of a head's choices
    };
    std::vector<Chunk> chunks;
  };
  std::vector<Span> spans;  // most votes first
  // Empty unless asked for. Chunks [1, candidates_end) were open to choice for the last token.
  std::vector<Layer> layers;
  int chunk_tokens = 0;
  int64_t candidates_end = 0;
};
// Of a scored stream: log-probabilities of the tokens at first_position and on, each under all
// tokens before it.
struct ScoredEvent {
  int64_t first_position = 0;
  std::vector<float> logprobs;
};
struct CompletedEvent {
  FinishReason reason = FinishReason::kLength;
  // At most one of the two.
  std::optional<int32_t> stop_token;
  std::optional<std::string> stop_string;
  Usage usage;
  Timings timings;
  MemoryReceipt memory;
  Scheduling scheduling;
};
struct FailedEvent {
  absl::Status status;
  Phase phase = Phase::kQueued;
};
using Event = std::variant<QueuedEvent, PrefillEvent, PromptEvent, DeltaEvent, EvidenceEvent,
                           ScoredEvent, CompletedEvent, FailedEvent>;

// Receives the events of one request or document. Called on the engine thread: must return at once,
// never block and never call the engine back.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void OnEvent(Event event) = 0;
};

}  // namespace folio
