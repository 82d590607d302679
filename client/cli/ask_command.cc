#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/attention_flags.h"
#include "client/cli/command.h"
#include "client/cli/content_id.h"
#include "client/cli/exit_code.h"
#include "client/cli/format.h"
#include "client/cli/format_flags.h"
#include "client/cli/json_lines.h"
#include "client/cli/progress_line.h"
#include "client/cli/sampling_flags.h"
#include "client/cli/text_input.h"
#include "client/cli/upload_progress.h"
#include "client/document_id.h"

namespace folio::cli {
namespace {

struct AskFlags {
  std::string document;
  std::vector<std::string> questions;
  uint32_t answers = 1;
  AttentionFlags attention;
  FormatFlags format;
  SamplingFlags sampling;
  std::optional<double> timeout_seconds;
  uint32_t evidence_spans = 0;
};

// Shows the events of one answer: text on stdout, everything else on stderr.
class AnswerView {
 public:
  explicit AnswerView(Invocation& invocation)
      : invocation_(invocation), progress_(invocation.console) {}

  void OnEvent(const v1::GenerateEvent& event) {
    if (invocation_.json) {
      WriteJsonLine(invocation_.console.out, event);
    } else if (event.has_queued()) {
      progress_.Note("waiting, requests ahead: " + std::to_string(event.queued().position()));
    } else if (event.has_prefill()) {
      progress_.Update({.label = "prefill",
                        .done = event.prefill().processed_tokens(),
                        .total = event.prefill().total_tokens(),
                        .skipped = event.prefill().cached_tokens()});
    } else if (event.has_delta()) {
      WriteText(event.delta().text());
    } else if (event.has_evidence()) {
      EndLine();
      invocation_.console.err << FormatEvidence(event.evidence()) << std::flush;
    } else if (event.has_completed()) {
      EndLine();
      invocation_.console.err << FormatSummary(event.completed()) << std::endl;
    }
  }

  // Leaves the cursor at the beginning of a line, also after an error.
  void EndLine() {
    progress_.Clear();
    if (in_line_) invocation_.console.out << std::endl;
    in_line_ = false;
  }

 private:
  void WriteText(const std::string& text) {
    if (text.empty()) return;
    progress_.Clear();
    invocation_.console.out << text << std::flush;
    in_line_ = text.back() != '\n';
  }

