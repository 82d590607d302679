#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/client.h"
#include "tests/client/fake_server.h"

namespace folio::client {
namespace {

using folio::testing::FakeServer;
using ::testing::ElementsAre;

// Parts of 4 bytes, and no waiting between attempts.
UploadOptions FastOptions() {
  UploadOptions options;
  options.part_bytes = 4;
  options.retry.initial_delay = absl::ZeroDuration();
  options.retry.max_delay = absl::ZeroDuration();
  return options;
}

void IgnoreEvent(const v1::UploadDocumentEvent&) {}

TEST(Upload, SendsTheTextInPartsAndReportsProgress) {
  FakeServer server;
  Client client(server.Connect());
  std::vector<uint64_t> acks;
  bool saw_progress = false;
  UploadOptions options = FastOptions();
  options.document_id = "story";
  options.display_name = "A story";
  const auto document =
      client.UploadDocument(TextSource("one two!"), options, [&](const auto& event) {
        if (event.has_ack()) acks.push_back(event.ack().next_offset());
        saw_progress = saw_progress || event.has_progress();
      });
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(document->document_id(), "story");
  EXPECT_EQ(document->token_count(), 2);
  EXPECT_EQ(document->display_name(), "A story");
  EXPECT_THAT(acks, ElementsAre(4, 8));
  EXPECT_TRUE(saw_progress);
  EXPECT_EQ(server.documents()["story"].text, "one two!");
  EXPECT_EQ(server.headers().at(0).size_bytes(), 8u);
}

TEST(Upload, ResumesABrokenStreamAtTheNextOffset) {
  FakeServer server;
  server.break_uploads_at = {4, 12};
  Client client(server.Connect());
  std::vector<uint64_t> created;
  const auto document =
      client.UploadDocument(TextSource("abcdefghijklmnop"), FastOptions(), [&](const auto& event) {
        if (event.has_created()) created.push_back(event.created().next_offset());
      });
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_THAT(created, ElementsAre(0, 4, 12));
  // No part was sent twice, and the id was kept.
  EXPECT_THAT(server.chunk_offsets(), ElementsAre(0, 4, 8, 12));
  for (const v1::DocumentHeader& header : server.headers()) {
    EXPECT_EQ(header.document_id(), document->document_id());
  }
  EXPECT_EQ(server.documents()[document->document_id()].text, "abcdefghijklmnop");
}

TEST(Upload, FollowsANextOffsetThatWentBack) {
  FakeServer server;
  server.break_uploads_at = {12, 16};
  server.lose_bytes = 8;
  Client client(server.Connect());
  std::vector<uint64_t> created;
  const auto document =
      client.UploadDocument(TextSource("abcdefghijklmnop"), FastOptions(), [&](const auto& event) {
        if (event.has_created()) created.push_back(event.created().next_offset());
      });
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_THAT(created, ElementsAre(0, 4, 8));
  EXPECT_EQ(server.documents()[document->document_id()].text, "abcdefghijklmnop");
}

// A proxy that routes by id must see it from the first call on.
TEST(Upload, WithoutAnIdTheClientMakesOneUp) {
  FakeServer server;
  Client client(server.Connect());
  const auto first = client.UploadDocument(TextSource("text"), FastOptions(), IgnoreEvent);
  const auto second = client.UploadDocument(TextSource("text"), FastOptions(), IgnoreEvent);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_NE(first->document_id(), second->document_id());
  EXPECT_THAT(server.routes(), ElementsAre("UploadDocument " + first->document_id(),
                                           "UploadDocument " + second->document_id()));
}

TEST(Upload, ProgressStartsTheCountOfFailuresAgain) {
  FakeServer server;
  // Every stream breaks after its first part.
  server.break_uploads_at = std::vector<uint64_t>(100, 1);
  Client client(server.Connect());
  UploadOptions options = FastOptions();
  options.retry.max_failures = 3;
  // 8 parts of 4 bytes: each attempt gets one part further, so that 8 breaks are survived.
  const auto slow = client.UploadDocument(TextSource(std::string(32, 'x')), options, IgnoreEvent);
  EXPECT_TRUE(slow.ok()) << slow.status();
  EXPECT_EQ(server.headers().size(), 9);
}

TEST(Upload, UnreachableServerIsUnavailable) {
  std::string target;
  {
    FakeServer server;
    target = server.target();
  }
  Client client(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  UploadOptions options = FastOptions();
  options.retry.max_failures = 3;
  const auto document = client.UploadDocument(TextSource("text"), options, IgnoreEvent);
  EXPECT_TRUE(absl::IsUnavailable(document.status())) << document.status();
}

TEST(Upload, FinishedDocumentIsAnErrorUnlessItIsToBeReused) {
  FakeServer server;
  server.StoreDocument("story", "text", v1::Document::STATE_READY);
  Client client(server.Connect());
  UploadOptions options = FastOptions();
  options.document_id = "story";
  const auto refused = client.UploadDocument(TextSource("text"), options, IgnoreEvent);
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status())) << refused.status();
  options.reuse_existing = true;
  const auto reused = client.UploadDocument(TextSource("text"), options, IgnoreEvent);
  ASSERT_TRUE(reused.ok()) << reused.status();
  EXPECT_EQ(reused->document_id(), "story");
  const auto other = client.UploadDocument(TextSource("longer text"), options, IgnoreEvent);
  EXPECT_TRUE(absl::IsFailedPrecondition(other.status())) << other.status();
}

TEST(Upload, DetachedUploadReturnsBeforeThePrefillEnds) {
  FakeServer server;
  server.hold_prefill = true;
  Client client(server.Connect());
  UploadOptions options = FastOptions();
  options.detach = true;
  const auto document = client.UploadDocument(TextSource("one two"), options, IgnoreEvent);
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(document->state(), v1::Document::STATE_PREFILLING);
  EXPECT_TRUE(server.headers()[0].detach());
}

TEST(Upload, CancellationEndsAHeldPrefill) {
  FakeServer server;
  server.hold_prefill = true;
  Client client(server.Connect());
  CancelSource source;
  UploadOptions options = FastOptions();
  options.cancel = source.get_token();
  const auto document = client.UploadDocument(TextSource("one two"), options,
                                              [&source](const v1::UploadDocumentEvent& event) {
                                                if (event.has_progress()) source.request_stop();
                                              });
  EXPECT_TRUE(absl::IsCancelled(document.status())) << document.status();
}

TEST(Upload, SourceLongerOnTheServerIsRefused) {
  FakeServer server;
  server.StoreDocument("story", "a much longer text", v1::Document::STATE_UPLOADING);
  Client client(server.Connect());
  UploadOptions options = FastOptions();
  options.document_id = "story";
  const auto document = client.UploadDocument(TextSource("short"), options, IgnoreEvent);
  EXPECT_TRUE(absl::IsFailedPrecondition(document.status())) << document.status();
}

}  // namespace
}  // namespace folio::client
