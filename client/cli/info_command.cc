#include <ostream>
#include <string>

#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json_lines.h"
#include "client/strategy.h"

namespace folio::cli {
namespace {

void PrintModel(const v1::ModelInfo& model, std::ostream& out) {
  out << "model       " << model.name() << " (" << model.architecture() << ", "
      << model.num_parameters() << " parameters, " << model.weight_dtype() << ")\n";
  if (model.synthetic()) out << "            random weights: answers mean nothing\n";
  out << "            trained length " << model.max_position_embeddings() << " tokens, "
      << model.num_layers() << " layers, " << model.num_heads() << " heads, "
      << model.num_kv_heads() << " KV heads of " << model.head_dim() << ", vocabulary "
      << model.vocab_size() << "\n";
}

void PrintInfo(const v1::ServerInfo& info, std::ostream& out) {
  const v1::ServerLimits& limits = info.limits();
  out << "version     " << info.version() << "\n";
  PrintModel(info.model(), out);
  out << "backend     " << info.backend() << ", " << info.num_threads() << " threads, pages of "
      << info.page_tokens() << " tokens, KV " << info.kv_dtype() << "\n"
      << "strategies  " << absl::StrJoin(info.strategies(), ", ") << "; default "
      << client::DescribeMethod(info.default_strategy()) << "\n"
      << "positions   " << client::DescribeMethod(info.default_position()) << "\n";
  out << "chat        " << (info.chat_format().empty() ? "none" : info.chat_format())
      << (info.chat_note().empty() ? "" : ": ") << info.chat_note() << "\n";
  for (const v1::AdapterInfo& adapter : info.adapters()) {
    out << "adapter     " << adapter.name() << ": rank " << adapter.rank() << ", "
        << (adapter.target_modules().empty() ? "all projections"
                                             : absl::StrJoin(adapter.target_modules(), ", "))
        << "; " << FormatBytes(adapter.memory_bytes()) << "\n";
  }
  for (const v1::KvUsage& kv : info.kv()) {
    out << "KV          " << kv.tier() << ": " << FormatBytes(kv.used_bytes()) << " of "
        << FormatBytes(kv.capacity_bytes()) << "\n";
  }
  out << "load        " << info.num_requests_running() << " running, "
      << info.num_requests_waiting() << " waiting, " << info.num_documents() << " documents\n"
      << "limits      prompt " << FormatBytes(limits.max_inline_prompt_bytes()) << ", document "
      << FormatBytes(limits.max_document_bytes()) << ", message "
      << FormatBytes(limits.max_receive_message_bytes()) << "\n"
      << "            context " << limits.max_context_tokens() << " tokens, answer "
      << limits.max_new_tokens() << " tokens\n"
      << "            " << limits.max_running_requests() << " running, "
      << limits.max_queued_requests() << " waiting, " << limits.max_documents() << " documents\n";
}

absl::Status Info(Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto info = (*client)->GetServerInfo({.cancel = invocation.cancel});
  if (!info.ok()) return info.status();
  if (invocation.json) {
    WriteJsonLine(invocation.console.out, *info);
  } else {
    PrintInfo(*info, invocation.console.out);
  }
  return absl::OkStatus();
}

}  // namespace

Command AddInfoCommand(CLI::App& root) {
  CLI::App* app = root.add_subcommand("info", "Shows the model, the limits and the load");
  return {app, [](Invocation& invocation) { return Info(invocation); }};
}

}  // namespace folio::cli
