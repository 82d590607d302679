#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/attribute_flags.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json_lines.h"
#include "client/duration.h"
#include "client/strategy.h"

namespace folio::cli {
namespace {

struct DocsFlags {
  std::string id;
  AttributeFlags attributes;  // to list, or to set
  std::vector<std::string> remove_labels;
  bool pin = false;
  bool unpin = false;
  CLI::App* show = nullptr;
  CLI::App* watch = nullptr;
  CLI::App* save = nullptr;
  CLI::App* update = nullptr;
  CLI::App* remove = nullptr;
};

std::string StateName(const v1::Document& document) {
  constexpr size_t kPrefixLength = sizeof("STATE_") - 1;
  const std::string name = v1::Document::State_Name(document.state());
  return name.size() > kPrefixLength ? name.substr(kPrefixLength) : "UNKNOWN";
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime(absl::RFC3339_sec, absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

absl::Status List(client::Client& client, const DocsFlags& flags, Invocation& invocation) {
  const auto documents =
      client.ListDocuments(LabelsOf(flags.attributes), {.cancel = invocation.cancel});
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
  out << "id         " << document->document_id() << "\nname       " << document->display_name()
      << "\nstate      " << StateName(*document) << "\nsize       "
      << FormatBytes(document->size_bytes()) << "\ntokens     " << document->token_count()
      << "\nprefilled  " << document->prefilled_tokens() << "\nstrategy   "
      << client::DescribeMethod(document->strategy())
      << (document->adapter().empty() ? "" : "\nadapter    ") << document->adapter()
      << "\nKV         " << FormatBytes(document->device_kv_bytes()) << "\nsummaries  "
      << FormatBytes(document->summary_bytes()) << "\non disk    "
      << (document->saved() ? FormatBytes(document->stored_bytes()) : "no") << "\ncreated    "
      << TimeText(document->create_time()) << "\n";
  for (const auto& [key, value] :
       std::map<std::string, std::string>(document->labels().begin(), document->labels().end())) {
    out << "label      " << key << "=" << value << "\n";
  }
  if (document->has_ttl()) {
    out << "TTL        " << absl::FormatDuration(client::FromProto(document->ttl())) << "\n";
  }
  if (document->has_expire_time()) {
    out << "expires    " << TimeText(document->expire_time()) << "\n";
  }
  if (document->pinned()) out << "pinned     yes\n";
  if (!document->error().empty()) out << "error      " << document->error() << "\n";
  if (!document->save_error().empty()) out << "not saved  " << document->save_error() << "\n";
  return absl::OkStatus();
}

absl::StatusOr<v1::Document> Update(client::Client& client, const DocsFlags& flags,
                                    const client::CallOptions& options) {
  v1::UpdateDocumentRequest request;
  request.set_document_id(flags.id);
  if (flags.attributes.ttl) *request.mutable_ttl() = client::ToProto(TtlOf(flags.attributes));
  if (flags.pin || flags.unpin) request.set_pinned(flags.pin);
  const auto labels = LabelsOf(flags.attributes);
  request.mutable_set_labels()->insert(labels.begin(), labels.end());
  for (const std::string& key : flags.remove_labels) request.add_remove_labels(key);
  return client.UpdateDocument(request, options);
}

// One line for each change.
absl::StatusOr<v1::Document> Watch(client::Client& client, const DocsFlags& flags,
                                   Invocation& invocation) {
  v1::WatchDocumentRequest request;
  request.set_document_id(flags.id);
  std::ostream& out = invocation.console.out;
  return client.WatchDocument(
      request, {.cancel = invocation.cancel}, [&](const v1::Document& document) {
        if (invocation.json) return WriteJsonLine(out, document);
        out << absl::StrFormat("%-10s  %d of %d tokens prefilled", StateName(document),
                               document.prefilled_tokens(), document.token_count())
            << std::endl;
      });
}

absl::Status Docs(const DocsFlags& flags, Invocation& invocation) {
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const client::CallOptions options{.cancel = invocation.cancel};
  if (flags.show->parsed()) return Show((*client)->GetDocument(flags.id, options), invocation);
  if (flags.watch->parsed()) return Watch(**client, flags, invocation).status();
  if (flags.update->parsed()) return Show(Update(**client, flags, options), invocation);
  if (flags.save->parsed()) return Show((*client)->SaveDocument(flags.id, options), invocation);
  if (flags.remove->parsed()) return (*client)->DeleteDocument(flags.id, options);
  return List(**client, flags, invocation);
}

void AddUpdateCommand(CLI::App& app, DocsFlags* flags) {
  flags->update = app.add_subcommand("update", "Changes TTL, pin or labels of one document");
  flags->update->add_option("id", flags->id, "Document id")->required();
  AddLabelFlag(*flags->update, flags->attributes, "Set; may be given several times");
  flags->update
      ->add_option("--remove-label", flags->remove_labels, "By key; may be given several times")
      ->type_name("KEY")
      ->allow_extra_args(false);
  AddTtlFlag(*flags->update, flags->attributes);
  CLI::Option* const pin = flags->update->add_flag(
      "--pin", flags->pin, "It does not expire, and its cache stays on disk");
  flags->update->add_flag("--unpin", flags->unpin, "It may")->excludes(pin);
}

}  // namespace

Command AddDocsCommand(CLI::App& root) {
  const auto flags = std::make_shared<DocsFlags>();
  CLI::App* app = root.add_subcommand("docs", "Lists the documents of the server");
  app->require_subcommand(0, 1);
  CLI::App* list = app->add_subcommand("list", "Lists all documents (the default)");
  AddLabelFlag(*list, flags->attributes, "Only those with it; may be given several times");
  flags->show = app->add_subcommand("show", "Shows one document");
  flags->show->add_option("id", flags->id, "Document id")->required();
  flags->watch = app->add_subcommand("watch", "Tells of one document until it is ready");
  flags->watch->add_option("id", flags->id, "Document id")->required();
  AddUpdateCommand(*app, flags.get());
  flags->save = app->add_subcommand("save", "Waits until one document is on disk");
  flags->save->add_option("id", flags->id, "Document id")->required();
  flags->remove = app->add_subcommand("delete", "Frees one document");
  flags->remove->add_option("id", flags->id, "Document id")->required();
  return {app, [flags](Invocation& invocation) { return Docs(*flags, invocation); }};
}

}  // namespace folio::cli
