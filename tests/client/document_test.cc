#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cli/content_id.h"
#include "client/client.h"
#include "client/document_source.h"
#include "client/strategy.h"
#include "proto/method.h"
#include "tests/client/fake_server.h"
#include "tests/scratch_dir.h"

namespace folio::client {
namespace {

using folio::testing::FakeServer;
using ::testing::Each;
using ::testing::ElementsAre;

TEST(Documents, ListReadsAllPages) {
  FakeServer server;
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    server.StoreDocument(id, "text", v1::Document::STATE_READY);
  }
  Client client(server.Connect());
  const auto documents = client.ListDocuments();
  ASSERT_TRUE(documents.ok()) << documents.status();
  ASSERT_EQ(documents->size(), 5);
  EXPECT_EQ(documents->back().document_id(), "e");
}

TEST(Documents, MissingDocumentIsNotFound) {
  FakeServer server;
  Client client(server.Connect());
  EXPECT_TRUE(absl::IsNotFound(client.GetDocument("x").status()));
  EXPECT_TRUE(absl::IsNotFound(client.DeleteDocument("x")));
}

TEST(Documents, EachCallAboutOneNamesItForProxies) {
  FakeServer server;
  Client client(server.Connect());
  UploadOptions options;
  options.document_id = "story";
  options.reuse_existing = true;
  const auto ignore = [](const auto&) {};
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(client.UploadDocument(TextSource("text"), options, ignore).ok());
  }
  v1::GenerateRequest request;
  request.mutable_document()->set_document_id("story");
  EXPECT_TRUE(client.Generate(request, {}, ignore).ok());
  EXPECT_TRUE(client.GetDocument("story").ok());
  EXPECT_TRUE(client.DeleteDocument("story").ok());
  EXPECT_THAT(server.routes(),
              ElementsAre("UploadDocument story", "UploadDocument story", "GetDocument story",
                          "Generate story", "GetDocument story", "DeleteDocument story"));
}

// gRPC ends the process that sends metadata of other characters.
TEST(Documents, AnIdThatNoDocumentCanHaveIsNotSentAsMetadata) {
  FakeServer server;
  Client client(server.Connect());
  for (const std::string& id : {std::string("two\nlines"), std::string(65, 'a'), std::string()}) {
    EXPECT_TRUE(absl::IsNotFound(client.GetDocument(id).status())) << id;
  }
  EXPECT_THAT(server.routes(), Each("GetDocument without an id"));
}

TEST(Documents, AreUpdatedAndListedByLabels) {
  FakeServer server;
  Client client(server.Connect());
  UploadOptions options;
  options.document_id = "story";
  options.ttl = absl::Milliseconds(90'500);
  options.pinned = true;
  options.labels = {{"team", "law"}};
  const auto ignore = [](const auto&) {};
  ASSERT_TRUE(client.UploadDocument(TextSource("text"), options, ignore).ok());
  server.StoreDocument("other", "text", v1::Document::STATE_READY);
  v1::UpdateDocumentRequest request;
  request.set_document_id("story");
  request.set_pinned(false);
  const auto updated = client.UpdateDocument(request);
  ASSERT_TRUE(updated.ok()) << updated.status();
  EXPECT_EQ(updated->ttl().seconds(), 90);
  EXPECT_EQ(updated->ttl().nanos(), 500'000'000);
  EXPECT_FALSE(updated->pinned());
  EXPECT_EQ(client.ListDocuments({{"team", "law"}})->size(), 1u);
  EXPECT_EQ(client.ListDocuments({{"team", "sea"}})->size(), 0u);
  EXPECT_EQ(client.ListDocuments()->size(), 2u);
}

TEST(Documents, AreWatchedUntilTheyAreReady) {
  FakeServer server;
  server.StoreDocument("story", "text", v1::Document::STATE_READY);
  Client client(server.Connect());
  v1::WatchDocumentRequest request;
  request.set_document_id("story");
  std::vector<v1::Document::State> states;
  const auto last = client.WatchDocument(
      request, {}, [&](const v1::Document& document) { states.push_back(document.state()); });
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->state(), v1::Document::STATE_READY);
  EXPECT_THAT(states, ElementsAre(v1::Document::STATE_PREFILLING, v1::Document::STATE_READY));
  request.set_document_id("nothing");
  EXPECT_TRUE(absl::IsNotFound(client.WatchDocument(request, {}, [](const auto&) {}).status()));
  EXPECT_THAT(server.routes(), ElementsAre("WatchDocument story", "WatchDocument nothing"));
}

TEST(DocumentSource, FileIsReadInPieces) {
  const ScratchDir dir;
  const std::string path = dir.Write("text", "abcdef");
  const auto file = FileSource::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size_bytes(), 6);
  EXPECT_EQ((*file)->Read(0, 4).value(), "abcd");
  EXPECT_EQ((*file)->Read(4, 4).value(), "ef");
  EXPECT_EQ((*file)->Read(6, 4).value(), "");
  dir.Write("text", "ab");
  EXPECT_TRUE(absl::IsDataLoss((*file)->Read(2, 2).status()));
}

TEST(DocumentSource, WhatIsNoFileIsRefused) {
  const ScratchDir dir;
  EXPECT_TRUE(absl::IsNotFound(FileSource::Open(dir.Path("none")).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FileSource::Open(dir.path()).status()));
}

