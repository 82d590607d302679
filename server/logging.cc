#include "server/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

// %* in a pattern: the message as the inside of a JSON string.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    for (const char c : message.payload) Append(c, &out);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }

 private:
  static void Append(char c, spdlog::memory_buf_t* out) {
    if (c == '"' || c == '\\') out->push_back('\\');
    if (static_cast<unsigned char>(c) >= 0x20) return out->push_back(c);
    char escape[8];
    const int size = std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
    out->append(escape, escape + size);
  }
};

}  // namespace

void SetUpLogging(const std::string& level, bool json) {
  spdlog::set_level(spdlog::level::from_str(level));
  if (!json) return;
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessage>('*').set_pattern(
      R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%*"})");
  spdlog::set_formatter(std::move(formatter));
}

void LogRpc(const RpcRecord& record) {
  if (!spdlog::should_log(spdlog::level::info)) return;
  std::string details;
  if (!record.id.empty()) absl::StrAppend(&details, " id=", absl::Utf8SafeCHexEscape(record.id));
  if (!record.strategy.empty()) absl::StrAppend(&details, " strategy=", record.strategy);
  spdlog::info("{} code={}{} seconds={:.3f}", record.method, record.code, details, record.seconds);
}

}  // namespace folio::server
