#include "server/config_sources.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/server/parsed_options.h"

namespace folio::server {
namespace {

// The one line that refuses them.
std::string Refusal(const std::vector<const char*>& arguments) {
  ::testing::internal::CaptureStderr();
  const Parsed parsed = Parse(arguments);
  std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(parsed.result, ParseResult::kExit);
  EXPECT_EQ(parsed.exit_code, 1);
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  return error;
}

std::string Printed(std::vector<const char*> arguments) {
  arguments.push_back("--print-config");
  ::testing::internal::CaptureStdout();
  const Parsed parsed = Parse(arguments);
  std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(parsed.result, ParseResult::kExit);
  EXPECT_EQ(parsed.exit_code, 0);
  return text;
}

TEST(ConfigSources, VariablesAreNamedAfterFlags) {
  EXPECT_EQ(EnvironmentName("--kv-bytes"), "FOLIO_KV_BYTES");
  EXPECT_EQ(EnvironmentName("model"), "FOLIO_MODEL");
}

TEST(ConfigSources, TheCommandLineGoesBeforeTheEnvironmentAndThatBeforeTheFile) {
  const ConfigText file("threads = 3\nmax-documents = 3\npage_tokens = 3\nmodel = \"/file\"\n");
  const Variable threads("FOLIO_THREADS", "2");
  const Variable documents("FOLIO_MAX_DOCUMENTS", "2");
  const Variable model("FOLIO_MODEL", "/environment");
  const ServerOptions options = Parse({"--threads=1", file.flag()}).options;
  EXPECT_EQ(options.engine.num_threads, 1);
  EXPECT_EQ(options.engine.max_documents, 2);
  EXPECT_EQ(options.engine.page_tokens, 3);
  EXPECT_EQ(options.engine.model_dir, "/environment");
  EXPECT_EQ(options.drain_seconds, ServerOptions().drain_seconds);
}

TEST(ConfigSources, TheFileMayBeNamedByTheEnvironment) {
  const ConfigText file("model = \"/file\"\n");
  const Variable config("FOLIO_CONFIG", file.path());
  EXPECT_EQ(Parse({}).options.engine.model_dir, "/file");
}

TEST(ConfigSources, AnEmptyVariableIsAsUnset) {
  const Variable threads("FOLIO_THREADS", "");
  EXPECT_EQ(Parse({"--model=/m"}).options.engine.num_threads, 0);
}

TEST(ConfigSources, OtherNamesOfAFlagAreItsNamesEverywhere) {
  const Variable bytes("FOLIO_KV_DEVICE_BYTES", "2KiB");
  EXPECT_EQ(Parse({"--model=/m"}).options.engine.kv_bytes, 2048);
  const ConfigText file("kv_device_bytes = 7\n");
  EXPECT_EQ(Parse({"--model=/m", file.flag()}).options.engine.kv_bytes, 2048);
}

TEST(ConfigSources, SwitchesAreTrueOrFalse) {
  for (const bool on : {false, true}) {
    const std::string text = on ? "true" : "false";
    const ConfigText file("log-json = " + text + "\n");
    EXPECT_EQ(Parse({"--model=/m", file.flag()}).options.log_json, on);
    const Variable variable("FOLIO_LOG_JSON", text);
    EXPECT_EQ(Parse({"--model=/m"}).options.log_json, on);
  }
  const ConfigText file("log-json = \"yes\"\n");
  EXPECT_NE(Refusal({"--model=/m", file.flag()}).find("log-json must be true or false"),
            std::string::npos);
  const Variable variable("FOLIO_LOG_JSON", "perhaps");
  EXPECT_NE(Refusal({"--model=/m"}).find("environment variable FOLIO_LOG_JSON: "),
            std::string::npos);
}

TEST(ConfigSources, AFlagOfSeveralValuesIsAListOrASeparatedVariable) {
  const ConfigText file("lora = [\"poet=/a;b\", \"clerk=/c\"]\n");
  const auto& from_file = Parse({"--model=/m", file.flag()}).options.engine.adapters;
  ASSERT_EQ(from_file.size(), 2u);
  EXPECT_EQ(from_file[0].dir, "/a;b");
  const Variable variable("FOLIO_LORA", "poet=/a;clerk=/c");
  const auto& from_variable = Parse({"--model=/m"}).options.engine.adapters;
  ASSERT_EQ(from_variable.size(), 2u);
  EXPECT_EQ(from_variable[1].name, "clerk");
}

struct BadFile {
  const char* text;
  const char* message;
};
class BadFiles : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, AreRefusedByPlaceAndReason) {
  const ConfigText file(GetParam().text);
  const std::string error = Refusal({"--model=/m", file.flag()});
  EXPECT_NE(error.find(file.path() + GetParam().message), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFiles,
    ::testing::Values(
        BadFile{"threads = 1\nkv-byte = 1\n", ", line 2: there is no key 'kv-byte'"},
        BadFile{"[limits]\nmax-documents = 1\n", ", line 1: there is no key 'limits'"},
        BadFile{"[threads]\n", ", line 1: threads must be a string or a number"},
        BadFile{"kv-bytes = 1\nkv_bytes = 2\n", ", line 2: --kv-bytes is set twice"},
        BadFile{"kv-bytes = 1\nkv-device-bytes = 2\n", ", line 2: --kv-device-bytes is set twice"},
        BadFile{"threads = 1\nthreads = 2\n", ", line 2: "},
        BadFile{"threads = true\n", ", line 1: threads must be a string or a number"},
        BadFile{"threads = [1]\n", ", line 1: threads must be a string or a number"},
        BadFile{"threads = 1979-05-27\n", ", line 1: threads must be a string or a number"},
        BadFile{"threads = 1.5\n", ", line 1: "}, BadFile{"threads = \"many\"\n", ", line 1: "},
        BadFile{"lora = [1979-05-27]\n", ", line 1: lora must be a string or a list"},
        BadFile{"threads\n", ", line 1: "}, BadFile{"model = \"/m\n", ", line 1: "},
        BadFile{"config = \"other.toml\"\n", ", line 1: there is no key 'config'"},
        BadFile{"print-config = true\n", ", line 1: there is no key 'print-config'"},
        BadFile{"help = true\n", ", line 1: there is no key 'help'"}));

TEST(ConfigSources, AKeyIsCheckedEvenWhereItDecidesNothing) {
  const ConfigText file("threads = true\n");
  EXPECT_NE(Refusal({"--model=/m", "--threads=1", file.flag()}).find("line 1"), std::string::npos);
}

TEST(ConfigSources, AFileThatIsNotThereIsNamed) {
  EXPECT_NE(Refusal({"--model=/m", "--config=/no/such.toml"}).find("/no/such.toml"),
            std::string::npos);
  EXPECT_NE(Refusal({"--model=/m", "--config=/"}).find("/: is a directory"), std::string::npos);
}

TEST(ConfigSources, WhatIsPrintedIsWhatHolds) {
  // A part of a limit is lowered to the whole, and so it is printed.
  const std::string text = Printed({"--max-connections=10", "--log-json"});
  EXPECT_NE(text.find("\nmax-connections-per-peer = 10\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nlog-json = true\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nthreads = 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nmodel = ''\n"), std::string::npos) << "as a form to fill in: " << text;
}

TEST(ConfigSources, AnyTextIsReadAgainAsItWasPrinted) {
  for (const char* system : {"Cite #1, please", "two\nlines\tand \"both\" 'quotes'", "\\n", "007",
                             "1.50", "caf\xc3\xa9", " ", "[1]", "true", "'''", "\x01"}) {
    const std::string flag = std::string("--document-system=") + system;
    const ConfigText file(
        Printed({"--model=/m", flag.c_str(), "--lora=a=/b#\"c\"", "--lora=d=/e"}));
    const Parsed parsed = Parse({file.flag()});
    ASSERT_EQ(parsed.result, ParseResult::kRun) << system;
    EXPECT_EQ(parsed.options.document_system, system);
    ASSERT_EQ(parsed.options.engine.adapters.size(), 2u);
    EXPECT_EQ(parsed.options.engine.adapters[0].dir, "/b#\"c\"");
  }
}

}  // namespace
}  // namespace folio::server
