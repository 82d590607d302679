#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "tests/client/fake_server.h"

extern char** environ;

namespace folio::cli {
namespace {

using folio::testing::AnswerScript;
using folio::testing::FakeServer;
using folio::testing::Script;

// Starts the built `folio` with these arguments.
pid_t Spawn(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FOLIO_CLI_BINARY);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  return posix_spawn(&child, FOLIO_CLI_BINARY, nullptr, nullptr, argv.data(), environ) == 0 ? child
                                                                                            : -1;
}

TEST(Interrupt, CtrlCCancelsTheCallAndExits130) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "good day");
    script.events.pop_back();
    script.hang = true;
    return script;
  };
  const pid_t child = Spawn({"--server", server.target(), "ask", "--question", "hello"});
  ASSERT_GT(child, 0);
  ASSERT_TRUE(server.WaitForGenerate());
  kill(child, SIGINT);
  EXPECT_TRUE(server.WaitForCancel());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

}  // namespace
}  // namespace folio::cli
