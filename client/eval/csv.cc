#include "client/eval/csv.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace folio::eval {

std::string CsvField(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::vector<std::string> ReadCsvRecord(const std::string& csv, size_t* at) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (; *at < csv.size(); ++*at) {
    const char c = csv[*at];
    if (quoted && c == '"' && *at + 1 < csv.size() && csv[*at + 1] == '"') {
      fields.back() += csv[++*at];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c == '\n' && !quoted) {
      ++*at;
      return fields;
    } else {
      fields.back() += c;
    }
  }
  return fields;
}

}  // namespace folio::eval
