#include "client/cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/attention_flags.h"
#include "client/cli/format.h"
#include "client/cli/progress_line.h"
#include "tests/client/cli_run.h"
#include "tests/client/fake_server.h"
#include "tests/scratch_dir.h"

namespace folio::cli {
namespace {

using folio::testing::CliRun;
using folio::testing::FakeServer;
using folio::testing::RunFolio;
using ::testing::HasSubstr;

TEST(Cli, WrongUsageIsExitCodeTwo) {
  FakeServer server;
  EXPECT_EQ(RunFolio(server, {}).code, kExitUsage);
  const CliRun missing = RunFolio(server, {"ask"});
  EXPECT_EQ(missing.code, kExitUsage);
  EXPECT_EQ(missing.err, "folio: --question is required (see --help)\n");
  const CliRun misplaced =
      RunFolio(server, {"ask", "--question", "x", "--strategy", "full:window=64"});
  EXPECT_EQ(misplaced.code, kExitUsage);
  EXPECT_EQ(misplaced.err, "folio: INVALID_ARGUMENT: full has no parameter 'window', only: none\n");
  EXPECT_EQ(RunFolio(server, {"--help"}).code, kExitOk);
}

TEST(Cli, PlanTellsTheWindowOfACheckpointAndTakesSizesWithUnits) {
  FakeServer server;
  const ScratchDir dir;
  dir.Write("config.json", R"({
    "architectures": ["MistralForCausalLM"], "vocab_size": 100, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 128})");
  const CliRun run = RunFolio(server, {"plan", dir.path(), "--kv-bytes=1GiB"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_THAT(run.out, HasSubstr("window        128 tokens in config.json"));
  const CliRun json = RunFolio(server, {"--json", "plan", dir.path()});
  EXPECT_EQ(nlohmann::json::parse(json.out)["plan"]["sliding_window"], 128);
}

TEST(Cli, RequestsListsWhatRuns) {
  FakeServer server;
  const CliRun run = RunFolio(server, {"requests"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_THAT(run.out, HasSubstr("req-1"));
  EXPECT_THAT(run.out, ::testing::ContainsRegex(
                           "req-4 +Generate +DECODE +5.0s +900 +17 +full +10.0.0.7 +book\n"));
  EXPECT_THAT(run.out, HasSubstr("1 more\n"));
  const CliRun two = RunFolio(server, {"requests", "--max", "2"});
  EXPECT_THAT(two.out, ::testing::Not(HasSubstr("req-3")));
  EXPECT_THAT(two.out, HasSubstr("3 more\n"));
  const CliRun json = RunFolio(server, {"--json", "requests", "--max=1"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["phase"], "PHASE_READING");
}

TEST(Cli, CancelSaysHowManyCallsItEnded) {
  FakeServer server;
  const CliRun run = RunFolio(server, {"cancel", "req-2"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_EQ(run.out, "1 cancelled\n");
  EXPECT_EQ(RunFolio(server, {"--json", "cancel", "req-2"}).out, "{\"num_cancelled\":1}\n");
  EXPECT_EQ(RunFolio(server, {"cancel", "req-9"}).code, kExitNotFound);
  EXPECT_EQ(RunFolio(server, {"cancel"}).code, kExitUsage);
}

TEST(Cli, UploadPrintsTheId) {
  FakeServer server;
  const ScratchDir dir;
  const std::string path = dir.Write("story.txt", "one two three");
  const CliRun run =
      RunFolio(server, {"upload", path, "--id", "story", "--strategy", "long_heads:chunk_size=16"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_EQ(run.out, "story\n");
  EXPECT_THAT(run.err, HasSubstr("3 tokens"));
  EXPECT_EQ(server.headers()[0].display_name(), "story.txt");
  EXPECT_EQ(server.headers()[0].strategy().long_heads().chunk_size(), 16);
  const CliRun again = RunFolio(server, {"upload", path, "--id", "story"});
  EXPECT_EQ(again.code, kExitState);
  EXPECT_EQ(again.err, "folio: ALREADY_EXISTS: the document is finished\n");
  EXPECT_EQ(RunFolio(server, {"upload", "/nonexistent"}).code, kExitFile);
}

TEST(Cli, UploadReadsStdinAndPipes) {
  FakeServer server;
  const CliRun run = RunFolio(server, {"upload", "-", "--id", "piped"}, "one two three");
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_EQ(server.documents()["piped"].text, "one two three");
  EXPECT_EQ(server.headers()[0].display_name(), "stdin");
  const ScratchDir dir;
  const std::string path = dir.Path("fifo");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0) << path;
  std::jthread writer([&path] { std::ofstream(path) << "four five"; });
  EXPECT_EQ(RunFolio(server, {"upload", path, "--id", "fifo"}).code, kExitOk);
  EXPECT_EQ(server.documents()["fifo"].text, "four five");
}

TEST(Cli, DocsAreListedShownAndDeleted) {
  FakeServer server;
  server.StoreDocument("story", "text", v1::Document::STATE_READY);
  EXPECT_THAT(RunFolio(server, {"docs"}).out, HasSubstr("story"));
  EXPECT_THAT(RunFolio(server, {"docs", "list"}).out, HasSubstr("READY"));
  EXPECT_THAT(RunFolio(server, {"docs", "show", "story"}).out, HasSubstr("state      READY"));
  const CliRun json = RunFolio(server, {"--json", "docs", "show", "story"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["state"], "STATE_READY");
  EXPECT_EQ(RunFolio(server, {"docs", "delete", "story"}).code, kExitOk);
  EXPECT_EQ(RunFolio(server, {"docs", "delete", "story"}).code, kExitNotFound);
}

TEST(Cli, DocsAreUpdatedAndWatched) {
  FakeServer server;
  const auto update = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"docs", "update", "story"});
    return RunFolio(server, flags);
  };
  const CliRun upload = RunFolio(
      server, {"upload", "-", "--id", "story", "--label", "team=law", "--ttl", "1h30m"}, "text");
  EXPECT_EQ(upload.code, kExitOk) << upload.err;
  EXPECT_THAT(RunFolio(server, {"docs", "show", "story"}).out,
              HasSubstr("label      team=law\nTTL        1h30m\n"));
  const CliRun updated =
      update({"--ttl", "0", "--pin", "--label", "year=1999", "--remove-label", "team"});
  EXPECT_EQ(updated.code, kExitOk) << updated.err;
  EXPECT_THAT(updated.out, HasSubstr("label      year=1999\nTTL        0\npinned     yes\n"));
  EXPECT_THAT(RunFolio(server, {"docs", "list", "--label", "year=1999"}).out, HasSubstr("story"));
  EXPECT_THAT(RunFolio(server, {"docs", "list", "--label", "year=2000"}).out,
              ::testing::Not(HasSubstr("story")));
  for (const char* bad : {"--label=team", "--label==x", "--ttl=soon", "--ttl=-1s", "--ttl=inf"}) {
    EXPECT_EQ(update({bad}).code, kExitUsage) << bad;
  }
  EXPECT_EQ(update({"--pin", "--unpin"}).code, kExitUsage);
  const CliRun watched = RunFolio(server, {"docs", "watch", "story"});
  EXPECT_EQ(watched.code, kExitOk);
  EXPECT_THAT(watched.out, HasSubstr("PREFILLING"));
  EXPECT_THAT(watched.out, HasSubstr("READY"));
  EXPECT_EQ(RunFolio(server, {"docs", "watch", "nothing"}).code, kExitNotFound);
}

TEST(Cli, InfoAndTokenizeAnswer) {
  FakeServer server;
  EXPECT_THAT(RunFolio(server, {"info"}).out, HasSubstr("trained length 64 tokens"));
  const CliRun tokens = RunFolio(server, {"tokenize", "one two"});
  EXPECT_EQ(tokens.err, "2 tokens\n");
  const CliRun piped = RunFolio(server, {"tokenize", "-", "--json"}, "one two three");
  EXPECT_EQ(nlohmann::json::parse(piped.out)["token_ids"].size(), 3);
}

TEST(Cli, EvalPrintsATableAndWritesCsv) {
  FakeServer server;
  const ScratchDir dir;
  const std::string csv = dir.Path("eval.csv");
  const CliRun run = RunFolio(server, {"eval", "passkey", "--strategies", "full,long_heads",
                                       "--lengths", "2,4", "--trials", "3", "--output", csv});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_THAT(run.out, HasSubstr("strategy          128        256"));
  EXPECT_THAT(run.out,
              HasSubstr("long_heads      100.0      100.0\n  95 %     43.9-100.0 43.9-100.0\n"));
  std::ifstream file(csv);
  std::string line;
  int num_lines = 0;
  while (std::getline(file, line)) ++num_lines;
  EXPECT_EQ(num_lines, 1 + 2 * 2 * 3);
}

TEST(Cli, EvalJsonHasTrialsAndASummary) {
  FakeServer server;
  const CliRun run = RunFolio(server, {"eval", "passkey", "--strategies", "full", "--tokens",
                                       "100,200", "--trials", "2", "--json"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  std::istringstream lines(run.out);
  std::vector<nlohmann::json> objects;
  for (std::string line; std::getline(lines, line);) objects.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(objects.size(), 5);
  EXPECT_TRUE(objects[0]["trial"].contains("answer"));
  EXPECT_EQ(objects[4]["summary"]["cells"].size(), 2);
  EXPECT_EQ(objects[4]["summary"]["cells"][0]["accuracy"], 1.0);
}

TEST(Cli, UnreachableServerHasItsOwnExitCode) {
  std::string target;
  {
    FakeServer server;
    target = server.target();
  }
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Console console{.in = in, .out = out, .err = err};
  client::CancelSource source;
  source.request_stop();
  EXPECT_EQ(RunCli({"--server", target, "info"}, console, source.get_token()), kExitInterrupted);
}

TEST(Progress, ShowsShareSpeedAndRemainingTime) {
  // 600 of 1000 tokens, 200 of them cached: 400 in 2 s are 200/s, 400 more need 2 s.
  EXPECT_EQ(
      RenderProgress({.label = "prefill", .done = 600, .total = 1000, .skipped = 200}, 2, 100),
      "prefill [==============>         ] 600/1000 tokens  200.0 tokens/s  2.00 s left");
  EXPECT_EQ(RenderProgress({.label = "upload", .unit = ProgressUnit::kBytes, .done = 2048}, 1, 100),
            "upload 2.0 KiB  2.0 KiB/s");
  EXPECT_EQ(RenderProgress({.label = "prefill", .done = 5, .total = 5}, 1, 12), "prefill [===");
}

TEST(Progress, IsDrawnOnTerminalsOnly) {
  std::istringstream in;
  std::ostringstream out;
  std::ostringstream err;
  Console console{.in = in, .out = out, .err = err};
  {
    ProgressLine line(console);
    line.Update({.label = "prefill", .done = 1, .total = 2});
  }
  EXPECT_EQ(err.str(), "");
  console.err_is_terminal = true;
  {
    ProgressLine line(console);
    line.Update({.label = "prefill", .done = 1, .total = 2});
  }
  EXPECT_THAT(err.str(), HasSubstr("1/2 tokens"));
  EXPECT_EQ(err.str().substr(err.str().size() - 4), "\r\x1b[K");
}

TEST(Format, NumbersAreReadable) {
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(FormatSeconds(0.0083), "8.3 ms");
  EXPECT_EQ(FormatSeconds(0.25), "0.25 s");
  EXPECT_EQ(FormatSeconds(12), "12 s");
  EXPECT_EQ(FormatSeconds(185), "3 min 05 s");
  EXPECT_EQ(FormatSeconds(7380), "2 h 03 min");
}

TEST(AttentionFlags, FillTheMessages) {
  const auto attention = ParseAttention(
      {.strategy = "lm_infinite:num_sinks=0,window=128", .position = "ntk:factor=2.5"});
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_TRUE(attention->strategy->lm_infinite().has_num_sinks());
  EXPECT_EQ(attention->strategy->lm_infinite().window(), 128);
  EXPECT_FALSE(attention->strategy->lm_infinite().has_distance_limit());
  EXPECT_EQ(attention->position->ntk().factor(), 2.5);
  EXPECT_FALSE(ParseAttention({})->strategy.has_value());
}

}  // namespace
}  // namespace folio::cli
