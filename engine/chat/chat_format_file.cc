// Chat formats that a user writes down.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/chat/chat_format.h"
#include "engine/model/json_document.h"
#include "engine/model/json_fields.h"

namespace folio {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

// The fields of a file, and where they go.
struct Fields {
  std::vector<std::pair<const char*, std::string*>> strings;
  std::vector<std::pair<const char*, bool*>> flags;
};

Fields FieldsOf(ChatFormat* format) {
  return {{{"begin", &format->begin},
           {"system_begin", &format->system_begin},
           {"system_end", &format->system_end},
           {"user_begin", &format->user_begin},
           {"user_end", &format->user_end},
           {"assistant_begin", &format->assistant_begin},
           {"assistant_end", &format->assistant_end},
           {"answer_begin", &format->answer_begin},
           {"default_system", &format->default_system}},
          {{"system_in_user", &format->system_in_user},
           {"always_system", &format->always_system},
           {"trims", &format->trims}}};
}

bool IsField(const Fields& fields, const std::string& key) {
  const auto is_key = [&](const auto& field) { return key == field.first; };
  return std::any_of(fields.strings.begin(), fields.strings.end(), is_key) ||
         std::any_of(fields.flags.begin(), fields.flags.end(), is_key);
}

absl::StatusOr<ChatFormat> Read(const Json& json) {
  ChatFormat format;
  format.name = "file";
  const Fields fields = FieldsOf(&format);
  for (const auto& [key, value] : json.items()) {
    if (!IsField(fields, key)) return absl::InvalidArgumentError("has no field \"" + key + "\"");
  }
  for (const auto& [key, text] : fields.strings) {
    FOLIO_ASSIGN_OR_RETURN(*text, OptionalString(json, key, ""));
  }
  for (const auto& [key, flag] : fields.flags) {
    FOLIO_ASSIGN_OR_RETURN(*flag, OptionalBool(json, key));
  }
  return format;
}

}  // namespace

absl::StatusOr<ChatFormat> ReadChatFormatFile(const std::string& path) {
  FOLIO_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
  FOLIO_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(path, text));
  absl::StatusOr<ChatFormat> format = Read(json);
  if (format.ok()) return format;
  return absl::Status(format.status().code(), absl::StrCat(path, ": ", format.status().message()));
}

}  // namespace folio
