#include "engine/grammar/schema_subset.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/grammar/string_pattern.h"
#include "engine/model/json_document.h"
#include "nlohmann/json.hpp"

namespace folio {
namespace {

using Json = nlohmann::ordered_json;
using Names = std::set<std::string, std::less<>>;

constexpr int kMaxSchemas = 4096;
constexpr int64_t kMaxCount = 1 << 20;

// Say nothing about what is valid.
const Names& Annotations() {
  static const Names names = {"title",    "description", "default",  "examples",
                              "$schema",  "$id",         "$comment", "deprecated",
                              "readOnly", "writeOnly",   "$defs",    "definitions"};
  return names;
}

// What a type brings with it; null: there is no such type.
const Names* KeywordsOf(std::string_view type) {
  static const std::vector<std::pair<std::string, Names>> types = {
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
      {"boolean", {}},
      {"null", {}},
      {"array", {"items", "prefixItems", "minItems", "maxItems"}},
      {"object", {"properties", "required", "additionalProperties"}}};
  const auto at = std::ranges::find(types, type, [](const auto& entry) { return entry.first; });
  return at == types.end() ? nullptr : &at->second;
}

bool HasType(const Json& value, std::string_view type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  return type == "array" ? value.is_array() : value.is_object();
}

// Goes over all schemas of one document. `at` is the JSON pointer of what a method looks at.
class Subset {
 public:
  explicit Subset(Json* root) : root_(root) {}

  absl::Status Run() {
    for (const char* const defs : {"$defs", "definitions"}) {
      if (!root_->contains(defs)) continue;
      FOLIO_RETURN_IF_ERROR(CheckMap(&(*root_)[defs], absl::StrCat("/", defs)));
    }
    return CheckOne(root_, "");
  }

 private:
  static absl::Status Bad(const std::string& at, const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("at ", Quoted(at.empty() ? "/" : at), ": ", what));
  }
  static absl::Status Outside(const std::string& at, const std::string& keyword,
                              const std::string& why) {
    return Bad(at, absl::StrCat(Quoted(keyword), " ", why));
  }

