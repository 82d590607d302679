#include <iterator>
#include <memory>
#include <ostream>
#include <string>

#include "absl/strings/str_join.h"
#include "client/cli/command.h"
#include "client/cli/json_lines.h"

namespace folio::cli {
namespace {

struct TokenizeFlags {
  std::string text;
  bool add_bos = false;
};

absl::Status Tokenize(const TokenizeFlags& flags, Invocation& invocation) {
  std::string text = flags.text;
  if (text == "-") text.assign(std::istreambuf_iterator<char>(invocation.console.in), {});
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  const auto ids = (*client)->Tokenize(text, flags.add_bos, {.cancel = invocation.cancel});
  if (!ids.ok()) return ids.status();
  if (invocation.json) {
    v1::TokenizeResponse response;
    response.mutable_token_ids()->Assign(ids->begin(), ids->end());
    WriteJsonLine(invocation.console.out, response);
    return absl::OkStatus();
  }
  invocation.console.out << absl::StrJoin(*ids, " ") << std::endl;
  invocation.console.err << ids->size() << " tokens" << std::endl;
  return absl::OkStatus();
}

}  // namespace

Command AddTokenizeCommand(CLI::App& root) {
  const auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* app = root.add_subcommand("tokenize", "Prints the token ids of a text");
  app->add_option("text", flags->text, "The text, or - to read it from stdin")->required();
  app->add_flag("--add-bos", flags->add_bos, "Put the beginning-of-sequence token in front");
  return {app, [flags](Invocation& invocation) { return Tokenize(*flags, invocation); }};
}

}  // namespace folio::cli
