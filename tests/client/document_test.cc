#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "client/cli/content_id.h"
#include "client/client.h"
#include "client/document_source.h"
#include "client/strategy.h"
#include "tests/client/fake_server.h"

namespace folio::client {
namespace {

using folio::testing::FakeServer;

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

TEST(DocumentSource, FileIsReadInPieces) {
  const std::string path = ::testing::TempDir() + "/document_source_test.txt";
  std::ofstream(path) << "abcdef";
  const auto file = FileSource::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->size_bytes(), 6);
  EXPECT_EQ((*file)->Read(0, 4).value(), "abcd");
  EXPECT_EQ((*file)->Read(4, 4).value(), "ef");
  EXPECT_EQ((*file)->Read(6, 4).value(), "");
  std::ofstream(path) << "ab";
  EXPECT_TRUE(absl::IsDataLoss((*file)->Read(2, 2).status()));
  std::remove(path.c_str());
}

TEST(DocumentSource, WhatIsNoFileIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(FileSource::Open(::testing::TempDir() + "/none").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FileSource::Open(::testing::TempDir()).status()));
}

TEST(ContentId, DependsOnTextAndStrategyOnly) {
  const auto id = [](const std::string& text, const std::string& strategy) {
    std::optional<v1::AttentionStrategy> chosen;
    if (!strategy.empty()) chosen = *StrategyFromName(strategy);
    return cli::ContentId(TextSource(text), chosen).value();
  };
  EXPECT_EQ(id("text", "full"), id("text", "full"));
  EXPECT_NE(id("text", "full"), id("text", "long_heads"));
  EXPECT_NE(id("text", "full"), id("text", ""));
  EXPECT_NE(id("text", "full"), id("test", "full"));
  EXPECT_EQ(id("text", "full").size(), 44);
}

TEST(Strategy, NamesAndParametersAreReadable) {
  v1::AttentionStrategy strategy = *StrategyFromName("long_heads");
  strategy.mutable_long_heads()->set_chunk_size(16);
  strategy.mutable_long_heads()->set_attention_length(256);
  EXPECT_EQ(DescribeStrategy(strategy), "long_heads(chunk_size=16,attention_length=256)");
  EXPECT_EQ(DescribeStrategy(v1::AttentionStrategy()), "default");
  EXPECT_TRUE(absl::IsInvalidArgument(StrategyFromName("best").status()));
}

}  // namespace
}  // namespace folio::client
