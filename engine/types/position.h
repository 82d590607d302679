#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace folio {

// A position scheme by name with its parameters by name, as a request or a checkpoint gives it
// (parameters may be missing) or as the registry resolved it (all present, in canonical order).
struct PositionSpec {
  std::string name;
  std::vector<std::pair<std::string, double>> params;

  bool operator==(const PositionSpec&) const = default;
  std::optional<double> Param(const std::string& key) const {
    for (const auto& [param, value] : params) {
      if (param == key) return value;
    }
    return std::nullopt;
  }
};

// What is known of a text when a scheme is resolved for it.
struct PositionRequest {
  // Prompt and answer; 0: not known (an upload).
  int64_t total_tokens = 0;
  // Part of the prompt is an uploaded document.
  bool has_document = false;
};

// How a model tells positions apart.
enum class PositionKind : uint8_t {
  kRope,
  kAlibi,       // a per-head slope on the distance (Press et al. 2022)
  kCocaSlack,   // collinear constrained attention (Zhu et al. 2023) as its authors' code has it
  kCocaStrict,  // with the query in norm form
};

// How the query of a CoCA model enters (docs/methods.md, section 11.3): as it is (slack), or with
// both members a, b of a rotated pair replaced by sqrt((a^2 + b^2) / 2) or by (a + b) / 2 (strict).
enum class CocaQuery : uint8_t { kNone, kRaw, kNorm, kMean };

// The rotary embedding of a checkpoint.
struct RopeModel {
  int head_dim = 0;
  // Elements of a head that are rotated.
  int rotary_dim = 0;
  double base = 10000.0;
  // Length of the pre-training, before any extension that the checkpoint's own scheme stands for.
  int original_length = 0;
  // max_position_embeddings.
  int trained_length = 0;
  // The scheme the checkpoint was made with; "plain" if its positions are not scaled.
  PositionSpec scheme{"plain", {}};
  // longrope: divisors of theta, [rotary_dim / 2] each; else empty.
  std::vector<double> short_factors;
  std::vector<double> long_factors;
};

}  // namespace folio
