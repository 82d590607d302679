#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "folio/v1/inference.pb.h"
#include "server/generate_request.h"
#include "server/options.h"

// What the methods that answer differ in: how their requests ask for answers, and how events of
// these are sent.
namespace folio::server {

// Which answer of a call; of Generate the only one.
struct AnswerPlace {
  uint32_t question = 0;
  uint32_t answer = 0;
};

// Inference.Generate: one answer.
struct GenerateWire {
  using Request = v1::GenerateRequest;
  using Event = v1::GenerateEvent;
  static constexpr char kName[] = "Generate";

  // What all answers have in common.
  static const v1::GenerateRequest& Shared(const Request& request) { return request; }
  static grpc::Status Check(const Request&) { return grpc::Status::OK; }
  static int NumAnswers(const Request&) { return 1; }
  static int AnswersPerPrompt(const Request&) { return 1; }
  // The request of one of them, the same for all of one prompt; it may be made in *made.
  static const v1::GenerateRequest& Of(const Request& request, int, v1::GenerateRequest*) {
    return request;
  }
  // What is wrong with it, as a status of the call.
  static grpc::Status About(AnswerPlace, const grpc::Status& status) { return status; }
  // As MemoryToRead.
  static int64_t MemoryFor(const Request& request, const Tokenizer& tokenizer) {
    return MemoryToRead(request, tokenizer);
  }

  static AnswerPlace PlaceOf(const Request&, int) { return {}; }
  static Event Wrap(AnswerPlace, v1::GenerateEvent event) { return event; }
  // Folds an event into one of its kind that still waits for a slow reader.
  static bool Merge(const Event& from, Event* into);
};

// Inference.AskMany: several answers to each of several questions.
struct AskManyWire {
  using Request = v1::AskManyRequest;
  using Event = v1::AskManyEvent;
  static constexpr char kName[] = "AskMany";

  static const v1::GenerateRequest& Shared(const Request& request) { return request.shared(); }
  static grpc::Status Check(const Request& request);
  static int NumAnswers(const Request& request);
  static int AnswersPerPrompt(const Request& request);
  static const v1::GenerateRequest& Of(const Request& request, int answer,
                                       v1::GenerateRequest* made);
  static grpc::Status About(AnswerPlace place, const grpc::Status& status);
  static int64_t MemoryFor(const Request& request, const Tokenizer& tokenizer);

  static AnswerPlace PlaceOf(const Request& request, int answer);
  static Event Wrap(AnswerPlace place, v1::GenerateEvent event);
  static Event Failed(AnswerPlace place, const grpc::Status& status);
  static bool Merge(const Event& from, Event* into);
};

}  // namespace folio::server
