#include "server/serve.h"

#include <folio/v1/control.grpc.pb.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/logging.h"
#include "tests/scratch_dir.h"
#include "tests/server/fake_engine.h"

namespace folio::server {
namespace {

using folio::testing::FakeEngine;
using ::testing::ExitedWithCode;

// Ends with what `end` does.
class EndingEngine final : public FakeEngine {
 public:
  explicit EndingEngine(const EngineOptions& options, std::function<void()> end)
      : FakeEngine(options), end_(std::move(end)) {}
  ~EndingEngine() override { end_(); }

 private:
  const std::function<void()> end_;
};

// Calls are refused before.
bool IsReady(const std::string& port_file) {
  std::ifstream file(port_file);
  const auto ports = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!ports.contains("grpc")) return false;
  const auto channel = grpc::CreateChannel(absl::StrCat("127.0.0.1:", ports["grpc"].get<int>()),
                                           grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::ServerInfo info;
  return v1::Control::NewStub(channel)->GetServerInfo(&context, {}, &info).ok();
}

// The test's process becomes a server: each runs in one of its own, that starts anew.
class Serving : public ::testing::Test {
 protected:
  Serving() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    options_.listen = "127.0.0.1:0";
    options_.metrics_listen = "off";
    if (dir_ != nullptr) setenv(kDirVariable, dir_->path().c_str(), /*overwrite=*/1);
    options_.port_file = absl::StrCat(std::getenv(kDirVariable), "/ports.json");
  }
  ~Serving() override {
    if (dir_ != nullptr) unsetenv(kDirVariable);
  }

  [[noreturn]] void Run(const EngineFactory& factory) {
    SetUpLogging("info", false);
    std::exit(Serve(options_, factory));
  }

  // From a thread of its own, once the server serves.
  void SignalOnceReady() {
    std::thread([port_file = options_.port_file] {
      while (!IsReady(port_file)) std::this_thread::yield();
      kill(getpid(), SIGTERM);
    }).detach();
  }

  // The engine's end is that of `end`, after a signal.
  EngineFactory Ending(std::function<void()> end) {
    return [this, end](const EngineOptions& options) -> absl::StatusOr<std::unique_ptr<Engine>> {
      SignalOnceReady();
      return std::make_unique<EndingEngine>(options, end);
    };
  }

  static constexpr char kDirVariable[] = "FOLIO_SERVE_TEST_DIR";
  // Null in the process that becomes a server, which ends before it could remove its own.
  const std::unique_ptr<ScratchDir> dir_ =
      std::getenv(kDirVariable) == nullptr ? std::make_unique<ScratchDir>() : nullptr;
  ServerOptions options_;
};

absl::StatusOr<std::unique_ptr<Engine>> Fake(const EngineOptions& options) {
  return std::make_unique<FakeEngine>(options);
}

TEST_F(Serving, EndsWith0AfterASignal) {
  EXPECT_EXIT(Run(Ending([] {})), ExitedWithCode(kExitDone), "");
}

// Returns when the process has taken the signal.
void SignalAndWait(int signal) {
  kill(getpid(), signal);
  sigset_t pending;
  do {
    std::this_thread::yield();
    sigpending(&pending);
  } while (sigismember(&pending, signal) == 1);
}

TEST_F(Serving, EndsWith0IfASignalComesAsItEnds) {
  EXPECT_EXIT(Run(Ending([] {
                SignalAndWait(SIGTERM);
                std::this_thread::sleep_for(std::chrono::milliseconds(100));  // still ending
              })),
              ExitedWithCode(kExitDone), "");
}

TEST_F(Serving, EndsWith5IfItHangsAsItEndsAndASignalComes) {
  EXPECT_EXIT(Run(Ending([] {
                SignalAndWait(SIGTERM);
                while (true) pause();
              })),
              ExitedWithCode(kExitHangs), "");
}

TEST_F(Serving, EndsWith2WhereItCannotListen) {
  options_.listen = "192.0.2.1:1";
  EXPECT_EXIT(Run(&Fake), ExitedWithCode(kExitCannotListen), "folio-server: .*192.0.2.1:1");
}

TEST_F(Serving, EndsWith3WithoutAModel) {
  const auto none = [](const EngineOptions&) -> absl::StatusOr<std::unique_ptr<Engine>> {
    return absl::NotFoundError("no such model");
  };
  EXPECT_EXIT(Run(none), ExitedWithCode(kExitCannotLoad), "folio-server: no such model");
}

TEST_F(Serving, EndsWith4WithoutMemoryForTheModel) {
  const auto none = [](const EngineOptions&) -> absl::StatusOr<std::unique_ptr<Engine>> {
    return absl::ResourceExhaustedError("the model needs 3 GiB");
  };
  EXPECT_EXIT(Run(none), ExitedWithCode(kExitNoMemory), "folio-server: the model needs 3 GiB");
}

TEST_F(Serving, EndsWith6IfTheDeviceFailsWhileItServes) {
  EXPECT_EXIT(Run([this](const EngineOptions& options) {
                std::thread([failed = options.on_device_failure, port_file = options_.port_file] {
                  while (!IsReady(port_file)) std::this_thread::yield();
                  failed(absl::UnavailableError("Xid 79"));
                }).detach();
                return Fake(options);
              }),
              ExitedWithCode(kExitDeviceFailed), "");
}

TEST_F(Serving, EndsWith6IfTheDeviceFailsAsTheModelIsLoaded) {
  EXPECT_EXIT(Run([](const EngineOptions& options) {
                options.on_device_failure(absl::UnavailableError("Xid 79"));
                while (true) pause();  // still loading when the signal comes
                return Fake(options);
              }),
              ExitedWithCode(kExitDeviceFailed), "");
}

// Of the first thread of that name.
int PolicyOf(const std::string& thread) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == thread) return sched_getscheduler(std::stoi(task.path().filename()));
  }
  return -1;
}

TEST_F(Serving, WhatServesCallsTakesNoProcessorFromWhatComputes) {
  EXPECT_EXIT(Run([](const EngineOptions&) -> absl::StatusOr<std::unique_ptr<Engine>> {
                // Named before they are in use; this thread starts those of the engine.
                for (const char* thread : {"listener", "event pump", "prompts"}) {
                  while (PolicyOf(thread) == -1) std::this_thread::yield();
                  if (PolicyOf(thread) != SCHED_BATCH) return absl::InternalError(thread);
                }
                if (sched_getscheduler(0) != SCHED_OTHER) return absl::InternalError("loader");
                return absl::NotFoundError("all as it should be");
              }),
              ExitedWithCode(kExitCannotLoad), "folio-server: all as it should be");
}

// What throws where nothing is expected to: the copy of it that the server keeps.
struct Throwing {
  Throwing() = default;
  Throwing(const Throwing&) { throw std::runtime_error("no such luck"); }
  Throwing(Throwing&&) = default;
  absl::StatusOr<std::unique_ptr<Engine>> operator()(const EngineOptions& options) {
    return Fake(options);
  }
};

TEST_F(Serving, EndsWith7ForAnExceptionThatNobodyExpects) {
  EXPECT_EXIT(Run(Throwing{}), ExitedWithCode(kExitFault), "folio-server: .*no such luck");
}

}  // namespace
}  // namespace folio::server