  absl::Status CheckMap(Json* map, const std::string& at) {
    if (!map->is_object()) return Bad(at, "must be an object of schemas");
    for (auto& [name, schema] : map->items()) {
      FOLIO_RETURN_IF_ERROR(CheckOne(&schema, absl::StrCat(at, "/", name)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckList(Json* list, const std::string& at) {
    if (!list->is_array() || list->empty()) return Bad(at, "must be a list of schemas");
    for (size_t i = 0; i < list->size(); ++i) {
      FOLIO_RETURN_IF_ERROR(CheckOne(&(*list)[i], absl::StrCat(at, "/", i)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOne(Json* schema, const std::string& at) {
    if (++num_schemas_ > kMaxSchemas) {
      return Bad(at, absl::StrCat("more than ", kMaxSchemas, " schemas"));
    }
    if (schema->is_boolean()) {
      if (!schema->get<bool>()) return Bad(at, "the schema `false` has no valid value");
      *schema = Json::object();
      return absl::OkStatus();
    }
    if (!schema->is_object()) return Bad(at, "must be a schema, an object");
    if (schema != root_) {
      for (const char* const defs : {"$defs", "definitions"}) {
        if (schema->contains(defs)) return Outside(at, defs, "is allowed in the root only");
      }
    }
    if (schema->contains("$ref")) return CheckRef(*schema, at);
    if (schema->contains("const")) return CheckValues({&(*schema)["const"]}, *schema, "const", at);
    if (schema->contains("enum")) return CheckEnum(schema, at);
    for (const char* const form : {"anyOf", "oneOf", "allOf"}) {
      if (!schema->contains(form)) continue;
      FOLIO_RETURN_IF_ERROR(CheckBeside(*schema, form, {}, at));
      Json* const list = &(*schema)[form];
      if (std::string_view(form) == "allOf" && list->is_array() && list->size() != 1) {
        return Outside(at, form, "of more than one schema is not supported");
      }
      return CheckList(list, absl::StrCat(at, "/", form));
    }
    return CheckTyped(schema, at);
  }

  // That nothing but annotations and `others` is beside the keyword that says it all.
  static absl::Status CheckBeside(const Json& schema, const std::string& keyword,
                                  std::initializer_list<std::string_view> others,
                                  const std::string& at) {
    for (const auto& [name, value] : schema.items()) {
      if (name == keyword || Annotations().contains(name)) continue;
      if (std::ranges::find(others, name) != others.end()) continue;
      return Outside(at, name, absl::StrCat("is not supported beside ", Quoted(keyword)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRef(const Json& schema, const std::string& at) const {
    FOLIO_RETURN_IF_ERROR(CheckBeside(schema, "$ref", {}, at));
    const Json& ref = schema["$ref"];
    if (!ref.is_string()) return Outside(at, "$ref", "must be a string");
    const auto& target = ref.get_ref<const std::string&>();
    if (target == "#") return absl::OkStatus();
    for (const std::string defs : {"$defs", "definitions"}) {
      const std::string prefix = absl::StrCat("#/", defs, "/");
      if (!target.starts_with(prefix)) continue;
      const std::string name = target.substr(prefix.size());
      if (name.find_first_of("/~%") != std::string::npos) break;
      if (root_->contains(defs) && (*root_)[defs].contains(name)) return absl::OkStatus();
      return Outside(at, "$ref", absl::StrCat("names ", Quoted(target), ", which does not exist"));
    }
    return Outside(at, "$ref",
                   absl::StrCat("is ", Quoted(target),
                                ", must be \"#\" or \"#/$defs/NAME\" without / ~ % in the name"));
  }

  static absl::Status CheckEnum(Json* schema, const std::string& at) {
    const Json& list = (*schema)["enum"];
    if (!list.is_array() || list.empty()) return Outside(at, "enum", "must be a list of values");
    std::vector<const Json*> values;
    for (const Json& value : list) values.push_back(&value);
    return CheckValues(values, *schema, "enum", at);
  }

  // The library writes values out: those that it cannot write exactly are refused.
  static absl::Status CheckValues(const std::vector<const Json*>& values, const Json& schema,
                                  const std::string& keyword, const std::string& at) {
    FOLIO_RETURN_IF_ERROR(CheckBeside(schema, keyword, {"type"}, at));
    for (const Json* const value : values) {
      if (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX) {
        return Outside(at, keyword, "has a number above 2^63 - 1");
      }
    }
    if (!schema.contains("type")) return absl::OkStatus();
    std::vector<std::string> types;
    FOLIO_RETURN_IF_ERROR(ReadTypes(schema["type"], at, &types));
    for (const Json* const value : values) {
      const auto fits = [value](const std::string& type) { return HasType(*value, type); };
      if (std::ranges::any_of(types, fits)) continue;
      return Outside(at, keyword, "has a value that is not of the given type");
    }
    return absl::OkStatus();
  }

  static absl::Status ReadTypes(const Json& type, const std::string& at,
                                std::vector<std::string>* types) {
    const Json list = type.is_array() ? type : Json::array({type});
    if (list.empty()) return Outside(at, "type", "is an empty list");
    for (const Json& entry : list) {
      if (!entry.is_string() || KeywordsOf(entry.get_ref<const std::string&>()) == nullptr) {
        return Outside(at, "type",
                       "must be one of array, boolean, integer, null, number, object, "
                       "string, or a list of them");
      }
      types->push_back(entry.get<std::string>());
    }
    return absl::OkStatus();
  }

  absl::Status CheckTyped(Json* schema, const std::string& at) {
    std::vector<std::string> types;
    if (schema->contains("type")) FOLIO_RETURN_IF_ERROR(ReadTypes((*schema)["type"], at, &types));
    for (const auto& entry : schema->items()) {
      const std::string& name = entry.key();
      if (name == "type" || Annotations().contains(name)) continue;
      const auto has = [&name](const std::string& type) {
        return KeywordsOf(type)->contains(name);
      };
      if (std::ranges::any_of(types, has)) continue;
      const std::string why =
          types.empty() ? "needs a `type`, if it is a keyword at all"
                        : absl::StrCat("is not supported for ", absl::StrJoin(types, ", "));
      return Outside(at, name, why);
    }
    for (const std::string& type : types) {
      if (type == "string") FOLIO_RETURN_IF_ERROR(CheckString(schema, at));
      if (type == "integer" || type == "number") FOLIO_RETURN_IF_ERROR(CheckNumber(*schema, at));
      if (type == "array") FOLIO_RETURN_IF_ERROR(CheckArray(schema, at));
      if (type == "object") FOLIO_RETURN_IF_ERROR(CheckObject(schema, at));
    }
    return absl::OkStatus();
  }

  // Lengths and formats become patterns, too: the library lets control characters into strings of
  // bounded length, and the year 0 into dates.
  static absl::Status CheckString(Json* schema, const std::string& at) {
    FOLIO_RETURN_IF_ERROR(CheckCount(*schema, "minLength", at));
    FOLIO_RETURN_IF_ERROR(CheckCount(*schema, "maxLength", at));
    const bool has_length = schema->contains("minLength") || schema->contains("maxLength");
    for (const char* const form : {"pattern", "format"}) {
      if (!schema->contains(form)) continue;
      if (!(*schema)[form].is_string()) return Outside(at, form, "must be a string");
      if (has_length) return Outside(at, form, "is not supported beside a length");
    }
    if (has_length) return BoundLength(schema, at);
    if (schema->contains("format")) {
      if (schema->contains("pattern"))
        return Outside(at, "format", "is not supported beside a pattern");
      const auto& format = (*schema)["format"].get_ref<const std::string&>();
      const char* const pattern = PatternOfFormat(format);
      if (pattern == nullptr) {
        return Outside(at, "format",
                       absl::StrCat("is ", Quoted(format), ", must be one of ", kKnownFormats));
      }
      schema->erase("format");
      (*schema)["pattern"] = pattern;
    }
    if (!schema->contains("pattern")) return absl::OkStatus();
    Json& pattern = (*schema)["pattern"];
    auto rewritten = PatternOfString(pattern.get_ref<const std::string&>());
    if (!rewritten.ok()) return Outside(at, "pattern", std::string(rewritten.status().message()));
    pattern = *std::move(rewritten);
    return absl::OkStatus();
  }

  static absl::Status BoundLength(Json* schema, const std::string& at) {
    const int64_t min = schema->value("minLength", int64_t{0});
    const int64_t max = schema->value("maxLength", int64_t{-1});
    if (max >= 0 && max < std::max<int64_t>(min, 1)) {
      return Outside(at, "maxLength", "must be at least 1 and at least minLength");
    }
    schema->erase("minLength");
    schema->erase("maxLength");
    (*schema)["pattern"] = PatternOfLength(min, max);
    return absl::OkStatus();
  }

  static absl::Status CheckNumber(const Json& schema, const std::string& at) {
    for (const char* const bound :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      if (!schema.contains(bound)) continue;
      if (!schema[bound].is_number()) return Outside(at, bound, "must be a number");
    }
    return absl::OkStatus();
  }

  absl::Status CheckArray(Json* schema, const std::string& at) {
    FOLIO_RETURN_IF_ERROR(CheckCount(*schema, "minItems", at));
    FOLIO_RETURN_IF_ERROR(CheckCount(*schema, "maxItems", at));
    const bool has_prefix = schema->contains("prefixItems");
    if (has_prefix) {
      FOLIO_RETURN_IF_ERROR(CheckList(&(*schema)["prefixItems"], absl::StrCat(at, "/prefixItems")));
    }
    if (!schema->contains("items")) {
      // The library would allow no items.
      if (!has_prefix) (*schema)["items"] = Json::object();
      return absl::OkStatus();
    }
    Json* const items = &(*schema)["items"];
    if (*items == Json(false)) return absl::OkStatus();
    return CheckOne(items, absl::StrCat(at, "/items"));
  }

  absl::Status CheckObject(Json* schema, const std::string& at) {
    const bool has_properties = schema->contains("properties") && !(*schema)["properties"].empty();
    if (schema->contains("properties")) {
      FOLIO_RETURN_IF_ERROR(CheckMap(&(*schema)["properties"], absl::StrCat(at, "/properties")));
    }
    FOLIO_RETURN_IF_ERROR(CheckRequired(*schema, at));
    if (has_properties) {
      // A name that is not listed could be one that is, written with escapes.
      (*schema)["additionalProperties"] = false;
      return absl::OkStatus();
    }
    if (!schema->contains("additionalProperties")) (*schema)["additionalProperties"] = true;
    Json* const others = &(*schema)["additionalProperties"];
    if (others->is_boolean()) return absl::OkStatus();
    return CheckOne(others, absl::StrCat(at, "/additionalProperties"));
  }

  static absl::Status CheckRequired(const Json& schema, const std::string& at) {
    if (!schema.contains("required")) return absl::OkStatus();
    const Json& required = schema["required"];
    if (!required.is_array()) return Outside(at, "required", "must be a list of names");
    for (const Json& name : required) {
      if (!name.is_string()) return Outside(at, "required", "must be a list of names");
      const auto& text = name.get_ref<const std::string&>();
      if (schema.contains("properties") && schema["properties"].contains(text)) continue;
      return Outside(at, "required",
                     absl::StrCat("names ", Quoted(text), ", which is not in `properties`"));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckCount(const Json& schema, const char* keyword, const std::string& at) {
    if (!schema.contains(keyword)) return absl::OkStatus();
    const Json& count = schema[keyword];
    const bool good =
        count.is_number_unsigned() && count.get<uint64_t>() <= static_cast<uint64_t>(kMaxCount);
    if (good) return absl::OkStatus();
    return Outside(at, keyword, absl::StrCat("must be a whole number from 0 to ", kMaxCount));
  }

  Json* const root_;
  int num_schemas_ = 0;
};

}  // namespace

absl::StatusOr<std::string> CheckSchema(std::string_view text) {
  FOLIO_RETURN_IF_ERROR(ParseJsonObject("the schema", text).status());
  Json schema = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  FOLIO_RETURN_IF_ERROR(Subset(&schema).Run());
  return schema.dump();
}

}  // namespace folio
