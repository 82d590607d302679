// Schemas of answers, and the patterns in them: what is let through is JSON, and not much longer.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/grammar/grammar_source.h"
#include "engine/grammar/schema_subset.h"
#include "engine/grammar/string_pattern.h"
#include "nlohmann/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto checked = folio::CheckSchema(text);
  if (checked.ok()) {
    if (!nlohmann::json::accept(*checked) || checked->size() > 40000 * (size + 1)) std::abort();
  }
  (void)folio::JsonSchemaGrammar(text);
  (void)folio::RegexGrammar(text);
  (void)folio::PatternOfString(text);
  const std::string choices[] = {std::string(text), std::string(text.substr(text.size() / 2))};
  (void)folio::ChoicesGrammar(choices);
  return 0;
}
