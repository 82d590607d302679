#include "engine/model/json_document.h"

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxKeyInMessage = 100;

// First pass over the text: finds what the document parser accepts silently or reports only by an
// exception. Every method returns false to stop the parser; error() then says why.
class JsonChecker {
 public:
  const std::string& error() const { return error_; }

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(Json::binary_t&) { return true; }

  bool start_object(size_t) { return Enter(); }
  bool start_array(size_t) { return Enter(); }
  bool end_object() { return Leave(); }
  bool end_array() { return Leave(); }

  bool key(std::string& key) {
    if (keys_.back().insert(key).second) return true;
    error_ = absl::StrCat("the key \"", key.substr(0, kMaxKeyInMessage),
                          "\" is given twice in one object");
    return false;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    error_ = absl::StrCat("no valid JSON near byte ", position);
    return false;
  }

 private:
  bool Enter() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxDepth) return true;
    error_ = absl::StrCat("nested deeper than ", kMaxDepth);
    return false;
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }

  std::string error_;
  std::vector<std::unordered_set<std::string>> keys_;  // one per open object or array
};

}  // namespace

absl::StatusOr<Json> ParseJsonObject(const std::string& what, std::string_view text) {
  JsonChecker checker;
  if (!Json::sax_parse(text.begin(), text.end(), &checker)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", checker.error()));
  }
  Json document = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": must be a JSON object {...}"));
  }
  return document;
}

}  // namespace folio
