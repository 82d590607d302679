#include "client/cli/format_flags.h"

#include <map>

namespace folio::cli {

void AddFormatFlags(CLI::App& app, FormatFlags& flags) {
  static const std::map<std::string, v1::PromptFormat> names = {
      {"auto", v1::PROMPT_FORMAT_UNSPECIFIED},
      {"chat", v1::PROMPT_FORMAT_CHAT},
      {"raw", v1::PROMPT_FORMAT_RAW}};
  app.add_option("--format", flags.format,
                 "auto: as a conversation where the model has a chat format; chat; raw: the texts "
                 "as they are")
      ->transform(CLI::Transformer(names));
  app.add_option("--system", flags.system,
                 "System text in front of the conversation or document (default: the server's)");
}

}  // namespace folio::cli
