// Attention strategies and position schemes on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "folio/v1/common.pb.h"

namespace folio::cli {

// Empty: the server's default.
struct AttentionFlags {
  std::string strategy;
  std::string position;
  std::optional<std::string> adapter = {};
};

// --strategy, --position and --adapter. `flags` must outlive the parsing of `app`.
void AddAttentionFlags(CLI::App& app, AttentionFlags& flags);

struct Attention {
  std::optional<v1::AttentionStrategy> strategy;
  std::optional<v1::PositionScheme> position;
  std::optional<std::string> adapter = {};
};

// Errors: INVALID_ARGUMENT for an unknown name, parameter or value.
absl::StatusOr<Attention> ParseAttention(const AttentionFlags& flags);

// Copies what is set into a request or a header.
template <typename Message>
void SetAttention(const Attention& attention, Message* message) {
  if (attention.strategy) *message->mutable_strategy() = *attention.strategy;
  if (attention.position) *message->mutable_position() = *attention.position;
  if (attention.adapter) message->set_adapter(*attention.adapter);
}

}  // namespace folio::cli
