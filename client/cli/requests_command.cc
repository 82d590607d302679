// What operators see and do: `folio requests` and `folio cancel`.
#include <memory>
#include <ostream>
#include <string>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/json_lines.h"

namespace folio::cli {
namespace {

constexpr uint32_t kDefaultRequests = 100;

std::string PhaseName(const v1::RequestInfo& request) {
  constexpr size_t kPrefixLength = sizeof("PHASE_") - 1;
  const std::string name = v1::RequestInfo::Phase_Name(request.phase());
  return name.size() > kPrefixLength ? name.substr(kPrefixLength) : "UNKNOWN";
}

void PrintRequests(const v1::ListRequestsResponse& list, std::ostream& out) {
  out << absl::StrFormat("%-24s  %-14s  %-7s  %8s  %8s  %8s  %-12s  %-15s  %s\n", "ID", "METHOD",
                         "PHASE", "AGE", "PROMPT", "ANSWER", "STRATEGY", "CLIENT", "DOCUMENT");
  for (const v1::RequestInfo& request : list.requests()) {
    out << absl::StrFormat(
        "%-24s  %-14s  %-7s  %7.1fs  %8d  %8d  %-12s  %-15s  %s\n", request.request_id(),
        request.method(), PhaseName(request), request.age_seconds(), request.prompt_tokens(),
        request.completion_tokens(), request.strategy(), request.client(), request.document_id());
  }
  const auto listed = static_cast<uint32_t>(list.requests_size());
  if (list.total() > listed) out << list.total() - listed << " more\n";
}

absl::Status Requests(uint32_t max, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto list = (*client)->ListRequests(max, {.cancel = invocation.cancel});
  if (!list.ok()) return list.status();
  std::ostream& out = invocation.console.out;
  if (!invocation.json) {
    PrintRequests(*list, out);
    return absl::OkStatus();
  }
  for (const v1::RequestInfo& request : list->requests()) WriteJsonLine(out, request);
  return absl::OkStatus();
}

absl::Status Cancel(const std::string& id, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto cancelled = (*client)->CancelRequest(id, {.cancel = invocation.cancel});
  if (!cancelled.ok()) return cancelled.status();
  if (!invocation.json) {
    invocation.console.out << *cancelled << " cancelled\n";
    return absl::OkStatus();
  }
  v1::CancelRequestResponse response;
  response.set_num_cancelled(*cancelled);
  WriteJsonLine(invocation.console.out, response);
  return absl::OkStatus();
}

}  // namespace

Command AddRequestsCommand(CLI::App& root) {
  const auto max = std::make_shared<uint32_t>(kDefaultRequests);
  CLI::App* app = root.add_subcommand("requests", "Lists calls that run, the oldest first");
  app->add_option("--max", *max, "Most calls to list")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  return {app, [max](Invocation& invocation) { return Requests(*max, invocation); }};
}

Command AddCancelCommand(CLI::App& root) {
  const auto id = std::make_shared<std::string>();
  CLI::App* app = root.add_subcommand("cancel", "Ends a call, as its client would");
  app->add_option("id", *id, "Its id; folio requests lists them")->required();
  return {app, [id](Invocation& invocation) { return Cancel(*id, invocation); }};
}

}  // namespace folio::cli
