#include "engine/runtime/attention_text.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace folio {
namespace {

constexpr char kAdapterBegin[] = "adapter(";

struct ValueText {
  std::string operator()(int64_t value) const { return absl::StrCat(value); }
  // As many digits as tell any two numbers apart, and a mark that it is none of the above.
  std::string operator()(double value) const { return absl::StrFormat("%.17gr", value); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return value; }
};

template <typename Kind>
std::string MethodText(const MethodSpec<Kind>& spec) {
  std::string params;
  for (const auto& [name, value] : spec.params) {
    absl::StrAppend(&params, params.empty() ? "" : ",", name, "=", std::visit(ValueText(), value));
  }
  return absl::StrCat(spec.name, "(", params, ")");
}

ParamValue ParseValue(absl::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  int64_t whole = 0;
  if (absl::SimpleAtoi(text, &whole)) return whole;
  double real = 0;
  absl::string_view number = text;
  if (absl::ConsumeSuffix(&number, "r") && absl::SimpleAtod(number, &real)) return real;
  return std::string(text);
}

template <typename Kind>
bool ParseMethod(absl::string_view text, MethodSpec<Kind>* spec) {
  const size_t open = text.find('(');
  if (open == absl::string_view::npos || !absl::ConsumeSuffix(&text, ")")) return false;
  spec->name = std::string(text.substr(0, open));
  const absl::string_view params = text.substr(open + 1);
  if (params.empty()) return true;
  for (const absl::string_view param : absl::StrSplit(params, ',')) {
    const size_t equals = param.find('=');
    if (equals == absl::string_view::npos) return false;
    spec->params.emplace_back(std::string(param.substr(0, equals)),
                              ParseValue(param.substr(equals + 1)));
  }
  return true;
}

bool ParseAdapter(absl::string_view text, AdapterSpec* spec) {
  if (!absl::ConsumePrefix(&text, kAdapterBegin) || !absl::ConsumeSuffix(&text, ")")) return false;
  const size_t at = text.find('@');
  if (at == absl::string_view::npos || at == 0) return false;
  *spec = {std::string(text.substr(0, at)), std::string(text.substr(at + 1))};
  return true;
}

}  // namespace

std::string AttentionText(const AttentionSpec& spec) {
  std::string text = absl::StrCat(MethodText(spec.strategy), " ", MethodText(spec.position));
  if (spec.adapter.name.empty()) return text;
  return absl::StrCat(text, " ", kAdapterBegin, spec.adapter.name, "@", spec.adapter.content, ")");
}

std::optional<AttentionSpec> ParseAttentionText(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  AttentionSpec spec;
  if (parts.size() < 2 || parts.size() > 3 || !ParseMethod(parts[0], &spec.strategy) ||
      !ParseMethod(parts[1], &spec.position)) {
    return std::nullopt;
  }
  if (parts.size() == 3 && !ParseAdapter(parts[2], &spec.adapter)) return std::nullopt;
  return spec;
}

}  // namespace folio
