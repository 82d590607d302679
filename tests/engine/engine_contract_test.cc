// What every Engine promises (engine/runtime/engine.h): the same tests for the real one and for the
// fake one that the tests of the server talk to.
#include <ostream>
#include <thread>

#include "engine/runtime/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/event_recorder.h"
#include "tests/engine/random_caller.h"
#include "tests/engine/test_model.h"
#include "tests/engine/test_seed.h"
#include "tests/server/fake_engine.h"

namespace folio::test {
namespace {

struct Kind {
  const char* name;
  std::unique_ptr<Engine> (*make)(EngineOptions);
  // Lets a request that was submitted come to its end.
  void (*answer)(Engine*, RequestId);
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

std::unique_ptr<Engine> MakeReal(EngineOptions options) {
  options.model_dir = TestData("../models/folio-tiny");
  options.num_threads = 1;
  options.kv_bytes = int64_t{64} << 20;
  auto engine = Engine::Create(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::unique_ptr<Engine> MakeFake(EngineOptions options) {
  return std::make_unique<testing::FakeEngine>(options);
}

const Kind kKinds[] = {
    {"Real", MakeReal, [](Engine*, RequestId) {}},
    {"Fake", MakeFake,
     [](Engine* engine, RequestId id) {
       auto* fake = static_cast<testing::FakeEngine*>(engine);
       fake->Emit(DeltaEvent{"a", {5}, {}, {}}, id);
       fake->Emit(CompletedEvent{}, id);
     }},
};

class EngineContract : public ::testing::TestWithParam<Kind> {
 protected:
  EngineContract() {
    EngineOptions options;
    options.max_documents = 4;
    options.max_context_tokens = 5000;
    engine_ = GetParam().make(options);
  }

  DocumentInfo Open(const std::string& id) {
    auto document = engine_->OpenDocument(id, {}, nullptr, {});
    EXPECT_TRUE(document.ok()) << document.status();
    return *std::move(document);
  }
  std::shared_ptr<Recorder> Follow(const DocumentHandle& handle) {
    auto sink = std::make_shared<Recorder>();
    EXPECT_TRUE(engine_->FollowDocument(handle, sink).ok());
    return sink;
  }
  // A document that is ready.
  DocumentHandle Upload(const std::string& id, int num_tokens = 20) {
    const DocumentHandle handle = Open(id).handle;
    const auto sink = Follow(handle);
    EXPECT_TRUE(engine_->AppendToDocument(handle, Tokens(num_tokens), 0).ok());
    EXPECT_TRUE(engine_->FinishDocument(handle).ok());
    sink->WaitForEnd();
    EXPECT_TRUE(sink->completed().has_value()) << sink->status();
    return handle;
  }
  static std::vector<int32_t> Tokens(int count) { return std::vector<int32_t>(count, 5); }
  static GenerateSpec Spec(int prompt = 5, int max_new = 3) {
    GenerateSpec spec;
    spec.tokens = Tokens(prompt);
    spec.stop.max_new_tokens = max_new;
    spec.stop.ignore_eos = true;
    return spec;
  }
  static GenerateSpec About(const DocumentHandle& handle) {
    GenerateSpec spec = Spec();
    spec.document = handle;
    return spec;
  }
  absl::StatusCode SubmitCode(GenerateSpec spec) {
    const auto sink = std::make_shared<Recorder>();
    const absl::Status status = engine_->Submit(std::move(spec), sink).status();
    EXPECT_TRUE(status.ok() || !sink->ended());
    return status.code();
  }

  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Engines, EngineContract, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

TEST_P(EngineContract, ARequestEndsOnceWithCompleted) {
  const auto sink = std::make_shared<Recorder>();
  const auto id = engine_->Submit(Spec(), sink);
  ASSERT_TRUE(id.ok()) << id.status();
  GetParam().answer(engine_.get(), *id);
  sink->WaitForEnd();
  EXPECT_TRUE(sink->completed().has_value()) << sink->status();
  EXPECT_GT(sink->tokens(), 0);
  engine_->Cancel(*id, absl::CancelledError("too late"));
}

TEST_P(EngineContract, ABadRequestIsRefusedAndItsSinkHearsNothing) {
  EXPECT_EQ(SubmitCode(Spec(0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SubmitCode(Spec(5, 0)), absl::StatusCode::kInvalidArgument);
  GenerateSpec bad_token = Spec();
  bad_token.tokens[3] = engine_->info().shape.vocab_size;
  EXPECT_EQ(SubmitCode(bad_token), absl::StatusCode::kInvalidArgument);
  bad_token.tokens[3] = -1;
  EXPECT_EQ(SubmitCode(bad_token), absl::StatusCode::kInvalidArgument);
  GenerateSpec bad_strategy = Spec();
  bad_strategy.attention.strategy.name = "no such strategy";
  EXPECT_EQ(SubmitCode(bad_strategy), absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineContract, ACancelledRequestFailsWithTheReason) {
  const auto sink = std::make_shared<Recorder>();
  const auto id = engine_->Submit(Spec(5, 4000), sink);
  ASSERT_TRUE(id.ok()) << id.status();
  engine_->Cancel(*id, absl::CancelledError("the client is gone"));
  sink->WaitForEnd();
  EXPECT_EQ(sink->status(), absl::CancelledError("the client is gone"));
  engine_->Cancel(*id, absl::CancelledError("again"));
  engine_->Cancel(12345, absl::CancelledError("unknown"));
}

TEST_P(EngineContract, ARequestThatIsHeldBackEndsOnceItIsLetGoOn) {
  const auto sink = std::make_shared<Recorder>();
  const auto id = engine_->Submit(Spec(), sink);
  ASSERT_TRUE(id.ok()) << id.status();
  for (const RequestId one : {*id, *id, RequestId{12345}}) engine_->HoldBack(one);
  for (const RequestId one : {*id, *id, RequestId{12345}}) engine_->LetGoOn(one);
  GetParam().answer(engine_.get(), *id);
  sink->WaitForEnd();
  EXPECT_TRUE(sink->completed().has_value()) << sink->status();
  engine_->HoldBack(*id);  // it is over
  engine_->LetGoOn(*id);
}

TEST_P(EngineContract, ARequestThatIsHeldBackIsCancelledLikeAnyOther) {
  const auto sink = std::make_shared<Recorder>();
  const auto id = engine_->Submit(Spec(5, 4000), sink);
  ASSERT_TRUE(id.ok()) << id.status();
  engine_->HoldBack(*id);
  engine_->Cancel(*id, absl::CancelledError("the client is gone"));
  sink->WaitForEnd();
  EXPECT_EQ(sink->status(), absl::CancelledError("the client is gone"));
}

TEST_P(EngineContract, DrainingRefusesWhatIsNewAndLetsTheRestEnd) {
  const DocumentHandle document = Open("book").handle;
  const auto uploader = Follow(document);
  const auto sink = std::make_shared<Recorder>();
  const auto id = engine_->Submit(Spec(), sink);
  ASSERT_TRUE(id.ok()) << id.status();
  engine_->StopAdmission();
  EXPECT_EQ(SubmitCode(Spec()), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->OpenScore({}, {}, sink).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->OpenDocument("other", {}, nullptr, {}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->FollowDocument(document, sink).code(), absl::StatusCode::kUnavailable);
  GetParam().answer(engine_.get(), *id);
  sink->WaitForEnd();
  EXPECT_TRUE(sink->completed().has_value());
  EXPECT_TRUE(engine_->AppendToDocument(document, Tokens(3), 0).ok());
  EXPECT_TRUE(engine_->FinishDocument(document).ok());
  uploader->WaitForEnd();
  EXPECT_TRUE(uploader->completed().has_value());
}

TEST_P(EngineContract, WhatRunsFailsWithUnavailableWhenTheEngineGoes) {
  const auto request = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->Submit(Spec(5, 4000), request).ok());
  const auto stream = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->OpenScore({}, {}, stream).ok());
  const auto uploader = Follow(Open("book").handle);
  engine_.reset();
  for (const auto& sink : {request, stream, uploader}) {
    ASSERT_TRUE(sink->ended());
    EXPECT_EQ(sink->status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_P(EngineContract, AScoredStreamTellsEveryTokenButTheFirst) {
  const auto sink = std::make_shared<Recorder>();
  const auto id = engine_->OpenScore({}, {}, sink);
  ASSERT_TRUE(id.ok()) << id.status();
  for (int part = 0; part < 3; ++part) EXPECT_TRUE(engine_->AppendToScore(*id, Tokens(10)).ok());
  EXPECT_EQ(engine_->AppendToScore(*id, {-1}).code(), absl::StatusCode::kInvalidArgument);
  engine_->FinishScore(*id);
  sink->WaitForEnd();
  ASSERT_TRUE(sink->completed().has_value()) << sink->status();
  EXPECT_EQ(sink->num_scored(), 29);
  EXPECT_EQ(sink->completed()->usage.prompt_tokens, 30);
  // It is over; and others are unknown.
  for (const RequestId other : {*id, RequestId{12345}}) {
    EXPECT_TRUE(engine_->AppendToScore(other, Tokens(1)).ok());
    engine_->FinishScore(other);
    engine_->Cancel(other, absl::CancelledError("late"));
  }
}

TEST_P(EngineContract, ADocumentGoesThroughItsStates) {
  const DocumentInfo opened = Open("book");
  EXPECT_EQ(opened.handle.id, "book");
  EXPECT_EQ(opened.state, DocumentState::kUploading);
  EXPECT_FALSE(opened.attention.strategy.name.empty());
  EXPECT_EQ(Open("book").handle, opened.handle);
  const auto sink = Follow(opened.handle);
  EXPECT_TRUE(engine_->AppendToDocument(opened.handle, Tokens(30), 0).ok());
  EXPECT_EQ(engine_->GetDocument("book")->known_tokens, 30);
  EXPECT_TRUE(engine_->AppendToDocument(opened.handle, Tokens(10), 0).ok());
  EXPECT_EQ(engine_->GetDocument("book")->state, DocumentState::kUploading);
  EXPECT_TRUE(engine_->FinishDocument(opened.handle).ok());
  sink->WaitForEnd();
  EXPECT_TRUE(sink->completed().has_value());
  // Published before the event.
  const DocumentInfo ready = *engine_->GetDocument("book");
  EXPECT_EQ(ready.state, DocumentState::kReady);
  EXPECT_EQ(ready.known_tokens, 40);
  EXPECT_EQ(ready.prefilled_tokens, 40);
  EXPECT_EQ(ready.handle, opened.handle);
}

TEST_P(EngineContract, AFinishedUploadTakesNoMore) {
  const DocumentHandle document = Upload("book");
  EXPECT_EQ(Open("book").state, DocumentState::kReady);
  EXPECT_EQ(engine_->AppendToDocument(document, Tokens(1), 0).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->FinishDocument(document).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->FollowDocument(document, std::make_shared<Recorder>()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->GetDocument("book")->known_tokens, 20);
}

TEST_P(EngineContract, BadTokensAndEmptyDocumentsAreRefused) {
  const DocumentHandle document = Open("book").handle;
  EXPECT_EQ(engine_->FinishDocument(document).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->AppendToDocument(document, {5, -1}, 0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->AppendToDocument(document, Tokens(5001), 0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine_->GetDocument("book")->known_tokens, 0);
  EXPECT_EQ(engine_->GetDocument("book")->state, DocumentState::kUploading);
}

TEST_P(EngineContract, AQuestionNeedsAFinishedDocument) {
  const DocumentHandle document = Open("book").handle;
  EXPECT_EQ(SubmitCode(About(document)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SubmitCode(About({"other", 1})), absl::StatusCode::kNotFound);
  EXPECT_EQ(SubmitCode(About(Upload("ready"))), absl::StatusCode::kOk);
}

TEST_P(EngineContract, AFailedDocumentSaysWhyAndTakesNothing) {
  const DocumentHandle document = Open("book").handle;
  const auto sink = Follow(document);
  EXPECT_TRUE(engine_->AppendToDocument(document, Tokens(5), 0).ok());
  const absl::Status why = absl::InvalidArgumentError("not UTF-8");
  EXPECT_TRUE(engine_->FailDocument(document, why).ok());
  sink->WaitForEnd();
  EXPECT_EQ(sink->status(), why);
  const DocumentInfo failed = *engine_->GetDocument("book");
  EXPECT_EQ(failed.state, DocumentState::kFailed);
  EXPECT_EQ(failed.error, why);
  EXPECT_EQ(failed.prefilled_tokens, 0);
  EXPECT_EQ(failed.device_kv_bytes, 0);
  EXPECT_EQ(engine_->AppendToDocument(document, Tokens(1), 0).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->FinishDocument(document).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->FailDocument(document, why).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SubmitCode(About(document)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Open("book").handle, document);  // its id is taken until it is deleted
  EXPECT_TRUE(engine_->DeleteDocument(document).ok());
  EXPECT_NE(Open("book").handle, document);
}

TEST_P(EngineContract, DeletingADocumentEndsItsUpload) {
  const DocumentHandle document = Open("book").handle;
  const auto sink = Follow(document);
  EXPECT_TRUE(engine_->DeleteDocument(document).ok());
  sink->WaitForEnd();
  EXPECT_EQ(sink->status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(engine_->GetDocument("book").has_value());
}

// The handle of a deleted document never reaches another one of the same id.
TEST_P(EngineContract, WhatIsMeantForADeletedDocumentDoesNotReachItsSuccessor) {
  const DocumentHandle first = Open("book").handle;
  EXPECT_TRUE(engine_->AppendToDocument(first, Tokens(7), 0).ok());
  EXPECT_TRUE(engine_->DeleteDocument(first).ok());
  const DocumentHandle second = Open("book").handle;
  EXPECT_GT(second.incarnation, first.incarnation);
  const auto sink = Follow(second);
  EXPECT_TRUE(engine_->AppendToDocument(second, Tokens(4), 0).ok());

  const absl::Status no = absl::InternalError("not for the second one");
  EXPECT_EQ(engine_->AppendToDocument(first, Tokens(9), 0).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->FinishDocument(first).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->FailDocument(first, no).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->DeleteDocument(first).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(engine_->FollowDocument(first, std::make_shared<Recorder>()).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(SubmitCode(About(first)), absl::StatusCode::kNotFound);
  engine_->PauseDocument(first);

  EXPECT_EQ(engine_->GetDocument("book")->state, DocumentState::kUploading);
  EXPECT_EQ(engine_->GetDocument("book")->known_tokens, 4);
  EXPECT_TRUE(engine_->FinishDocument(second).ok());
  sink->WaitForEnd();
  EXPECT_TRUE(sink->completed().has_value()) << sink->status();
  EXPECT_EQ(engine_->GetDocument("book")->prefilled_tokens, 4);
}

TEST_P(EngineContract, APausedUploadGoesOnWithItsNextFollower) {
  const DocumentHandle document = Open("book").handle;
  const auto first = Follow(document);
  EXPECT_TRUE(engine_->AppendToDocument(document, Tokens(5), 0).ok());
  engine_->PauseDocument(document);
  const auto second = Follow(document);
  EXPECT_TRUE(engine_->AppendToDocument(document, Tokens(5), 0).ok());
  EXPECT_TRUE(engine_->FinishDocument(document).ok());
  second->WaitForEnd();
  EXPECT_TRUE(second->completed().has_value());
  EXPECT_FALSE(first->ended());
  EXPECT_EQ(engine_->GetDocument("book")->prefilled_tokens, 10);
}

TEST_P(EngineContract, ADocumentOfTooManyTokensIsRefusedByItsSize) {
  const auto attention = engine_->ResolveAttention({{"lm_infinite", {}}, {}}, {});
  ASSERT_TRUE(attention.ok()) << attention.status();
  EXPECT_TRUE(engine_->CheckDocumentSize(*attention, 5000).ok());
  EXPECT_EQ(engine_->CheckDocumentSize(*attention, 50'000'000).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineContract, ThereIsALimitOfDocuments) {
  for (const char* id : {"a", "b", "c", "d"}) Open(id);
  EXPECT_EQ(engine_->OpenDocument("e", {}, nullptr, {}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine_->DeleteDocument(Open("a").handle).ok());
  Open("e");
}

TEST_P(EngineContract, DocumentsAreListedInOrderAndCounted) {
  for (const char* id : {"c", "a", "d"}) Upload(id);
  Open("b");
  const auto page = engine_->ListDocuments("a", 2);
  ASSERT_EQ(page.size(), 2u);
  EXPECT_EQ(page[0].handle.id, "b");
  EXPECT_EQ(page[1].handle.id, "c");
  EXPECT_EQ(engine_->ListDocuments("", 10).size(), 4u);
  EXPECT_EQ(engine_->ListDocuments("d", 10).size(), 0u);
  EXPECT_EQ(engine_->CountDocuments(), (DocumentCounts{1, 0, 3, 0}));
  EXPECT_TRUE(
      engine_->FailDocument(engine_->GetDocument("b")->handle, absl::AbortedError("x")).ok());
  EXPECT_TRUE(engine_->DeleteDocument(engine_->GetDocument("c")->handle).ok());
  EXPECT_EQ(engine_->CountDocuments(), (DocumentCounts{0, 0, 2, 1}));
}

TEST_P(EngineContract, TheAttachmentStaysWithItsDocument) {
  struct Note final : DocumentAttachment {};
  const auto note = std::make_shared<Note>();
  const DocumentHandle document = engine_->OpenDocument("book", {}, note, {})->handle;
  EXPECT_EQ(engine_->OpenDocument("book", {}, std::make_shared<Note>(), {})->attachment, note);
  EXPECT_EQ(engine_->GetDocument("book")->attachment, note);
  EXPECT_TRUE(engine_->DeleteDocument(document).ok());
  EXPECT_EQ(Open("book").attachment, nullptr);
}

TEST_P(EngineContract, DocumentsHaveAttributesAndExpire) {
  const DocumentHandle book = Upload("book");
  const DocumentHandle other = Upload("other");
  const auto update = [&](const DocumentHandle& handle, auto change) {
    absl::Status done = absl::InternalError("nothing was said");
    const absl::Status ordered = engine_->UpdateDocument(
        handle, change, [&done](const absl::Status& status) { done = status; });
    EXPECT_EQ(done.code(), ordered.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInternal);
    return ordered.code();
  };
  EXPECT_EQ(update(book,
                   [](DocumentAttributes* one) {
                     one->labels["team"] = "law";
                     one->pinned = true;
                     one->ttl_us = 1;
                   }),
            absl::StatusCode::kOk);
  const DocumentAttributes attributes = engine_->GetDocument("book")->attributes;
  EXPECT_EQ(attributes.labels.at("team"), "law");
  EXPECT_GT(attributes.last_used_us, 0);
  EXPECT_TRUE(engine_->ExpiredDocuments().empty());
  EXPECT_EQ(update(book, [](DocumentAttributes* one) { one->pinned = false; }),
            absl::StatusCode::kOk);
  while (engine_->ExpiredDocuments().empty()) std::this_thread::yield();
  EXPECT_EQ(engine_->ExpiredDocuments(), std::vector{book});
  EXPECT_TRUE(engine_->DeleteDocument(other).ok());
  EXPECT_EQ(update(other, [](DocumentAttributes*) {}), absl::StatusCode::kNotFound);
}

TEST_P(EngineContract, AQuestionIsAUse) {
  const DocumentHandle book = Upload("book");
  const int64_t before = engine_->GetDocument("book")->attributes.last_used_us;
  const auto sink = std::make_shared<Recorder>();
  const auto id = engine_->Submit(About(book), sink);
  ASSERT_TRUE(id.ok()) << id.status();
  GetParam().answer(engine_.get(), *id);
  sink->WaitForEnd();
  EXPECT_GT(engine_->GetDocument("book")->attributes.last_used_us, before);
}

TEST_P(EngineContract, WhatManyCallersDoToAFewDocumentsIsNotMixed) {
  constexpr int kCallers = 4;
  constexpr int kSteps = 10000;
  const SaysTestSeed seed;
  std::vector<std::thread> threads;
  for (int n = 0; n < kCallers; ++n) {
    threads.emplace_back([this, n] {
      RandomCaller caller(engine_.get(), n);
      for (int step = 0; step < kSteps / kCallers; ++step) caller.Step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const DocumentInfo& document : engine_->ListDocuments("", 10)) {
    EXPECT_TRUE(engine_->DeleteDocument(document.handle).ok());
  }
  EXPECT_EQ(engine_->CountDocuments(), DocumentCounts{});
}

}  // namespace
}  // namespace folio::test
