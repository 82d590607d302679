// Every flag of the command line: it is read, it is checked, and --help says its default.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <regex>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/config_sources.h"
#include "tests/server/parsed_options.h"

namespace folio::server {
namespace {

struct Flag {
  const char* name;
  const char* value;
  const char* bad;
  std::function<std::string(const ServerOptions&)> get;
  const char* read = nullptr;  // what `value` becomes, if it is not that
};
std::ostream& operator<<(std::ostream& out, const Flag& flag) { return out << flag.name; }

#define FOLIO_GET(field) [](const ServerOptions& o) { return absl::StrCat(o.field); }

const Flag kFlags[] = {
    {"--device", "cuda", "tpu", FOLIO_GET(engine.device)},
    {"--threads", "3", "-1", FOLIO_GET(engine.num_threads)},
    {"--chat-format", "chatml", "alpaca", FOLIO_GET(engine.chat_format)},
    {"--page-tokens", "32", "x", FOLIO_GET(engine.page_tokens)},
    {"--cpu-isa", "portable", "sse", FOLIO_GET(engine.cpu_isa)},
    {"--weight-dtype", "int4", "int2", FOLIO_GET(engine.weight_dtype)},
    {"--weight-group", "64", "48", FOLIO_GET(engine.weight_group)},
    {"--kv-dtype", "bf16", "fp64", FOLIO_GET(engine.kv_dtype)},
    {"--kv-bytes", "2KiB", "-1", FOLIO_GET(engine.kv_bytes), "2048"},
    {"--kv-host-bytes", "5KiB", "-1", FOLIO_GET(engine.kv_host_bytes), "5120"},
    {"--kv-disk-bytes", "3KiB", "-1", FOLIO_GET(engine.kv_disk_bytes), "3072"},
    {"--store-bytes", "4KiB", "-1", FOLIO_GET(engine.store_bytes), "4096"},
    {"--step-tokens", "64", "-1", FOLIO_GET(engine.step_tokens)},
    {"--prefill-share-tokens", "16", "-1", FOLIO_GET(engine.prefill_share_tokens)},
    {"--prefill-slowdown", "2.5", "1", FOLIO_GET(engine.prefill_slowdown)},
    {"--listen", "localhost:7", "localhost", FOLIO_GET(listen)},
    {"--metrics-listen", "off", "on", FOLIO_GET(metrics_listen)},
    {"--drain-seconds", "0", "-1", FOLIO_GET(drain_seconds)},
    {"--step-timeout-seconds", "9", "-1", FOLIO_GET(step_timeout_seconds)},
    {"--otlp-endpoint", "collector:4317", "collector", FOLIO_GET(otlp_endpoint)},
    {"--slow-step-seconds", "0.5", "-1", FOLIO_GET(engine.slow_step_seconds)},
    {"--log-level", "debug", "loud", FOLIO_GET(log_level)},
    {"--log-calls-per-second", "7", "-1", FOLIO_GET(log_calls_per_second)},
    {"--max-running-requests", "7", "0", FOLIO_GET(engine.max_running_requests)},
    {"--max-queued-requests", "7", "0", FOLIO_GET(engine.max_queued_requests)},
    {"--max-queued-requests-per-client", "7", "-1",
     FOLIO_GET(engine.max_queued_requests_per_client)},
    {"--max-queued-prefill-tokens", "700", "-1", FOLIO_GET(engine.max_queued_prefill_tokens)},
    {"--max-queued-kv-bytes", "7KiB", "-1", FOLIO_GET(engine.max_queued_kv_bytes), "7168"},
    {"--max-context-tokens", "7", "0", FOLIO_GET(engine.max_context_tokens)},
    {"--max-new-tokens-limit", "7", "0", FOLIO_GET(max_new_tokens)},
    {"--max-documents", "7", "0", FOLIO_GET(engine.max_documents)},
    {"--max-document-bytes", "7KiB", "0", FOLIO_GET(max_document_bytes), "7168"},
    {"--max-inline-prompt-bytes", "7KiB", "0", FOLIO_GET(max_inline_prompt_bytes), "7168"},
    {"--max-request-memory-bytes", "7GiB", "0", FOLIO_GET(requests.max_memory_bytes), "7516192768"},
    {"--max-stream-buffer-bytes", "7KiB", "0", FOLIO_GET(requests.max_stream_buffer_bytes), "7168"},
    {"--slow-reader-seconds", "7", "0", FOLIO_GET(requests.slow_reader_seconds)},
    {"--upload-expiry-seconds", "7", "0", FOLIO_GET(requests.upload_expiry_seconds)},
    {"--max-connections", "700", "0", FOLIO_GET(edge.max_connections)},
    {"--max-connections-per-peer", "7", "0", FOLIO_GET(edge.max_connections_per_peer)},
    {"--handshake-seconds", "7", "0", FOLIO_GET(edge.handshake_seconds)},
    {"--max-partial-bytes", "70MiB", "0", FOLIO_GET(edge.max_partial_message_bytes), "73400320"},
    {"--max-message-bytes", "7MiB", "2GiB", FOLIO_GET(edge.connection.max_message_bytes),
     "7340032"},
    {"--max-connection-partial-bytes", "7MiB", "0",
     FOLIO_GET(edge.connection.max_partial_message_bytes), "7340032"},
    {"--max-header-block-bytes", "7KiB", "0", FOLIO_GET(edge.connection.max_header_block_bytes),
     "7168"},
    {"--max-header-fields", "7", "0", FOLIO_GET(edge.connection.max_header_fields)},
    {"--max-open-streams", "7", "1", FOLIO_GET(edge.connection.max_open_streams)},
    {"--control-frame-burst", "7", "0", FOLIO_GET(edge.connection.control_frame_burst)},
    {"--control-frames-per-second", "7", "0", FOLIO_GET(edge.connection.control_frames_per_second)},
    {"--metrics-max-connections", "70", "0", FOLIO_GET(metrics.max_connections)},
    {"--metrics-max-connections-per-peer", "7", "0", FOLIO_GET(metrics.max_connections_per_peer)},
    {"--metrics-idle-seconds", "7", "0", FOLIO_GET(metrics.idle_seconds)},
    {"--metrics-max-request-bytes", "7KiB", "100", FOLIO_GET(metrics.max_request_bytes), "7168"},
};

#undef FOLIO_GET

std::string Help() {
  ::testing::internal::CaptureStdout();
  Parse({"--help"});
  return ::testing::internal::GetCapturedStdout();
}

class EachFlag : public ::testing::TestWithParam<Flag> {};

TEST_P(EachFlag, IsRead) {
  const Flag& flag = GetParam();
  const Parsed parsed = Parse({"--model=/m", flag.name, flag.value});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  EXPECT_EQ(flag.get(parsed.options), flag.read == nullptr ? flag.value : flag.read);
  EXPECT_NE(flag.get(parsed.options), flag.get(ServerOptions{}))
      << "another value than the default";
}

TEST_P(EachFlag, IsNamedWhenItsValueIsRefused) {
  const Flag& flag = GetParam();
  ::testing::internal::CaptureStderr();
  const Parsed parsed = Parse({"--model=/m", absl::StrCat(flag.name, "=", flag.bad).c_str()});
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(parsed.result, ParseResult::kExit);
  EXPECT_EQ(parsed.exit_code, 1);
  EXPECT_NE(error.find(flag.name), std::string::npos) << error;
}

TEST_P(EachFlag, IsReadFromTheEnvironment) {
  const Flag& flag = GetParam();
  const Variable variable(EnvironmentName(flag.name), flag.value);
  const Parsed parsed = Parse({"--model=/m"});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  EXPECT_EQ(flag.get(parsed.options), flag.read == nullptr ? flag.value : flag.read);
}

TEST_P(EachFlag, IsNamedWithItsVariableWhenItsValueIsRefused) {
  const Flag& flag = GetParam();
  const Variable variable(EnvironmentName(flag.name), flag.bad);
  ::testing::internal::CaptureStderr();
  const Parsed parsed = Parse({"--model=/m"});
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(parsed.exit_code, 1);
  EXPECT_NE(error.find(EnvironmentName(flag.name) + ": "), std::string::npos) << error;
}

TEST_P(EachFlag, IsReadFromAFile) {
  const Flag& flag = GetParam();
  const ConfigText file(absl::StrCat(flag.name + 2, " = \"", flag.value, "\"\n"));
  const Parsed parsed = Parse({"--model=/m", file.flag()});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  EXPECT_EQ(flag.get(parsed.options), flag.read == nullptr ? flag.value : flag.read);
}

TEST_P(EachFlag, IsNamedWithFileAndLineWhenItsValueIsRefused) {
  const Flag& flag = GetParam();
  const ConfigText file(absl::StrCat("\n", flag.name + 2, " = \"", flag.bad, "\"\n"));
  ::testing::internal::CaptureStderr();
  const Parsed parsed = Parse({"--model=/m", file.flag()});
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(parsed.exit_code, 1);
  EXPECT_NE(error.find(file.path() + ", line 2: "), std::string::npos) << error;
  EXPECT_NE(error.find(flag.name), std::string::npos) << error;
}

TEST_P(EachFlag, HasItsDefaultInTheHelp) {
  const Flag& flag = GetParam();
  const std::string help = Help();
  std::smatch found;
  // The flag, its other names, its type and what is allowed, all in one line.
  ASSERT_TRUE(
      std::regex_search(help, found, std::regex(absl::StrCat("  ", flag.name, "[ ,].*=(.*)"))))
      << help;
  EXPECT_EQ(found[1], flag.get(ServerOptions{}));
}

INSTANTIATE_TEST_SUITE_P(All, EachFlag, ::testing::ValuesIn(kFlags), [](const auto& info) {
  std::string name;
  for (const char c : std::string(info.param.name)) {
    if (c != '-') name += c;
  }
  return name;
});

TEST(Flags, AllAreInTheTable) {
  // Without a default, or a value.
  std::set<std::string> known = {
      "--help",     "--version",       "--model",           "--port-file",
      "--kv-dir",   "--log-json",      "--document-system", "--use-generation-config",
      "--lora",     "--config",        "--print-config",    "--tls-cert",
      "--tls-key",  "--tls-client-ca", "--tenants",         "--audit-log",
      "--insecure", "--metrics-tls",   "--metrics-tokens",  "--otlp-ca"};
  for (const Flag& flag : kFlags) known.insert(flag.name);
  const std::string help = Help();
  const std::regex flag("\n  (?:-h,)?(--[a-z-]+)");
  std::set<std::string> listed;
  for (std::sregex_iterator it(help.begin(), help.end(), flag), end; it != end; ++it) {
    listed.insert((*it)[1]);
  }
  EXPECT_EQ(listed, known);
}

// Each at another value than its default, printed and read again.
TEST(Flags, WhatIsPrintedIsReadAgain) {
  std::vector<std::string> arguments = {"--model=/m", "--print-config"};
  for (const Flag& flag : kFlags) arguments.push_back(absl::StrCat(flag.name, "=", flag.value));
  std::vector<const char*> pointers;
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(Parse(pointers).exit_code, 0);
  const ConfigText file(::testing::internal::GetCapturedStdout());
  const Parsed parsed = Parse({file.flag()});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  EXPECT_EQ(parsed.options.engine.model_dir, "/m");
  for (const Flag& flag : kFlags) {
    EXPECT_EQ(flag.get(parsed.options), flag.read == nullptr ? flag.value : flag.read) << flag.name;
  }
}

TEST(Flags, LoraMayBeGivenSeveralTimes) {
  const Parsed parsed =
      Parse({"--model=/m", "--lora=poet=/a/b=c", "--lora", "clerk=/d", "--threads=3"});
  ASSERT_EQ(parsed.result, ParseResult::kRun);
  const std::vector<AdapterSource>& adapters = parsed.options.engine.adapters;
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0].name, "poet");
  EXPECT_EQ(adapters[0].dir, "/a/b=c");
  EXPECT_EQ(adapters[1].name, "clerk");
  EXPECT_EQ(adapters[1].dir, "/d");
  EXPECT_EQ(parsed.options.engine.num_threads, 3);
  for (const char* bad : {"--lora=poet", "--lora==/a", "--lora=poet="}) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(Parse({"--model=/m", bad}).result, ParseResult::kExit) << bad;
    const std::string error = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(error.find("must be NAME=DIR"), std::string::npos) << error;
    EXPECT_NE(error.find("--lora"), std::string::npos) << error;
  }
}