TEST(ContentId, DependsOnTextStrategyAndFormatOnly) {
  const auto id = [](const std::string& text, const std::string& strategy) {
    cli::Attention chosen;
    if (!strategy.empty()) chosen.strategy = *ParseStrategy(strategy);
    return cli::ContentIdOf(TextSource(text), chosen, {}).value().document_id;
  };
  const auto with = [](v1::PromptFormat format, std::optional<std::string> system) {
    return cli::ContentIdOf(TextSource("text"), {}, {format, std::move(system)})
        .value()
        .document_id;
  };
  EXPECT_EQ(with(v1::PROMPT_FORMAT_UNSPECIFIED, std::nullopt), id("text", ""));
  EXPECT_NE(with(v1::PROMPT_FORMAT_RAW, std::nullopt), id("text", ""));
  EXPECT_NE(with(v1::PROMPT_FORMAT_UNSPECIFIED, ""), id("text", ""));
  EXPECT_NE(with(v1::PROMPT_FORMAT_UNSPECIFIED, ""), with(v1::PROMPT_FORMAT_UNSPECIFIED, "a"));
  EXPECT_EQ(id("text", "full"), id("text", "full"));
  EXPECT_NE(id("text", "full"), id("text", "long_heads"));
  EXPECT_NE(id("text", "full"), id("text", ""));
  EXPECT_NE(id("text", "full"), id("test", "full"));
  EXPECT_EQ(id("text", "full").size(), 44);
}

TEST(Strategy, NamesAndParametersAreReadable) {
  v1::AttentionStrategy strategy = *ParseStrategy("long_heads");
  strategy.mutable_long_heads()->set_chunk_size(16);
  strategy.mutable_long_heads()->set_attention_length(256);
  EXPECT_EQ(DescribeMethod(strategy), "long_heads:chunk_size=16,attention_length=256");
  EXPECT_EQ(DescribeMethod(v1::AttentionStrategy()), "default");
  EXPECT_TRUE(absl::IsInvalidArgument(ParseStrategy("best").status()));
}

TEST(Strategy, TextIsReadBack) {
  for (const std::string text :
       {"full", "truncation:keep_tokens=7,side=center",
        "long_heads:scorer=representatives,share=group",
        "lm_infinite:num_sinks=0,top_tokens=5,top_all_rows=true", "rerope:scale_logits=false"}) {
    const auto strategy = ParseStrategy(text);
    ASSERT_TRUE(strategy.ok()) << strategy.status();
    EXPECT_EQ(DescribeMethod(*strategy), text);
  }
  for (const std::string text :
       {"plain", "yarn:factor=2.5,attention_factor=1.25", "dynamic_ntk:exact=true",
        "entropy_abf:base=1000,exempt_layers=0"}) {
    const auto position = ParsePosition(text);
    ASSERT_TRUE(position.ok()) << position.status();
    EXPECT_EQ(DescribeMethod(*position), text);
  }
}

TEST(Strategy, WhatIsWrongIsNamedWithWhatIsKnown) {
  const auto error = [](const std::string& text) {
    return std::string(ParseStrategy(text).status().message());
  };
  EXPECT_EQ(error("full:x=1"), "full has no parameter 'x', only: none");
  EXPECT_EQ(error("streaming:sinks=1"),
            "streaming has no parameter 'sinks', only: num_sinks, recent_tokens");
  EXPECT_EQ(error("streaming:num_sinks=-1"), "streaming.num_sinks is '-1', must be a whole number");
  EXPECT_EQ(error("truncation:side=up"),
            "truncation.side is 'up', must be one of left, right, center");
  EXPECT_EQ(error("lm_infinite:top_all_rows=2"),
            "lm_infinite.top_all_rows is '2', must be true or false");
  EXPECT_FALSE(ParseStrategy("named").ok());
}

// A method without a message goes by name, with numbers and names in two maps.
TEST(Method, WithoutAMessageKeepsItsParameters) {
  v1::AttentionStrategy strategy;
  v1::WriteMethod({"toy", {{"flag", true}, {"mode", "fast"}, {"window", int64_t{3}}}}, &strategy);
  EXPECT_EQ(strategy.named().choices().at("mode"), "fast");
  EXPECT_EQ(strategy.named().parameters().at("flag"), 1);
  EXPECT_EQ(DescribeMethod(strategy), "toy:flag=1,mode=fast,window=3");
}

// Clients of version 0.1.0 knew numbers only.
TEST(Method, NumbersByNameAreReadAsTheFieldsOfItsMessage) {
  v1::AttentionStrategy strategy;
  strategy.mutable_named()->set_name("long_heads");
  (*strategy.mutable_named()->mutable_parameters())["scorer"] = 3;
  (*strategy.mutable_named()->mutable_parameters())["chunk_size"] = 16;
  EXPECT_EQ(DescribeMethod(strategy), "long_heads:chunk_size=16,scorer=quest");
  (*strategy.mutable_named()->mutable_parameters())["scorer"] = 9;
  EXPECT_EQ(DescribeMethod(strategy), "long_heads:chunk_size=16,scorer=9");
}

TEST(Method, AValueThatItsFieldCannotHoldIsKeptByName) {
  v1::AttentionStrategy strategy;
  v1::WriteMethod({"long_heads", {{"scorer", "best"}}}, &strategy);
  EXPECT_EQ(strategy.named().name(), "long_heads");
  EXPECT_EQ(strategy.named().choices().at("scorer"), "best");
}

}  // namespace
}  // namespace folio::client
