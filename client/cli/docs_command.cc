#include <memory>
#include <ostream>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json_lines.h"
#include "client/strategy.h"

namespace folio::cli {
namespace {

struct DocsFlags {
  std::string id;
  CLI::App* show = nullptr;
  CLI::App* save = nullptr;
  CLI::App* remove = nullptr;
};

std::string StateName(const v1::Document& document) {
  constexpr size_t kPrefixLength = sizeof("STATE_") - 1;
  const std::string name = v1::Document::State_Name(document.state());
  return name.size() > kPrefixLength ? name.substr(kPrefixLength) : "UNKNOWN";
}

absl::Status List(client::Client& client, Invocation& invocation) {
  const auto documents = client.ListDocuments({.cancel = invocation.cancel});
  if (!documents.ok()) return documents.status();
  std::ostream& out = invocation.console.out;
  if (invocation.json) {
    for (const v1::Document& document : *documents) WriteJsonLine(out, document);
    return absl::OkStatus();
  }
  out << absl::StrFormat("%-44s  %-10s  %10s  %10s  %10s  %-12s  %s\n", "ID", "STATE", "SIZE",
                         "TOKENS", "KV", "STRATEGY", "NAME");
  for (const v1::Document& document : *documents) {
    out << absl::StrFormat("%-44s  %-10s  %10s  %10d  %10s  %-12s  %s\n", document.document_id(),
                           StateName(document), FormatBytes(document.size_bytes()),
                           document.token_count(), FormatBytes(document.device_kv_bytes()),
                           client::MethodName(document.strategy()), document.display_name());
  }
  return absl::OkStatus();
}

absl::Status Show(const absl::StatusOr<v1::Document>& document, Invocation& invocation) {
  if (!document.ok()) return document.status();
  std::ostream& out = invocation.console.out;
  if (invocation.json) {
    WriteJsonLine(out, *document);
    return absl::OkStatus();
  }
  const absl::Time created = absl::FromUnixSeconds(document->create_time().seconds());
  out << "id         " << document->document_id() << "\nname       " << document->display_name()
      << "\nstate      " << StateName(*document) << "\nsize       "
      << FormatBytes(document->size_bytes()) << "\ntokens     " << document->token_count()
      << "\nprefilled  " << document->prefilled_tokens() << "\nstrategy   "
      << client::DescribeMethod(document->strategy()) << "\nKV         "
      << FormatBytes(document->device_kv_bytes()) << "\nsummaries  "
      << FormatBytes(document->summary_bytes()) << "\non disk    "
      << (document->saved() ? FormatBytes(document->stored_bytes()) : "no") << "\ncreated    "
      << absl::FormatTime(absl::RFC3339_sec, created, absl::UTCTimeZone()) << "\n";
  if (!document->error().empty()) out << "error      " << document->error() << "\n";
  if (!document->save_error().empty()) out << "not saved  " << document->save_error() << "\n";
  return absl::OkStatus();
}

absl::Status Docs(const DocsFlags& flags, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const client::CallOptions options{.cancel = invocation.cancel};
  if (flags.show->parsed()) return Show((*client)->GetDocument(flags.id, options), invocation);
  if (flags.save->parsed()) return Show((*client)->SaveDocument(flags.id, options), invocation);
  if (flags.remove->parsed()) return (*client)->DeleteDocument(flags.id, options);
  return List(**client, invocation);
}

}  // namespace

Command AddDocsCommand(CLI::App& root) {
  const auto flags = std::make_shared<DocsFlags>();
  CLI::App* app = root.add_subcommand("docs", "Lists the documents of the server");
  app->require_subcommand(0, 1);
  app->add_subcommand("list", "Lists all documents (the default)");
  flags->show = app->add_subcommand("show", "Shows one document");
  flags->show->add_option("id", flags->id, "Document id")->required();
  flags->save = app->add_subcommand("save", "Waits until one document is on disk");
  flags->save->add_option("id", flags->id, "Document id")->required();
  flags->remove = app->add_subcommand("delete", "Frees one document");
  flags->remove->add_option("id", flags->id, "Document id")->required();
  return {app, [flags](Invocation& invocation) { return Docs(*flags, invocation); }};
}

}  // namespace folio::cli