struct TooMuch {
  std::vector<const char*> arguments;
  const char* message;
};
class PartsOfLimits : public ::testing::TestWithParam<TooMuch> {};

TEST_P(PartsOfLimits, AreNotLargerThanTheWhole) {
  std::vector<const char*> arguments = {"--model=/m"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  ::testing::internal::CaptureStderr();
  const Parsed parsed = Parse(arguments);
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(parsed.result, ParseResult::kExit);
  EXPECT_EQ(parsed.exit_code, 1);
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(
    All, PartsOfLimits,
    ::testing::Values(
        TooMuch{{"--max-connections=10", "--max-connections-per-peer=11"},
                "--max-connections-per-peer is 11, more than --max-connections, which is 10"},
        TooMuch{{"--max-connections-per-peer=2000"}, "--max-connections, which is 1024"},
        TooMuch{{"--metrics-max-connections-per-peer=257"},
                "--metrics-max-connections, which is 256"},
        TooMuch{{"--max-connection-partial-bytes=1GiB"}, "--max-partial-bytes, which is 134217728"},
        TooMuch{{"--max-message-bytes=17MiB"}, "--max-connection-partial-bytes, which is 16777216"},
        TooMuch{{"--max-message-bytes=4MiB", "--max-request-memory-bytes=3MiB"},
                "--max-request-memory-bytes, which is 3145728"},
        TooMuch{{"--max-inline-prompt-bytes=4MiB"}, "--max-message-bytes less 1/64"}));

TEST(Flags, APartThatIsNotGivenIsLoweredToTheWhole) {
  const ServerOptions options = Parse({"--model=/m", "--max-connections=10",
                                       "--metrics-max-connections=9", "--max-partial-bytes=64KiB"})
                                    .options;
  EXPECT_EQ(options.edge.max_connections_per_peer, 10);
  EXPECT_EQ(options.metrics.max_connections_per_peer, 9u);
  EXPECT_EQ(options.edge.connection.max_partial_message_bytes, 64 << 10);
  EXPECT_EQ(options.edge.connection.max_message_bytes, 64u << 10);
  EXPECT_EQ(options.max_inline_prompt_bytes, (64 << 10) - (1 << 10));
}

}  // namespace
}  // namespace folio::server
