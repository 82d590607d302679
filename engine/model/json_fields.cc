#include "engine/model/json_fields.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

constexpr size_t kMaxTokenIds = 64;

}  // namespace

std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 100) text = absl::StrCat(text.substr(0, 100), "...");
  return text;
}

const Json* Find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::Status Bad(const char* key, const Json& value, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", key, "\" is ", Shown(value), ", expected ", expected));
}

absl::StatusOr<int> ReadInt(const Json& value, const char* key, IntRange range) {
  const std::string expected = absl::StrCat("an integer from ", range.low, " to ", range.high);
  if (!value.is_number_integer()) return Bad(key, value, expected);
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT32_MAX) {
    return Bad(key, value, expected);
  }
  const auto number = value.get<int64_t>();
  if (number < range.low || number > range.high) return Bad(key, value, expected);
  return static_cast<int>(number);
}

absl::StatusOr<int> RequiredInt(const Json& json, const char* key, IntRange range) {
  const Json* value = Find(json, key);
  if (value == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing"));
  }
  return ReadInt(*value, key, range);
}

absl::StatusOr<int> OptionalInt(const Json& json, const char* key, IntRange range, int otherwise) {
  const Json* value = Find(json, key);
  if (value == nullptr) return otherwise;
  return ReadInt(*value, key, range);
}

absl::StatusOr<bool> OptionalBool(const Json& json, const char* key, bool otherwise) {
  const Json* value = Find(json, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return Bad(key, *value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> OptionalString(const Json& json, const char* key,
                                           const std::string& otherwise) {
  const Json* value = Find(json, key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) return Bad(key, *value, "a string");
  return value->get<std::string>();
}

absl::StatusOr<double> ReadDouble(const Json& value, const char* key, DoubleRange range) {
  const std::string expected =
      absl::StrCat("a number above ", range.low, " and at most ", range.high);
  if (!value.is_number()) return Bad(key, value, expected);
  const auto number = value.get<double>();
  if (!std::isfinite(number) || number <= range.low || number > range.high) {
    return Bad(key, value, expected);
  }
  return number;
}

absl::StatusOr<double> OptionalDouble(const Json& json, const char* key, DoubleRange range,
                                      double otherwise) {
  const Json* value = Find(json, key);
  if (value == nullptr) return otherwise;
  return ReadDouble(*value, key, range);
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const Json& json, const char* key,
                                                  int32_t otherwise, int vocab_size) {
  const auto it = json.find(key);
  if (it == json.end()) {
    // The default of the class only where the vocabulary has it.
    if (otherwise >= 0 && otherwise < vocab_size) return std::vector<int32_t>{otherwise};
    return std::vector<int32_t>{};
  }
  std::vector<int32_t> ids;
  if (it->is_null()) return ids;
  const IntRange range = {0, vocab_size - 1};
  if (!it->is_array()) {
    FOLIO_ASSIGN_OR_RETURN(const int id, ReadInt(*it, key, range));
    ids.push_back(id);
    return ids;
  }
  if (it->size() > kMaxTokenIds) {
    return Bad(key, *it, absl::StrCat("at most ", kMaxTokenIds, " token ids"));
  }
  for (const Json& value : *it) {
    FOLIO_ASSIGN_OR_RETURN(const int id, ReadInt(value, key, range));
    ids.push_back(id);
  }
  return ids;
}

}  // namespace folio
