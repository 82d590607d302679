#include "server/answer_wire.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "server/status_mapping.h"

namespace folio::server {
namespace {

// A waiting delta takes more text in up to this size.
constexpr size_t kMaxMergedBytes = 64 << 10;
constexpr int kMaxAnswers = 128;

// More are refused.
int PerQuestion(const v1::AskManyRequest& request) {
  return static_cast<int>(std::clamp(request.answers_per_question(), 1u, kMaxAnswers + 1u));
}

}  // namespace

// Text is added, of progress and signs of life only the newest matters. The number stays that of
// the waiting event.
bool GenerateWire::Merge(const v1::GenerateEvent& from, v1::GenerateEvent* into) {
  if (from.event_case() != into->event_case()) return false;
  const uint64_t sequence = into->sequence();
  switch (from.event_case()) {
    case v1::GenerateEvent::kDelta:
      if (from.delta().echo() || into->delta().echo()) return false;
      if (into->ByteSizeLong() > kMaxMergedBytes) return false;
      into->mutable_delta()->mutable_text()->append(from.delta().text());
      into->mutable_delta()->mutable_token_ids()->MergeFrom(from.delta().token_ids());
      into->mutable_delta()->mutable_logprobs()->MergeFrom(from.delta().logprobs());
      into->mutable_delta()->mutable_top_logprobs()->MergeFrom(from.delta().top_logprobs());
      return true;
    case v1::GenerateEvent::kQueued:
    case v1::GenerateEvent::kPrefill:
    case v1::GenerateEvent::kHeartbeat:
      *into = from;
      into->set_sequence(sequence);
      return true;
    default:
      return false;
  }
}

grpc::Status AskManyWire::Check(const v1::AskManyRequest& request) {
  FieldViolations bad;
  if (request.questions().empty()) bad.push_back({"questions", "is empty"});
  const uint64_t answers = uint64_t{static_cast<uint32_t>(request.questions_size())} *
                           std::max(1u, request.answers_per_question());
  if (answers > kMaxAnswers) {
    bad.push_back({"questions", absl::StrCat("ask for ", answers, " answers with ",
                                             "answers_per_question, the limit is ", kMaxAnswers)});
  }
  const v1::GenerateRequest& shared = request.shared();
  if (shared.has_prompt() || shared.has_prompt_token_ids()) {
    bad.push_back({"shared.input", "must be a document or unset: prompts are `questions`"});
  }
  if (shared.document().question_case() != v1::DocumentQuery::QUESTION_NOT_SET ||
      !shared.document().history().empty() || !shared.history().empty()) {
    bad.push_back({"shared", "must have no question and no history: these are in `questions`"});
  }
  return BadFields(bad);
}

int AskManyWire::AnswersPerPrompt(const v1::AskManyRequest& request) {
  return PerQuestion(request);
}

int AskManyWire::NumAnswers(const v1::AskManyRequest& request) {
  return request.questions_size() * PerQuestion(request);
}

AnswerPlace AskManyWire::PlaceOf(const v1::AskManyRequest& request, int answer) {
  const int per_question = PerQuestion(request);
  return {static_cast<uint32_t>(answer / per_question),
          static_cast<uint32_t>(answer % per_question)};
}

const v1::GenerateRequest& AskManyWire::Of(const v1::AskManyRequest& request, int answer,
                                           v1::GenerateRequest* made) {
  const AnswerPlace place = PlaceOf(request, answer);
  const v1::ManyQuestion& question = request.questions(static_cast<int>(place.question));
  *made = request.shared();
  if (made->has_document()) {
    *made->mutable_document()->mutable_history() = question.history();
    if (question.has_token_ids()) {
      *made->mutable_document()->mutable_token_ids() = question.token_ids();
    } else {
      made->mutable_document()->set_text(question.text());
    }
  } else {
    *made->mutable_history() = question.history();
    if (question.has_token_ids()) {
      *made->mutable_prompt_token_ids() = question.token_ids();
    } else {
      made->set_prompt(question.text());
    }
  }
  return *made;
}

grpc::Status AskManyWire::About(AnswerPlace place, const grpc::Status& status) {
  return WithPrefix(absl::StrCat("questions[", place.question, "]: "), status);
}

int64_t AskManyWire::MemoryFor(const v1::AskManyRequest& request, const Tokenizer& tokenizer) {
  // The request of an answer is a copy, one after the other; their tokens are there together.
  const int64_t copy = MemoryToRead(request.shared(), tokenizer);
  int64_t bytes = 0;
  int64_t most = 0;
  for (const v1::ManyQuestion& question : request.questions()) {
    const auto num_ids = static_cast<size_t>(question.token_ids().ids_size());
    size_t text_bytes = question.text().size();
    for (const v1::ChatTurn& turn : question.history()) {
      text_bytes += turn.question().size() + turn.answer().size();
    }
    most = std::max(most, static_cast<int64_t>(question.SpaceUsedLong()));
    bytes += static_cast<int64_t>(sizeof(int32_t) * num_ids +
                                  tokenizer.encode_bytes_per_byte() * text_bytes);
  }
  return static_cast<int64_t>(request.SpaceUsedLong()) + copy + most +
         bytes * std::min(PerQuestion(request), kMaxAnswers);
}

v1::AskManyEvent AskManyWire::Wrap(AnswerPlace place, v1::GenerateEvent event) {
  v1::AskManyEvent out;
  out.set_question(place.question);
  out.set_answer(place.answer);
  *out.mutable_event() = std::move(event);
  return out;
}

v1::AskManyEvent AskManyWire::Failed(AnswerPlace place, const grpc::Status& status) {
  v1::AskManyEvent out;
  out.set_question(place.question);
  out.set_answer(place.answer);
  out.mutable_failed()->set_code(static_cast<uint32_t>(status.error_code()));
  out.mutable_failed()->set_message(status.error_message());
  return out;
}

bool AskManyWire::Merge(const v1::AskManyEvent& from, v1::AskManyEvent* into) {
  return from.has_event() && into->has_event() && from.question() == into->question() &&
         from.answer() == into->answer() &&
         GenerateWire::Merge(from.event(), into->mutable_event());
}

}  // namespace folio::server
