#include "loadtest/load_test.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/backoff.h"
#include "client/client.h"
#include "client/status.h"
#include "loadtest/load_runner.h"
#include "loadtest/prompt_builder.h"

namespace folio::loadtest {
namespace {

constexpr absl::Duration kIdleLimit = absl::Seconds(10);
constexpr absl::Duration kIdlePollInterval = absl::Milliseconds(20);

bool IsIdle(const v1::ServerInfo& info) {
  return info.num_requests_running() == 0 && info.num_requests_waiting() == 0;
}

// The longest prompt, as the dispatcher will send it, must be accepted inline.
absl::Status CheckPromptSize(const PromptBuilder& prompts, const Options& options,
                             const v1::ServerInfo& info) {
  const uint64_t limit = info.limits().max_inline_prompt_bytes();
  for (const auto& choice : options.prompt_tokens) {
    const size_t num_bytes = prompts.BuildPrompt(choice.first, options.seed).size();
    if (limit > 0 && num_bytes > limit) {
      return absl::InvalidArgumentError(absl::StrCat("a prompt of ", choice.first, " tokens has ",
                                                     num_bytes, " bytes, the server takes at most ",
                                                     limit, " in one request"));
    }
  }
  return absl::OkStatus();
}

// Cancelled and finished requests must leave the server.
void AwaitIdle(client::Client& client, RunResult* result) {
  const absl::Time begin = absl::Now();
  while (absl::Now() - begin < kIdleLimit) {
    const auto info = client.GetServerInfo();
    if (!info.ok()) {
      result->violations.push_back(
          absl::StrCat("no answer after the run: ", client::FormatError(info.status())));
      return;
    }
    if (IsIdle(*info)) {
      result->server_idle_after_ms = absl::ToDoubleMilliseconds(absl::Now() - begin);
      return;
    }
    client::WaitFor(kIdlePollInterval, {});
  }
  result->violations.push_back(absl::StrCat("the server still has requests ",
                                            absl::FormatDuration(kIdleLimit), " after the run"));
}

}  // namespace

absl::StatusOr<RunResult> RunLoadTest(const std::vector<std::shared_ptr<grpc::Channel>>& channels,
                                      const Options& options) {
  RunResult result;
  result.date = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
  client::Client client(channels.front());
  auto info = client.GetServerInfo();
  if (!info.ok()) return info.status();
  result.server = *std::move(info);
  const absl::StatusOr<PromptBuilder> prompts = PromptBuilder::Create(client);
  if (!prompts.ok()) return prompts.status();
  const absl::Status fits = CheckPromptSize(*prompts, options, result.server);
  if (!fits.ok()) return fits;

  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs;
  stubs.reserve(channels.size());
  for (const auto& channel : channels) stubs.push_back(v1::Inference::NewStub(channel));
  result.records = LoadRunner(stubs, *prompts, options).Run();
  if (IsIdle(result.server)) AwaitIdle(client, &result);
  if (options.verify_greedy) {
    result.greedy = VerifyGreedy(client, *prompts, options, result.records);
  }
  return result;
}

}  // namespace folio::loadtest
