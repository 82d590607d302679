#include "server/state_report.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/memory_info.h"
#include "engine/base/quoted.h"
#include "server/edge/edge.h"
#include "server/version.h"

namespace folio::server {
namespace {

// As much as a pipe takes at once, with ids of usual lengths.
constexpr size_t kMaxCalls = 200;

using SystemTime = std::chrono::system_clock::time_point;

std::string Seconds(double seconds) { return absl::StrFormat("%.1f s", seconds); }
std::string Seconds(SteadyTime from, SteadyTime to) {
  return Seconds(std::chrono::duration<double>(to - from).count());
}

std::string Ago(std::optional<SteadyTime> at, SteadyTime now) {
  return at.has_value() ? absl::StrCat(Seconds(*at, now), " ago") : "never";
}

const char* StateOf(const ServiceContext& context) {
  if (context.is_draining()) return "draining";
  return context.engine() == nullptr ? "loading" : "serving";
}

std::string DescribeEngineBeat(const EngineStats& stats) {
  if (stats.last_step_unix_seconds == 0) return "has not begun";
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return absl::StrCat(stats.busy ? "in a step for " : "idle for ",
                      Seconds(now.count() - stats.last_step_unix_seconds));
}

std::string DescribePool(const PromptPool::Progress& pool) {
  const auto now = std::chrono::steady_clock::now();
  const bool any = pool.num_finished > 0;
  return absl::StrCat(pool.busy ? "busy" : "idle", ", ", pool.num_waiting,
                      " tasks wait, the last one ended ",
                      Ago(any ? std::optional(pool.last_finished) : std::nullopt, now));
}

std::string DescribeThreads(const ServiceContext& context, const EngineStats& stats,
                            SteadyTime now) {
  return absl::StrCat("threads: engine ", DescribeEngineBeat(stats), "; event pump ",
                      Ago(context.pump_beat().last(), now), "; listener ",
                      Ago(context.listener_beat().last(), now), "; prompt pool ",
                      DescribePool(context.pool.progress()));
}

std::string DescribeCache(const EngineStats& stats) {
  const int64_t used = stats.kv_used_bytes + stats.summary_used_bytes;
  const bool tiered = stats.home != Tier::kDevice;
  std::string text =
      absl::StrCat("KV cache, bytes: ", used, " of ",
                   tiered ? stats.kv_memory_bytes : stats.kv_capacity_bytes, " used on the device");
  if (tiered) {
    absl::StrAppend(&text, ", ", stats.home_used_bytes, " of ", stats.kv_capacity_bytes,
                    stats.home == Tier::kHost ? " on the host" : " on disk");
  }
  return absl::StrCat(text, ", ", stats.kv_reserved_bytes, " reserved");
}

std::string DescribeDocuments(const DocumentCounts& counts) {
  std::vector<std::string> parts;
  for (size_t state = 0; state < counts.size(); ++state) {
    parts.push_back(
        absl::StrCat(counts[state], " ", DocumentStateName(static_cast<DocumentState>(state))));
  }
  return absl::StrCat("documents: ", absl::StrJoin(parts, ", "));
}

void AppendEngine(const Engine& engine, const EngineStats& stats, int being_read,
                  std::vector<std::string>* lines) {
  lines->push_back(absl::StrFormat(
      "last step: %.6f s for %d answers and %d tokens of prompts; %d steps in all",
      stats.step_seconds, stats.step_answers, stats.step_prompt_tokens, stats.steps));
  lines->push_back(absl::StrFormat(
      "requests: %d run, %d wait (%d for memory, %d for a document) with %d tokens of prompts, %d "
      "are being read",
      stats.running, stats.queued(), stats.waiting_for_memory, stats.waiting_for_document,
      stats.waiting_prefill_tokens, being_read));
  lines->push_back(DescribeCache(stats));
  lines->push_back(DescribeDocuments(engine.CountDocuments()));
}

const char* NameOf(CallPhase phase) {
  switch (phase) {
    case CallPhase::kReading:
      return "is being read";
    case CallPhase::kQueued:
      return "waits";
    case CallPhase::kPrefill:
      return "is prefilled";
    case CallPhase::kDecode:
      return "is answered";
  }
  return "?";
}

std::string DescribeCall(const RunningCall& call, const RunningCall::Subject& subject,
                         SteadyTime now, SystemTime calendar) {
  const RunningCall::Origin& origin = call.origin();
  const RunningCall::Tokens tokens = call.tokens();
  std::string line =
      absl::StrCat("call ", Quoted(subject.request_id), ": ", origin.method, " of ", origin.client);
  if (!origin.tenant.empty()) absl::StrAppend(&line, ", tenant ", Quoted(origin.tenant));
  if (!subject.document_id.empty()) {
    absl::StrAppend(&line, ", document ", Quoted(subject.document_id));
  }
  if (!subject.strategy.empty()) absl::StrAppend(&line, ", ", subject.strategy);
  absl::StrAppend(&line, "; ", NameOf(call.phase()), ", ", Seconds(origin.arrived, now),
                  " old; prompt ", tokens.computed, " of ", tokens.prompt, " tokens computed");
  if (tokens.max_new > 0) {
    absl::StrAppend(&line, ", answer ", tokens.completion, " of at most ", tokens.max_new);
  }
  if (origin.deadline != SystemTime::max()) {
    const std::chrono::duration<double> left = origin.deadline - calendar;
    absl::StrAppend(&line, "; deadline in ", Seconds(left.count()));
  }
  return line;
}

void AppendCalls(ServiceContext* context, SteadyTime now, std::vector<std::string>* lines) {
  const SystemTime calendar = std::chrono::system_clock::now();
  const size_t total =
      context->calls.List({}, kMaxCalls, [&](const RunningCall& call, const auto& subject) {
        lines->push_back(DescribeCall(call, subject, now, calendar));
      });
  if (total > kMaxCalls) lines->push_back(absl::StrCat("and ", total - kMaxCalls, " later calls"));
}

}  // namespace

std::vector<std::string> DescribeState(ServiceContext* context, const Edge* edge,
                                       SteadyTime started) {
  const SteadyTime now = context->clock();
  const Engine* const engine = context->engine();
  const EngineStats stats = engine == nullptr ? EngineStats() : engine->Stats();
  std::vector<std::string> lines = {absl::StrCat("folio-server ", kVersion, ": ", StateOf(*context),
                                                 ", up ", Seconds(started, now)),
                                    DescribeThreads(*context, stats, now)};
  if (engine != nullptr) {
    AppendEngine(*engine, stats, context->preparing.num_requests(), &lines);
  }
  lines.push_back(absl::StrCat("memory, bytes: ", context->memory.used(), " of ",
                               context->memory.limit(), " of requests; ", ResidentBytes(),
                               " resident"));
  if (edge != nullptr) {
    lines.push_back(absl::StrCat("connections: ", edge->num_connections(), " of ",
                                 edge->limits().max_connections));
  }
  AppendCalls(context, now, &lines);
  return lines;
}

}  // namespace folio::server