  Invocation& invocation_;
  ProgressLine progress_;
  bool in_line_ = false;
};

// Whether --document names a text: a file that is there, or what no document can be called.
bool IsText(const std::string& document) {
  std::error_code ignored;
  return document == "-" || std::filesystem::exists(document, ignored) ||
         !client::CanBeDocumentId(document);
}

// Uploads the text unless the server has it. Returns the id of the document.
absl::StatusOr<std::string> UploadText(const client::DocumentSource& source, const AskFlags& flags,
                                       const Attention& attention, client::Client& client,
                                       Invocation& invocation) {
  Attention uploaded = attention;
  // Truncation reads the text anew for each question; no cache of it is of use.
  if (uploaded.strategy && uploaded.strategy->has_truncation()) uploaded.strategy.reset();
  const absl::StatusOr<ContentId> id = ContentIdOf(source, uploaded, flags.format);
  if (!id.ok()) return AsFileError(id.status());
  client::UploadOptions options;
  options.document_id = id->document_id;
  options.upload_token = id->upload_token;
  options.display_name =
      flags.document == "-" ? "stdin" : std::filesystem::path(flags.document).filename().string();
  options.strategy = uploaded.strategy;
  options.position = uploaded.position;
  options.adapter = uploaded.adapter.value_or("");
  options.format = flags.format.format;
  options.system = flags.format.system;
  options.reuse_existing = true;
  options.cancel = invocation.cancel;
  const auto document = UploadWithProgress(client, invocation, source, options);
  if (!document.ok()) return document.status();
  return document->document_id();
}

bool AsksMany(const AskFlags& flags) { return flags.questions.size() > 1 || flags.answers > 1; }

// Of --question.
std::string TextOf(const std::string& question, Invocation& invocation) {
  if (question != "-") return question;
  return std::string(std::istreambuf_iterator<char>(invocation.console.in), {});
}

v1::GenerateRequest MakeRequest(const AskFlags& flags, const Attention& attention,
                                Invocation& invocation) {
  v1::GenerateRequest request;
  const std::string question = TextOf(flags.questions.front(), invocation);
  if (flags.document.empty()) {
    if (!AsksMany(flags)) request.set_prompt(question);
    if (flags.format.system.has_value()) request.set_system(*flags.format.system);
  } else {
    request.mutable_document();
    if (!AsksMany(flags)) request.mutable_document()->set_text(question);
  }
  request.set_format(flags.format.format);
  SetAttention(attention, &request);
  ApplySamplingFlags(flags.sampling, &request);
  request.mutable_response()->set_evidence_spans(flags.evidence_spans);
  return request;
}

// All questions in one call; each answer is printed when it is complete.
absl::Status AskAll(const AskFlags& flags, const client::CallOptions& options,
                    client::Client& client, const v1::GenerateRequest& shared,
                    Invocation& invocation) {
  v1::AskManyRequest request;
  *request.mutable_shared() = shared;
  for (const std::string& question : flags.questions) request.add_questions()->set_text(question);
  request.set_answers_per_question(flags.answers);
  std::map<std::pair<uint32_t, uint32_t>, std::string> texts;
  std::ostream& out = invocation.console.out;
  return client.AskMany(request, options, [&](const v1::AskManyEvent& event) {
    if (invocation.json) return WriteJsonLine(out, event);
    const std::pair<uint32_t, uint32_t> place = {event.question(), event.answer()};
    texts[place] += event.event().delta().text();
    if (!event.has_failed() && !event.event().has_completed()) return;
    out << flags.questions[event.question()] << "\n"
        << (event.has_failed() ? "(failed: " + event.failed().message() + ")" : texts[place])
        << "\n"
        << std::endl;
  });
}

absl::Status AskOnce(const AskFlags& flags, client::Client& client,
                     const v1::GenerateRequest& request, Invocation& invocation) {
  client::CallOptions options{.cancel = invocation.cancel};
  if (flags.timeout_seconds) options.timeout = absl::Seconds(*flags.timeout_seconds);
  if (AsksMany(flags)) return AskAll(flags, options, client, request, invocation);
  AnswerView view(invocation);
  absl::Status status = client.Generate(
      request, options, [&view](const v1::GenerateEvent& event) { view.OnEvent(event); });
  view.EndLine();
  return status;
}

// Uploads the text and asks; both again, once, if the server has lost the text in between: it may
// have restarted, or somebody deleted the document.
absl::Status AskText(const AskFlags& flags, const Attention& attention, client::Client& client,
                     const client::DocumentSource& source, v1::GenerateRequest request,
                     Invocation& invocation) {
  absl::Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto id = UploadText(source, flags, attention, client, invocation);
    if (!id.ok()) return id.status();
    request.mutable_document()->set_document_id(*id);
    status = AskOnce(flags, client, request, invocation);
    if (!absl::IsNotFound(status)) break;
  }
  return status;
}

absl::Status Ask(const AskFlags& flags, Invocation& invocation) {
  const auto attention = ParseAttention(flags.attention);
  if (!attention.ok()) return attention.status();
  const auto of_stdin = std::count(flags.questions.begin(), flags.questions.end(), "-");
  if (flags.document == "-" && of_stdin > 0) {
    return absl::InvalidArgumentError("--document and --question cannot both be read from stdin");
  }
  if (of_stdin > 0 && AsksMany(flags)) {
    return absl::InvalidArgumentError("of several questions none can be read from stdin");
  }
  v1::GenerateRequest request = MakeRequest(flags, *attention, invocation);
  std::unique_ptr<client::DocumentSource> source;
  if (request.has_document() && IsText(flags.document)) {
    auto opened = OpenText(flags.document, invocation.console);
    if (!opened.ok()) return opened.status();
    source = *std::move(opened);
  }
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  if (source != nullptr) {
    return AskText(flags, *attention, **client, *source, std::move(request), invocation);
  }
  if (request.has_document()) {
    if (flags.format.system.has_value()) request.set_system(*flags.format.system);
    request.mutable_document()->set_document_id(flags.document);
  }
  return AskOnce(flags, **client, request, invocation);
}

}  // namespace

Command AddAskCommand(CLI::App& root) {
  const auto flags = std::make_shared<AskFlags>();
  CLI::App* app = root.add_subcommand("ask", "Asks a question, over a document or alone");
  app->add_option(
      "--document", flags->document,
      "A file or - for stdin, uploaded unless the server has it; or the id of a document");
  app->add_option("--question", flags->questions,
                  "The question, or - to read it from stdin; several are asked in one call")
      ->required()
      ->allow_extra_args(false);
  app->add_option("--answers", flags->answers, "Answers to each question")
      ->check(CLI::Range(1, 128));
  app->add_option("--timeout", flags->timeout_seconds, "Seconds for the answer")
      ->check(CLI::PositiveNumber);
  app->add_option("--evidence", flags->evidence_spans,
                  "Quote so many parts of the text that the heads chose most (long_heads)")
      ->check(CLI::Range(0, 64));
  AddFormatFlags(*app, flags->format);
  AddAttentionFlags(*app, flags->attention);
  AddSamplingFlags(*app, flags->sampling);
  return {app, [flags](Invocation& invocation) { return Ask(*flags, invocation); }};
}

}  // namespace folio::cli
