#include <filesystem>
#include <memory>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/cli/attention_flags.h"
#include "client/cli/attribute_flags.h"
#include "client/cli/command.h"
#include "client/cli/content_id.h"
#include "client/cli/exit_code.h"
#include "client/cli/format.h"
#include "client/cli/format_flags.h"
#include "client/cli/text_input.h"
#include "client/cli/upload_progress.h"

namespace folio::cli {
namespace {

struct UploadFlags {
  std::string file;
  std::string id;
  std::string name;
  AttentionFlags attention;
  FormatFlags format;
  AttributeFlags attributes;
  bool pin = false;
  bool detach = false;
};

std::string NameOf(const std::string& file) {
  return file == "-" ? "stdin" : std::filesystem::path(file).filename().string();
}

absl::Status Upload(const UploadFlags& flags, Invocation& invocation) {
  const auto attention = ParseAttention(flags.attention);
  if (!attention.ok()) return attention.status();
  const auto source = OpenText(flags.file, invocation.console);
  if (!source.ok()) return source.status();
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  client::UploadOptions options;
  if (!flags.id.empty()) {
    const absl::StatusOr<ContentId> content = ContentIdOf(**source, *attention, flags.format);
    if (!content.ok()) return AsFileError(content.status());
    options.document_id = flags.id;
    options.upload_token = content->upload_token;
  }
  options.display_name = flags.name.empty() ? NameOf(flags.file) : flags.name;
  options.strategy = attention->strategy;
  options.position = attention->position;
  options.adapter = attention->adapter.value_or("");
  options.format = flags.format.format;
  options.system = flags.format.system;
  options.ttl = TtlOf(flags.attributes);
  options.labels = LabelsOf(flags.attributes);
  options.pinned = flags.pin;
  options.detach = flags.detach;
  options.cancel = invocation.cancel;
  const absl::StatusOr<v1::Document> document =
      UploadWithProgress(**client, invocation, **source, options);
  if (!document.ok()) return document.status();
  if (invocation.json) return absl::OkStatus();
  invocation.console.out << document->document_id() << std::endl;
  invocation.console.err << FormatBytes(document->size_bytes()) << ", " << document->token_count()
                         << " tokens, " << document->prefilled_tokens() << " prefilled; KV "
                         << FormatBytes(document->device_kv_bytes()) << std::endl;
  return absl::OkStatus();
}

}  // namespace

Command AddUploadCommand(CLI::App& root) {
  const auto flags = std::make_shared<UploadFlags>();
  CLI::App* app = root.add_subcommand(
      "upload", "Uploads a document and prints its id; an interrupted upload with --id is resumed");
  app->add_option("file", flags->file, "UTF-8 text file or pipe, or - for stdin")->required();
  app->add_option("--id", flags->id, "Document id (default: a random one)");
  app->add_option("--name", flags->name, "Name for people (default: the file's)");
  AddLabelFlag(*app, flags->attributes, "Kept with it; may be given several times");
  AddTtlFlag(*app, flags->attributes);
  app->add_flag("--pin", flags->pin, "It does not expire, and its cache stays on disk");
  app->add_flag("--detach", flags->detach, "Return when the text is there; the prefill goes on");
  AddFormatFlags(*app, flags->format);
  AddAttentionFlags(*app, flags->attention);
  return {app, [flags](Invocation& invocation) { return Upload(*flags, invocation); }};
}

}  // namespace folio::cli
