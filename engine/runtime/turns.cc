#include "engine/runtime/turns.h"

#include "engine/runtime/generation.h"

namespace folio {
namespace {

void CountNone(const std::list<Generation*>& requests) {
  for (const Generation* request : requests) {
    if (request->sequence.share != nullptr) request->sequence.share->count = 0;
  }
}

// The requests of its client that were counted before.
int CountIn(const Generation& request) {
  return request.sequence.share == nullptr ? 0 : request.sequence.share->count++;
}

void CountAll(const std::list<Generation*>& requests) {
  for (const Generation* request : requests) CountIn(*request);
}

}  // namespace

void TakeTurns(std::initializer_list<const std::list<Generation*>*> admitted,
               std::list<Generation*>* waiting) {
  for (const auto* requests : admitted) CountNone(*requests);
  CountNone(*waiting);
  for (const auto* requests : admitted) CountAll(*requests);
  for (Generation* request : *waiting) request->turn = CountIn(*request);
  // Stable, and in place.
  waiting->sort([](const Generation* a, const Generation* b) { return a->turn < b->turn; });
}

Generation* WhoGivesWay(const Generation& request, const std::list<Generation*>& running) {
  if (request.sequence.share == nullptr) return nullptr;
  request.sequence.share->count = 0;
  CountNone(running);
  CountAll(running);
  if (request.sequence.share->count > 0) return nullptr;
  Generation* gives_way = nullptr;
  int most = 2;
  for (Generation* one : running) {
    if (one->sequence.share == nullptr || one->sequence.share->count < most) continue;
    most = one->sequence.share->count;
    gives_way = one;
  }
  return gives_way;
}

}  // namespace folio
