// KV that was computed under one adapter is never read under another: in memory, and on disk over
// restarts.
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/adapter_files.h"
#include "tests/engine/stored_documents_fixture.h"

namespace folio::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AdapterDocuments : public StoredDocuments {
 protected:
  AdapterDocuments() {
    options_.adapters = {{"poet", dir_.path() + "/poet"}, {"clerk", dir_.path() + "/clerk"}};
    WriteAdapter("poet", 1);
    WriteAdapter("clerk", 500);
    Restart();
  }
  void WriteAdapter(const std::string& name, uint64_t seed) {
    const ModelConfig config = *LoadModelConfig(options_.model_dir);
    AdapterFiles(config, 4, seed).Write(dir_.path() + "/" + name);
  }
  AttentionSpec Under(const std::string& adapter) const {
    return *engine_->ResolveAttention({{"full", {}}, {}, {adapter, ""}}, {});
  }
  void UploadUnder(const std::string& id, const std::string& adapter) {
    const auto text = std::make_shared<Text>(StoredText{id, "secret", 1700, 4321, true, "", 0});
    const DocumentHandle handle = engine_->OpenDocument(id, Under(adapter), text, {})->handle;
    const auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->FollowDocument(handle, sink).ok());
    EXPECT_TRUE(engine_->AppendToDocument(handle, TokensOf(3), 4321).ok());
    EXPECT_TRUE(engine_->FinishDocument(handle).ok());
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    EXPECT_TRUE(WaitUntilSaved(id).saved);
  }
  struct Answer {
    std::string text;
    int64_t cached_tokens = -1;
  };
  Answer AskUnder(const std::string& id, const std::string& adapter) {
    GenerateSpec spec;
    spec.tokens = {5, 6, 7, 8, 9};
    spec.stop.max_new_tokens = 8;
    spec.stop.ignore_eos = true;
    spec.document = engine_->GetDocument(id)->handle;
    spec.attention = Under(adapter);
    return AnswerTo(std::move(spec));
  }
  // The same text as one prompt.
  Answer AskAtOnce(const std::string& adapter) {
    GenerateSpec spec;
    spec.tokens = TokensOf(3);
    spec.tokens.insert(spec.tokens.end(), {5, 6, 7, 8, 9});
    spec.stop.max_new_tokens = 8;
    spec.stop.ignore_eos = true;
    spec.attention = Under(adapter);
    return AnswerTo(std::move(spec));
  }
  Answer AnswerTo(GenerateSpec spec) {
    const auto sink = std::make_shared<Recorder>();
    const auto submitted = engine_->Submit(std::move(spec), sink);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    if (!submitted.ok()) return {};
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    if (!sink->completed().has_value()) return {};
    return {sink->text(), sink->completed()->usage.cached_tokens};
  }
};

TEST_F(AdapterDocuments, AQuestionUnderAnotherAdapterDoesNotReadTheCacheOfTheFirst) {
  UploadUnder("book", "poet");
  EXPECT_EQ(engine_->GetDocument("book")->attention.adapter.name, "poet");
  std::set<std::string> texts;
  for (const char* adapter : {"clerk", "", "poet"}) {
    const int64_t before = engine_->Stats().prefill_tokens;
    const Answer answer = AskUnder("book", adapter);
    const bool own = std::string(adapter) == "poet";
    EXPECT_EQ(answer.cached_tokens, own ? kDocumentTokens : 0) << adapter;
    EXPECT_EQ(answer.text, AskAtOnce(adapter).text) << adapter;
    EXPECT_GE(engine_->Stats().prefill_tokens - before, own ? 5 : kDocumentTokens + 5);
    // It stays beside the other.
    EXPECT_EQ(AskUnder("book", adapter).cached_tokens, kDocumentTokens) << adapter;
    texts.insert(answer.text);
  }
  EXPECT_EQ(texts.size(), 3u) << "the adapters of this test change nothing";
}

TEST_F(AdapterDocuments, AreReadAgainAfterARestartWithTheSameFiles) {
  UploadUnder("book", "poet");
  const Answer before = AskUnder("book", "poet");
  Restart();
  EXPECT_EQ(engine_->GetDocument("book")->attention, Under("poet"));
  const Answer after = AskUnder("book", "poet");
  EXPECT_EQ(after.text, before.text);
  EXPECT_EQ(after.cached_tokens, kDocumentTokens);
  EXPECT_EQ(engine_->Stats().prefill_tokens, 5);
}

TEST_F(AdapterDocuments, AreComputedAgainUnderOtherFilesOfTheSameName) {
  UploadUnder("book", "poet");
  const Answer before = AskUnder("book", "poet");
  engine_.reset();
  WriteAdapter("poet", 77);
  Restart();
  EXPECT_EQ(engine_->GetDocument("book")->attention, Under("poet"));
  const Answer after = AskUnder("book", "poet");
  EXPECT_EQ(after.text, AskAtOnce("poet").text);
  EXPECT_NE(after.text, before.text);
  EXPECT_GE(engine_->Stats().prefill_tokens, kDocumentTokens + 5);
}

TEST_F(AdapterDocuments, KeepTheirTextWhileTheirAdapterIsNotLoaded) {
  UploadUnder("book", "poet");
  const Answer before = AskUnder("book", "poet");
  const std::vector<AdapterSource> both = options_.adapters;
  options_.adapters.erase(options_.adapters.begin());
  Restart();
  const DocumentInfo info = *engine_->GetDocument("book");
  EXPECT_EQ(info.state, DocumentState::kFailed);
  EXPECT_EQ(info.attention.adapter.name, "poet");
  EXPECT_EQ(info.known_tokens, kDocumentTokens);
  GenerateSpec spec;
  spec.tokens = {5};
  spec.document = info.handle;
  const auto refused = engine_->Submit(std::move(spec), std::make_shared<Recorder>());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("'poet'"), HasSubstr("--lora poet=DIR")));
  EXPECT_EQ(engine_->Stats().prefill_tokens, 0);
  EXPECT_TRUE(HasFilesOf("book"));

  options_.adapters = both;
  Restart();
  const Answer after = AskUnder("book", "poet");
  EXPECT_EQ(after.text, before.text);
  EXPECT_EQ(after.cached_tokens, kDocumentTokens);
}

TEST_F(AdapterDocuments, AnAdapterThatIsNotLoadedIsNotFound) {
  GenerateSpec spec;
  spec.tokens = {5, 6};
  spec.attention.adapter.name = "nobody";
  const auto refused = engine_->Submit(std::move(spec), std::make_shared<Recorder>());
  EXPECT_TRUE(absl::IsNotFound(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("'nobody'"), HasSubstr("folio info")));
}

}  // namespace
}  // namespace folio::test
