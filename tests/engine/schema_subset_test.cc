#include "engine/grammar/schema_subset.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace folio {
namespace {

using ::testing::HasSubstr;

std::string Checked(const std::string& schema) {
  const auto checked = CheckSchema(schema);
  return checked.ok() ? *checked : "refused: " + std::string(checked.status().message());
}

TEST(SchemaSubset, KeepsWhatAnswersCanBeHeldTo) {
  for (const char* const schema : {
           R"({})",
           R"({"type":"string","title":"t","description":"d"})",
           R"({"type":["string","null"]})",
           R"({"type":"integer","minimum":-3,"exclusiveMaximum":8,"multipleOf":2})",
           R"({"type":"number","maximum":0.5})",
           R"({"type":"string","pattern":"[a-z]+"})",
           R"({"enum":["a",1,null],"default":1})",
           R"({"type":"string","enum":["a","b"]})",
           R"({"const":{"a":[1,2]}})",
           R"({"anyOf":[{"type":"string"},{"type":"null"}]})",
           R"({"allOf":[{"type":"string"}]})",
           R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
           R"({"type":"array","prefixItems":[{"type":"string"}],"items":false})",
           R"({"$defs":{"n":{"type":"null"}},"$ref":"#/$defs/n"})",
       }) {
    EXPECT_EQ(Checked(schema), schema);
  }
}

// Keys stay in their order, and what the library would read otherwise is written out.
TEST(SchemaSubset, WritesOutWhatTheLibraryReadsOtherwise) {
  EXPECT_EQ(Checked(R"({"type": "object", "properties": {"z": true, "a": {}}, "required": ["a"]})"),
            R"({"type":"object","properties":{"z":{},"a":{}},"required":["a"],)"
            R"("additionalProperties":false})");
  EXPECT_EQ(Checked(R"({"type":"object","properties":{"a":{}},"additionalProperties":true})"),
            R"({"type":"object","properties":{"a":{}},"additionalProperties":false})");
  EXPECT_EQ(Checked(R"({"type":"object"})"), R"({"type":"object","additionalProperties":true})");
  EXPECT_EQ(Checked(R"({"type":"array"})"), R"({"type":"array","items":{}})");
  EXPECT_EQ(Checked(R"({"type":"string","minLength":2,"maxLength":5})"),
            R"({"type":"string","pattern":"[^\"\\\\\\x00-\\x1f]{2,5}"})");
  EXPECT_EQ(Checked(R"({"type":"string","pattern":"^(ab?){1,2}c{2}$"})"),
            R"({"type":"string","pattern":"(ab?)((ab?))?cc"})");
}

struct Refused {
  const char* schema;
  const char* place;
  const char* what;
};

TEST(SchemaSubset, RefusesTheRestByKeyword) {
  for (const Refused& refused : {
           Refused{R"([])", "", "object"},
           Refused{R"({"type":)", "", "no valid JSON"},
           Refused{R"({"type":"string","type":"null"})", "", "given twice"},
           Refused{R"({"type":"text"})", "'/'", "'type'"},
           Refused{R"({"minimum":3})", "'/'", "'minimum' needs a `type`"},
           Refused{R"({"nullable":true})", "'/'", "'nullable'"},
           Refused{R"({"type":"string","minimum":3})", "'/'", "'minimum' is not supported for"},
           Refused{R"({"not":{"type":"null"}})", "'/'", "'not'"},
           Refused{R"({"type":"array","uniqueItems":true})", "'/'", "'uniqueItems'"},
           Refused{R"({"type":"array","contains":{}})", "'/'", "'contains'"},
           Refused{R"({"type":"object","patternProperties":{}})", "'/'", "'patternProperties'"},
           Refused{R"({"type":"object","minProperties":1})", "'/'", "'minProperties'"},
           Refused{R"({"type":"object","properties":{"a":{"if":{}}}})", "'/properties/a'", "'if'"},
           Refused{R"({"type":"object","properties":{"a":{}},"required":["b"]})", "'/'", "'b'"},
           Refused{R"({"type":"object","required":["b"]})", "'/'", "'b'"},
           Refused{R"({"type":"string","pattern":"a","maxLength":3})", "'/'", "'pattern'"},
           Refused{R"({"type":"string","format":"phone"})", "'/'", "'phone'"},
           Refused{R"({"type":"string","maxLength":-1})", "'/'", "'maxLength'"},
           Refused{R"({"type":"string","minLength":3,"maxLength":2})", "'/'", "'maxLength'"},
           Refused{R"({"type":"string","pattern":"(a*b)?"})", "'/'", "without bound"},
           Refused{R"({"type":"string","pattern":"a^b"})", "'/'", "anchor"},
           Refused{R"({"type":"string","pattern":"(?=a)b"})", "'/'", "(?"},
           Refused{R"({"type":"string","pattern":"\\n"})", "'/'", "escape"},
           Refused{R"({"type":"string","pattern":"\""})", "'/'", "JSON"},
           Refused{R"({"type":"string","pattern":"[a"})", "'/'", "[ without"},
           Refused{R"({"type":"string","pattern":"(a"})", "'/'", "( without"},
           Refused{R"x({"type":"string","pattern":"a)"})x", "'/'", ") without"},
           Refused{R"({"type":"string","pattern":"a{2000}"})", "'/'", "1000"},
           Refused{R"({"type":"string","pattern":"((a{900}){900}){900}"})", "'/'", "too much"},
           Refused{R"({"type":"string","maxLength":1e9})", "'/'", "'maxLength'"},
           Refused{R"({"type":"array","maxItems":10000000})", "'/'", "'maxItems'"},
           Refused{R"({"type":"integer","minimum":"3"})", "'/'", "'minimum'"},
           Refused{R"({"type":"integer","enum":["a"]})", "'/'", "'enum'"},
           Refused{R"({"enum":[]})", "'/'", "'enum'"},
           Refused{R"({"enum":[18446744073709551615]})", "'/'", "'enum'"},
           Refused{R"({"const":1,"minimum":0})", "'/'",
                   "'minimum' is not supported beside 'const'"},
           Refused{R"({"anyOf":[{"type":"null"}],"type":"null"})", "'/'", "'type'"},
           Refused{R"({"allOf":[{},{}]})", "'/'", "'allOf'"},
           Refused{R"({"anyOf":[{"type":"null"},false]})", "'/anyOf/1'", "false"},
           Refused{R"({"$ref":"#/$defs/a"})", "'/'", "does not exist"},
           Refused{R"({"$ref":"http://example.com/schema"})", "'/'", "'$ref'"},
           Refused{R"({"$defs":{"a":{"dependentRequired":{}}}})", "'/$defs/a'",
                   "'dependentRequired'"},
           Refused{R"({"type":"array","items":{"$defs":{}}})", "'/items'", "'$defs'"},
           Refused{R"({"type":"array","items":3})", "'/items'", "schema"},
       }) {
    const std::string said = Checked(refused.schema);
    EXPECT_THAT(said, HasSubstr("refused")) << refused.schema;
    EXPECT_THAT(said, HasSubstr(refused.place)) << refused.schema;
    EXPECT_THAT(said, HasSubstr(refused.what)) << refused.schema;
  }
}

TEST(SchemaSubset, IsBounded) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += R"({"type":"array","items":)";
  EXPECT_THAT(Checked(deep), HasSubstr("nested deeper"));
  std::string wide = R"({"type":"array","prefixItems":[{})";
  for (int i = 0; i < 5000; ++i) wide += ",{}";
  EXPECT_THAT(Checked(wide + "]}"), HasSubstr("more than 4096 schemas"));
}

}  // namespace
}  // namespace folio
