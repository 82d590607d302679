#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/client/fake_server.h"

namespace folio::client {
namespace {

using folio::testing::AnswerScript;
using folio::testing::FakeServer;
using folio::testing::NumberEvents;
using folio::testing::Script;
using ::testing::ElementsAre;
using Event = v1::GenerateEvent;

void IgnoreEvent(const Event&) {}

v1::GenerateRequest Prompt(const std::string& text) {
  v1::GenerateRequest request;
  request.set_prompt(text);
  return request;
}

TEST(Generate, GivesEventsInOrder) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "good day");
    Event queued;
    queued.mutable_queued()->set_position(3);
    Event heartbeat;
    heartbeat.mutable_heartbeat()->set_phase(v1::Heartbeat::PHASE_PREFILL);
    script.events.insert(script.events.begin() + 1, {queued, heartbeat});
    NumberEvents(&script.events);
    return script;
  };
  Client client(server.Connect());
  std::vector<Event::EventCase> kinds;
  std::string text;
  const absl::Status status = client.Generate(Prompt("hello"), {}, [&](const Event& event) {
    kinds.push_back(event.event_case());
    text += event.delta().text();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(text, " good day");
  EXPECT_THAT(kinds, ElementsAre(Event::kAccepted, Event::kQueued, Event::kHeartbeat,
                                 Event::kPrefill, Event::kDelta, Event::kDelta, Event::kCompleted));
}

TEST(Generate, LostEventIsDataLoss) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "good day");
    script.events.erase(script.events.begin() + 2);
    return script;
  };
  Client client(server.Connect());
  const absl::Status status = client.Generate(Prompt("hello"), {}, IgnoreEvent);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST(Generate, StreamWithoutCompletedIsDataLoss) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "good day");
    script.events.pop_back();
    return script;
  };
  Client client(server.Connect());
  EXPECT_TRUE(absl::IsDataLoss(client.Generate(Prompt("hello"), {}, IgnoreEvent)));
}

TEST(Generate, CancelTokenReachesTheServer) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest& request) {
    Script script = AnswerScript(request, "good day");
    script.events.pop_back();
    script.hang = true;
    return script;
  };
  Client client(server.Connect());
  CancelSource source;
  std::jthread other([&] {
    if (server.WaitForGenerate()) source.request_stop();
  });
  const absl::Status status =
      client.Generate(Prompt("hello"), {.cancel = source.get_token()}, IgnoreEvent);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(server.WaitForCancel());
}

TEST(Generate, TimeoutIsDeadlineExceeded) {
  FakeServer server;
  server.on_generate = [](const v1::GenerateRequest&) { return Script{{}, {}, true}; };
  Client client(server.Connect());
  const absl::Status status =
      client.Generate(Prompt("hello"), {.timeout = absl::Seconds(2)}, IgnoreEvent);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(server.WaitForCancel());
}

TEST(Generate, NobodyListeningIsUnavailable) {
  std::string target;
  {
    FakeServer server;
    target = server.target();
  }
  const auto client = Client::Connect({.target = target, .timeout = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsUnavailable(client.status())) << client.status();
}

}  // namespace
}  // namespace folio::client
