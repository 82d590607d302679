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
constexpr char kJsonLine[] = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%*})";
// The logger of finished RPCs: its messages are members of a JSON object already, where lines are.
constexpr char kRpcLogger[] = "rpc";

// The inside of a JSON string.
void AppendJson(std::string_view text, std::string* out) {
  for (const char c : EscapeLogText(text)) {
    if (c == '"' || c == '\\') out->push_back('\\');
    out->push_back(c);
  }
}

// %* in a pattern: the message escaped; in JSON as a member, or members as they are.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  explicit EscapedMessage(bool json) : json_(json) {}
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string_view payload(message.payload.data(), message.payload.size());
    const bool members =
        std::string_view(message.logger_name.data(), message.logger_name.size()) == kRpcLogger;
    std::string text;
    if (!json_) {
      text = EscapeLogText(payload);
    } else if (members) {
      text = payload;
    } else {
      text = "\"message\":\"";
      AppendJson(payload, &text);
      text += '"';
    }
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>(json_);
  }

 private:
  const bool json_;
};

struct Log {
  explicit Log(bool is_json) : json(is_json) {}
  const bool json;
  const std::shared_ptr<LogSink> sink = std::make_shared<LogSink>(STDOUT_FILENO);
  const std::shared_ptr<spdlog::logger> logger = std::make_shared<spdlog::logger>("", sink);
  // Of lines that no level hides.
  const std::shared_ptr<spdlog::logger> asked = std::make_shared<spdlog::logger>("", sink);
  const std::shared_ptr<spdlog::logger> rpcs = std::make_shared<spdlog::logger>(kRpcLogger, sink);
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

// name=value name=value, or members of a JSON object.
class RpcLine {
 public:
  explicit RpcLine(bool json) : json_(json) {}

  // Our own words.
  void Add(const char* name, const std::string& value) {
    if (!value.empty()) AddValue(name, json_ ? absl::StrCat("\"", value, "\"") : value);
  }
  void Add(const char* name, int64_t value) { AddValue(name, absl::StrCat(value)); }
  void Add(const char* name, double value) { AddValue(name, absl::StrFormat("%.3f", value)); }
  // What clients write.
  void AddQuoted(const char* name, const std::string& value) {
    if (value.empty()) return;
    std::string inside;
    if (json_) {
      AppendJson(value, &inside);
    } else {
      inside = absl::Utf8SafeCHexEscape(value);
    }
    AddValue(name, absl::StrCat("\"", inside, "\""));
  }
  const std::string& text() const { return text_; }

 private:
  void AddValue(const char* name, const std::string& value) {
    if (!text_.empty()) text_ += json_ ? ',' : ' ';
    if (json_) {
      absl::StrAppend(&text_, "\"", name, "\":", value);
    } else {
      absl::StrAppend(&text_, name, "=", value);
    }
  }

  const bool json_;
  std::string text_;
};

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
  const Log* const log = new Log(json);
  the_log.store(log);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedMessage>('*', json).set_pattern(json ? kJsonLine : kTextLine);
  spdlog::set_default_logger(log->logger);
  spdlog::set_level(spdlog::level::from_str(level));
  log->rpcs->set_level(spdlog::level::from_str(level));
  log->asked->set_level(spdlog::level::info);
  spdlog::set_formatter(std::move(formatter));
  gpr_set_log_function(LogGrpc);
  google::protobuf::SetLogHandler(LogProtobuf);
}

void LogAlways(const std::string& line) {
  const Log* const log = the_log.load();
  (log == nullptr ? *spdlog::default_logger_raw() : *log->asked).log(spdlog::level::info, line);
}

int64_t DroppedLogLines() {
  const Log* const log = the_log.load();
  return log == nullptr ? 0 : log->sink->dropped();
}

void LogRpc(const RpcRecord& record) {
  if (!spdlog::should_log(spdlog::level::info)) return;
  const Log* const log = the_log.load();
  RpcLine line(log != nullptr && log->json);
  line.Add("method", record.method);
  line.Add("code", record.code);
  line.Add("reason", record.reason);
  line.AddQuoted("request_id", record.request_id);
  line.AddQuoted("tenant", record.tenant);
  line.AddQuoted("document_id", record.document_id);
  line.Add("strategy", record.strategy);
  line.Add("trace_id", record.trace_id);
  if (record.work.has_value()) {
    line.Add("prompt_tokens", record.work->prompt_tokens);
    line.Add("cached_tokens", record.work->cached_tokens);
    line.Add("completion_tokens", record.work->completion_tokens);
    line.Add("queue_seconds", record.work->queue_seconds);
    line.Add("prefill_seconds", record.work->prefill_seconds);
    line.Add("decode_seconds", record.work->decode_seconds);
    line.Add("steps", record.work->steps);
  }
  line.Add("seconds", record.seconds);
  // No format string: clients write parts of it.
  (log == nullptr ? *spdlog::default_logger_raw() : *log->rpcs)
      .log(spdlog::level::info, line.text());
}

}  // namespace folio::server
