#include "server/logging.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/tokenizer/utf8.h"
#include "server/log_sink.h"

namespace folio::server {
namespace {

constexpr char kTextLine[] = "[%Y-%m-%d %H:%M:%S.%e] [%l] %*";
constexpr char kJsonLine[] = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%*"})";

// %* in a pattern: the message escaped, and as the inside of a JSON string where asked.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  explicit EscapedMessage(bool json) : json_(json) {}
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    for (const char c : EscapeLogText({message.payload.data(), message.payload.size()})) {
      if (json_ && (c == '"' || c == '\\')) out.push_back('\\');
      out.push_back(c);
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>(json_);
  }

 private:
  const bool json_;
};

struct Log {
  const std::shared_ptr<LogSink> sink = std::make_shared<LogSink>(STDOUT_FILENO);
  const std::shared_ptr<spdlog::logger> logger = std::make_shared<spdlog::logger>("", sink);
};

// Set once and never destroyed: threads of gRPC may write lines while the process ends.
std::atomic<const Log*> the_log{nullptr};

void LogGrpc(gpr_log_func_args* line) {
  const auto level = line->severity == GPR_LOG_SEVERITY_ERROR  ? spdlog::level::err
                     : line->severity == GPR_LOG_SEVERITY_INFO ? spdlog::level::info
                                                               : spdlog::level::debug;
  the_log.load()->logger->log(level, "grpc: {} ({}:{})", line->message, line->file, line->line);
}

void LogProtobuf(google::protobuf::LogLevel severity, const char* file, int line,
                 const std::string& message) {
  const auto level = severity == google::protobuf::LOGLEVEL_INFO      ? spdlog::level::info
                     : severity == google::protobuf::LOGLEVEL_WARNING ? spdlog::level::warn
                                                                      : spdlog::level::err;
  the_log.load()->logger->log(level, "protobuf: {} ({}:{})", message, file, line);
}

// Below U+00A0 are two-byte characters that steer terminals, too (C1 controls).
bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::string EscapeLogText(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    const std::string_view bytes = text.substr(0, step.num_bytes);
    text.remove_prefix(step.num_bytes);
    if (step.state == Utf8State::kCharacter && !IsControl(bytes)) {
      escaped.append(bytes);
      continue;
    }
    for (const char c : bytes) {
      absl::StrAppendFormat(&escaped, "\\x%02x", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

void SetUpLogging(const std::string& level, bool json) {
  const Log* const log = new Log;
  the_log.store(log);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedMessage>('*', json).set_pattern(json ? kJsonLine : kTextLine);
  spdlog::set_default_logger(log->logger);
  spdlog::set_level(spdlog::level::from_str(level));
  spdlog::set_formatter(std::move(formatter));
  gpr_set_log_function(LogGrpc);
  google::protobuf::SetLogHandler(LogProtobuf);
}

int64_t DroppedLogLines() {
  const Log* const log = the_log.load();
  return log == nullptr ? 0 : log->sink->dropped();
}

void LogRpc(const RpcRecord& record) {
  if (!spdlog::should_log(spdlog::level::info)) return;
  std::string details;
  if (!record.id.empty()) {
    absl::StrAppend(&details, " id=\"", absl::Utf8SafeCHexEscape(record.id), "\"");
  }
  if (!record.strategy.empty()) absl::StrAppend(&details, " strategy=", record.strategy);
  spdlog::info("{} code={}{} seconds={:.3f}", record.method, record.code, details, record.seconds);
}

}  // namespace folio::server
