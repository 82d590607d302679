// How a question and its document become a conversation.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "folio/v1/common.pb.h"

namespace folio::cli {

struct FormatFlags {
  v1::PromptFormat format = v1::PROMPT_FORMAT_UNSPECIFIED;
  std::optional<std::string> system;
};

// --format and --system.
void AddFormatFlags(CLI::App& app, FormatFlags& flags);

}  // namespace folio::cli
