#include "client/cli/attention_flags.h"

#include "client/strategy.h"

namespace folio::cli {

void AddAttentionFlags(CLI::App& app, AttentionFlags& flags) {
  app.add_option(
      "--strategy", flags.strategy,
      "Which tokens are seen: NAME or NAME:KEY=VALUE,... as `folio strategies` lists them "
      "(default: the server's)");
  app.add_option("--position", flags.position,
                 "How rotary positions are scaled, likewise (default: the checkpoint's)");
  app.add_option("--adapter", flags.adapter,
                 "LoRA adapter of the server, as `folio info` lists them; '': none (default: the "
                 "document's, or none)");
}

absl::StatusOr<Attention> ParseAttention(const AttentionFlags& flags) {
  Attention attention;
  attention.adapter = flags.adapter;
  if (!flags.strategy.empty()) {
    auto strategy = client::ParseStrategy(flags.strategy);
    if (!strategy.ok()) return strategy.status();
    attention.strategy = *std::move(strategy);
  }
  if (!flags.position.empty()) {
    auto position = client::ParsePosition(flags.position);
    if (!position.ok()) return position.status();
    attention.position = *std::move(position);
  }
  return attention;
}

}  // namespace folio::cli
