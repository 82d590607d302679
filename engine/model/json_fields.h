#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace folio {

// Typed reads of fields of a JSON object. Null counts as absent, as in the Hugging Face classes.
// Errors: INVALID_ARGUMENT naming the key, its value and what is expected.

using Json = nlohmann::json;

// The value as it stands in the file, cut for messages.
std::string Shown(const Json& value);

// nullptr if absent.
const Json* Find(const Json& object, const char* key);

absl::Status Bad(const char* key, const Json& value, const std::string& expected);

// Both bounds are inclusive.
struct IntRange {
  int low;
  int high;
};
absl::StatusOr<int> ReadInt(const Json& value, const char* key, IntRange range);
absl::StatusOr<int> RequiredInt(const Json& json, const char* key, IntRange range);
absl::StatusOr<int> OptionalInt(const Json& json, const char* key, IntRange range, int otherwise);

absl::StatusOr<bool> OptionalBool(const Json& json, const char* key, bool otherwise = false);
absl::StatusOr<std::string> OptionalString(const Json& json, const char* key,
                                           const std::string& otherwise);

// Above low, at most high.
struct DoubleRange {
  double low;
  double high;
};
absl::StatusOr<double> ReadDouble(const Json& value, const char* key, DoubleRange range);
absl::StatusOr<double> OptionalDouble(const Json& json, const char* key, DoubleRange range,
                                      double otherwise);

// One token id or a list of at most 64, each in [0, vocab_size). If the key is absent, `otherwise`
// where the vocabulary has it; null: none.
absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& json, const char* key,
                                                  int32_t otherwise, int vocab_size);

}  // namespace folio
