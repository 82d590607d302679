#include <memory>
#include <ostream>
#include <string>

#include "client/cli/attention_flags.h"
#include "client/cli/command.h"
#include "client/cli/format.h"
#include "client/cli/json_lines.h"
#include "client/cli/sampling_flags.h"

namespace folio::cli {
namespace {

struct EstimateFlags {
  std::string document;
  std::string question;
  uint64_t document_tokens = 0;
  AttentionFlags attention;
  SamplingFlags sampling;
};

absl::StatusOr<v1::EstimateRequest> MakeRequest(const EstimateFlags& flags) {
  const auto attention = ParseAttention(flags.attention);
  if (!attention.ok()) return attention.status();
  v1::EstimateRequest request;
  if (flags.document_tokens > 0) {
    request.mutable_document()->set_token_count(flags.document_tokens);
    SetAttention(*attention, request.mutable_document());
    return request;
  }
  v1::GenerateRequest* generate = request.mutable_request();
  if (flags.document.empty()) {
    generate->set_prompt(flags.question);
  } else {
    generate->mutable_document()->set_document_id(flags.document);
    generate->mutable_document()->set_text(flags.question);
  }
  SetAttention(*attention, generate);
  ApplySamplingFlags(flags.sampling, generate);
  return request;
}

absl::Status RunEstimate(const EstimateFlags& flags, Invocation& invocation) {
  if (flags.question.empty() == (flags.document_tokens == 0)) {
    return absl::InvalidArgumentError("one of --question and --document-tokens is needed");
  }
  const auto request = MakeRequest(flags);
  if (!request.ok()) return request.status();
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto estimate = (*client)->Estimate(*request, {.cancel = invocation.cancel});
  if (!estimate.ok()) return estimate.status();
  if (invocation.json) {
    WriteJsonLine(invocation.console.out, *estimate);
  } else {
    invocation.console.out << FormatEstimate(*estimate) << std::flush;
  }
  return absl::OkStatus();
}

}  // namespace

Command AddEstimateCommand(CLI::App& root) {
  const auto flags = std::make_shared<EstimateFlags>();
  CLI::App* app = root.add_subcommand(
      "estimate", "Tells what a question or a document would take, and if it fits");
  app->add_option("--document", flags->document, "The id of a document that the question is about");
  app->add_option("--question", flags->question, "The question, or a prompt");
  app->add_option("--document-tokens", flags->document_tokens,
                  "Instead of a question: a document of so many tokens");
  AddAttentionFlags(*app, flags->attention);
  AddSamplingFlags(*app, flags->sampling);
  return {app, [flags](Invocation& invocation) { return RunEstimate(*flags, invocation); }};
}

}  // namespace folio::cli
