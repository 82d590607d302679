// The policy of FairShare without a model: a simulator that serves what tenants send, step by step.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/sched/fair_share.h"
#include "tests/engine/test_seed.h"

namespace folio {
namespace {

constexpr double kAllWork = 1e18;

// A prompt of so many tokens, and an answer of so many.
struct Request {
  Claim& claim() { return its_claim; }

  Claim its_claim;
  int64_t prompt = 0;
  int64_t answer = 0;
  int64_t submitted = 0;
  int64_t admitted = -1;
  int64_t answered = -1;  // its first token

  bool decoding() const { return prompt == 0; }
};

// Steps of one size. A place and room in the batch is all that requests need.
class Simulator {
 public:
  Simulator(int64_t step_tokens, int max_running)
      : step_tokens_(step_tokens), max_running_(max_running) {}

  TenantShare* Add(double weight = 1, int priority = 0) {
    TenantShare& share = tenants_.emplace_back();
    const std::string name = std::to_string(tenants_.size());
    share.Set(
        std::make_shared<Tenant>(Tenant{.name = name, .weight = weight, .priority = priority}));
    return &share;
  }

  Request* Submit(TenantShare* tenant, int64_t prompt, int64_t answer, int priority = 0) {
    Request& request = requests_.emplace_back();
    request.prompt = prompt;
    request.answer = answer;
    request.submitted = shares_.step();
    request.its_claim.tenant = tenant;
    request.its_claim.priority = priority;
    request.its_claim.remaining = static_cast<double>(prompt);
    shares_.Join(&request.its_claim);
    waiting_.push_back(&request);
    return &request;
  }

  // Returns the tokens that it had.
  int64_t Step() {
    Admit();
    shares_.BeginStep();
    int64_t budget = step_tokens_;
    for (Request* request : running_) {
      if (!request->decoding() || budget == 0) continue;
      shares_.Charge(&request->its_claim, 1);
      if (request->answered < 0) request->answered = shares_.step();
      --request->answer;
      --budget;
    }
    budget -= Prefill(budget);
    running_.remove_if([](Request* one) { return one->decoding() && one->answer <= 0; });
    return step_tokens_ - budget;
  }

  int64_t step() const { return shares_.step(); }
  size_t num_waiting() const { return waiting_.size(); }
  const std::list<Request*>& running() const { return running_; }

 private:
  void Admit() {
    shares_.TakeTurns({&running_, &returning_}, &waiting_);
    while (!returning_.empty() && std::ssize(running_) < max_running_) Move(&returning_, &running_);
    while (!waiting_.empty()) {
      if (std::ssize(running_) >= max_running_) {
        Request* const gives_way = FairShare::WhoGivesWay(waiting_.front(), running_);
        if (gives_way == nullptr) return;
        running_.remove(gives_way);
        returning_.push_back(gives_way);
      }
      waiting_.front()->admitted = shares_.step();
      Move(&waiting_, &running_);
    }
  }
  static void Move(std::list<Request*>* from, std::list<Request*>* to) {
    to->splice(to->end(), *from, from->begin());
  }

  int64_t Prefill(int64_t budget) {
    std::vector<Claim*> claims;
    std::vector<Request*> parts;
    for (Request* request : running_) {
      if (request->decoding()) continue;
      request->its_claim.remaining = static_cast<double>(request->prompt);
      request->its_claim.part = std::ssize(parts);
      parts.push_back(request);
      claims.push_back(&request->its_claim);
    }
    int64_t given = 0;
    shares_.Distribute(claims, budget, kAllWork, [&](Claim* claim, int64_t most) {
      Request* const request = parts[static_cast<size_t>(claim->part)];
      const int64_t taken = std::min(most, request->prompt);
      request->prompt -= taken;
      given += taken;
      return taken;
    });
    return given;
  }

  const int64_t step_tokens_;
  const int max_running_;
  FairShare shares_;
  std::deque<TenantShare> tenants_;
  std::deque<Request> requests_;
  std::list<Request*> waiting_, running_, returning_;
};

constexpr int64_t kStepTokens = 64;
constexpr int kPlaces = 8;
constexpr int kSteps = 100'000;

// Keeps so many requests of a tenant in the queue.
class Flood {
 public:
  Flood(Simulator* simulator, TenantShare* tenant, int64_t prompt, int64_t answer)
      : simulator_(simulator), tenant_(tenant), prompt_(prompt), answer_(answer) {}
  void Refill(size_t count) {
    std::erase_if(open_, [](Request* one) { return one->decoding() && one->answer <= 0; });
    while (open_.size() < count) open_.push_back(simulator_->Submit(tenant_, prompt_, answer_));
  }

 private:
  Simulator* const simulator_;
  TenantShare* const tenant_;
  const int64_t prompt_;
  const int64_t answer_;
  std::vector<Request*> open_;
};

class Fairness : public testing::Test {
 protected:
  // Work of each tenant after all steps, with whatever they send.
  static double Share(const TenantShare& one, const TenantShare& other) {
    return one.served / (one.served + other.served);
  }
  Simulator simulator_{kStepTokens, kPlaces};
};

TEST_F(Fairness, EqualWeightsHaveEqualWorkWhateverTheySend) {
  TenantShare* const a = simulator_.Add();
  TenantShare* const b = simulator_.Add();
  Flood long_prompts(&simulator_, a, 5000, 20);
  Flood short_ones(&simulator_, b, 40, 100);
  for (int n = 0; n < kSteps; ++n) {
    long_prompts.Refill(20);
    short_ones.Refill(20);
    ASSERT_EQ(simulator_.Step(), kStepTokens) << "at step " << n;  // nothing is left idle
  }
  // Answers of b are bound by their places: what it does not ask for is a's.
  EXPECT_LE(b->served, 0.51 * kSteps * kStepTokens);
  EXPECT_GE(a->served, 0.49 * kSteps * kStepTokens);
}

TEST_F(Fairness, WorkIsSharedByWeight) {
  TenantShare* const a = simulator_.Add(1);
  TenantShare* const b = simulator_.Add(3);
  Flood of_a(&simulator_, a, 900, 10);
  Flood of_b(&simulator_, b, 1300, 10);
  for (int n = 0; n < kSteps; ++n) {
    of_a.Refill(20);
    of_b.Refill(20);
    ASSERT_EQ(simulator_.Step(), kStepTokens);
  }
  EXPECT_NEAR(Share(*b, *a), 0.75, 0.01);
}

TEST_F(Fairness, ManyTenantsHaveEqualShares) {
  constexpr int kTenants = 7;
  Simulator simulator(kStepTokens, 4 * kPlaces);
  std::vector<TenantShare*> tenants;
  std::vector<std::unique_ptr<Flood>> floods;
  for (int n = 0; n < kTenants; ++n) {
    tenants.push_back(simulator.Add());
    floods.push_back(std::make_unique<Flood>(&simulator, tenants.back(), 100 + 300 * n, 3));
  }
  for (int n = 0; n < kSteps; ++n) {
    for (auto& flood : floods) flood->Refill(5);
    ASSERT_EQ(simulator.Step(), kStepTokens);
  }
  for (const TenantShare* tenant : tenants) {
    EXPECT_NEAR(tenant->served, 1.0 * kSteps * kStepTokens / kTenants, 0.01 * kSteps * kStepTokens);
  }
}

// Steps until the first token of short questions that come now and then, ascending; beside them
// another tenant has so many prompts of 32k tokens in the queue.
std::vector<int64_t> WaitsOfShortQuestions(size_t flood_size) {
  Simulator simulator(kStepTokens, kPlaces);
  Flood flood(&simulator, simulator.Add(), 32'000, 50);
  TenantShare* const asker = simulator.Add();
  std::mt19937 random(test::TestSeed());
  std::vector<Request*> questions;
  for (int n = 0; n < kSteps; ++n) {
    flood.Refill(flood_size);
    if (random() % 50 == 0) questions.push_back(simulator.Submit(asker, 100, 5));
    const int64_t tokens = simulator.Step();
    EXPECT_TRUE(flood_size == 0 || tokens == kStepTokens);
  }
  std::vector<int64_t> waits;
  for (const Request* question : questions) {
    if (question->answered >= 0) waits.push_back(question->answered - question->submitted);
  }
  EXPECT_GT(waits.size(), 1000u);
  EXPECT_GE(waits.size() + 5, questions.size());
  std::sort(waits.begin(), waits.end());
  return waits;
}

TEST_F(Fairness, AShortQuestionWaitsHardlyLongerBesideTheFloodOfAnother) {
  const std::vector<int64_t> alone = WaitsOfShortQuestions(0);
  const std::vector<int64_t> beside = WaitsOfShortQuestions(100);
  const auto at = [](const std::vector<int64_t>& waits, double quantile) {
    return waits[static_cast<size_t>(quantile * static_cast<double>(waits.size() - 1))];
  };
  for (const double quantile : {0.5, 0.99, 1.0}) {
    EXPECT_LE(at(beside, quantile), 2 * at(alone, quantile) + 1) << "quantile " << quantile;
  }
}

TEST_F(Fairness, WhoWasIdleIsOwedNothing) {
  TenantShare* const a = simulator_.Add();
  TenantShare* const b = simulator_.Add();
  Flood of_a(&simulator_, a, 1000, 10);
  for (int n = 0; n < kSteps; ++n) {
    of_a.Refill(20);
    ASSERT_EQ(simulator_.Step(), kStepTokens);
  }
  EXPECT_EQ(a->served, 1.0 * kSteps * kStepTokens);
  // From now on it is half, not what was missed.
  const double before = a->served;
  Flood of_b(&simulator_, b, 1000, 10);
  constexpr int kFew = 100;
  for (int n = 0; n < kFew; ++n) {
    of_a.Refill(20);
    of_b.Refill(20);
    simulator_.Step();
  }
  EXPECT_NEAR(b->served, 0.5 * kFew * kStepTokens, 6 * kStepTokens);
  EXPECT_NEAR(a->served - before, 0.5 * kFew * kStepTokens, 6 * kStepTokens);
}

// Whatever a tenant has had while nobody else was there, it does not pay for later without bound.
TEST_F(Fairness, WhoAnsweredAloneIsNotLockedOutLater) {
  Simulator simulator(kStepTokens, 4 * kPlaces);
  TenantShare* const a = simulator.Add();
  TenantShare* const b = simulator.Add();
  for (int n = 0; n < 6; ++n) simulator.Submit(a, 1, 10'000);
  for (int n = 0; n < 5000; ++n) simulator.Step();
  Request* const of_a = simulator.Submit(a, 2000, 1);
  Flood of_b(&simulator, b, 3000, 1);
  while (of_a->answered < 0 && simulator.step() < 6000) {
    of_b.Refill(5);
    simulator.Step();
  }
  // Its answers are 6 of 64 tokens of a step, so its prompt has 26 of them at least.
  EXPECT_GE(of_a->answered, 0);
  EXPECT_LE(of_a->answered - of_a->submitted, 2000 / 26 + 20);
}

TEST_F(Fairness, PlacesAreSharedByWeight) {
  TenantShare* const a = simulator_.Add(1);
  TenantShare* const b = simulator_.Add(3);
  Flood of_a(&simulator_, a, 1, 50);
  Flood of_b(&simulator_, b, 1, 50);
  int64_t places_of_a = 0;
  for (int n = 0; n < kSteps; ++n) {
    of_a.Refill(20);
    of_b.Refill(20);
    simulator_.Step();
    for (Request* one : simulator_.running()) places_of_a += one->its_claim.tenant == a ? 1 : 0;
  }
  EXPECT_NEAR(1.0 * static_cast<double>(places_of_a) / kSteps, 2, 0.2);
}

TEST_F(Fairness, TheShortestPromptOfATenantComesFirst) {
  TenantShare* const tenant = simulator_.Add();
  const Request* const longer = simulator_.Submit(tenant, 6400, 1);
  const Request* const shorter = simulator_.Submit(tenant, 640, 1);
  while (longer->answered < 0) simulator_.Step();
  EXPECT_EQ(shorter->answered, 11);  // as if it were alone
  // 7040 tokens of prompts, and one of an answer.
  EXPECT_EQ(longer->answered, 112);
}

// Short ones go on coming, more than there is time for.
TEST_F(Fairness, ALongPromptIsNotStarvedByShortOnesOfItsTenant) {
  TenantShare* const tenant = simulator_.Add();
  Flood flood(&simulator_, tenant, 64, 1);
  const Request* const longer = simulator_.Submit(tenant, 6400, 1);
  while (longer->answered < 0 && simulator_.step() < kSteps) {
    flood.Refill(50);
    simulator_.Step();
  }
  // It lets about as much work pass as it is itself, and what was there when it came.
  EXPECT_GT(longer->answered, 101);
  EXPECT_LE(longer->answered, 2 * 100 + 2 * 50);
}

TEST_F(Fairness, PrioritiesOrderTheRequestsOfATenantAndNoneStarves) {
  TenantShare* const tenant = simulator_.Add();
  const Request* const later = simulator_.Submit(tenant, 640, 1, 50);
  const Request* const usual = simulator_.Submit(tenant, 640, 1, 0);
  const Request* const sooner = simulator_.Submit(tenant, 640, 1, -50);
  while (later->answered < 0) simulator_.Step();
  EXPECT_LT(sooner->answered, usual->answered);
  EXPECT_LT(usual->answered, later->answered);
  // Beside a flood of those that run sooner it comes all the same.
  Flood flood(&simulator_, tenant, 640, 1);
  const Request* const last = simulator_.Submit(tenant, 640, 1, 100);
  while (last->answered < 0 && simulator_.step() < kSteps) {
    flood.Refill(20);
    simulator_.Step();
  }
  EXPECT_GT(last->answered - last->submitted, 200);
  EXPECT_LE(last->answered - last->submitted, 1000);
}

TEST_F(Fairness, ATenantOfAnotherPriorityHasAHeadStartAndTheSameShare) {
  TenantShare* const usual = simulator_.Add(1, 0);
  TenantShare* const sooner = simulator_.Add(1, -100);
  TenantShare* const later = simulator_.Add(1, 100);
  Flood floods[] = {
      {&simulator_, usual, 700, 5}, {&simulator_, sooner, 700, 5}, {&simulator_, later, 700, 5}};
  for (int n = 0; n < 20; ++n) {
    floods[0].Refill(20);
    simulator_.Step();
  }
  const double before = usual->served;
  for (int n = 0; n < kSteps; ++n) {
    for (Flood& flood : floods) flood.Refill(20);
    simulator_.Step();
    if (n == 2) {
      EXPECT_GT(sooner->served, 2 * kStepTokens);
      EXPECT_EQ(later->served, 0);
    }
  }
  const double third = kSteps * kStepTokens / 3.0;
  EXPECT_NEAR(usual->served - before, third, 0.01 * third);
  EXPECT_NEAR(sooner->served, third, 0.01 * third);
  EXPECT_NEAR(later->served, third, 0.01 * third);
}

// More tenants than a step has tokens: each has its turn.
TEST_F(Fairness, TurnsGoRoundWhereAStepIsSmallerThanItsTenants) {
  Simulator simulator(3, 20);
  std::vector<TenantShare*> tenants;
  for (int n = 0; n < 20; ++n) {
    tenants.push_back(simulator.Add());
    simulator.Submit(tenants.back(), 1'000'000, 1);
  }
  for (int n = 0; n < 2000; ++n) ASSERT_EQ(simulator.Step(), 3);
  for (const TenantShare* tenant : tenants) EXPECT_NEAR(tenant->served, 300, 3);
}

// A token that costs more counts more.
TEST_F(Fairness, DeepTokensAreChargedByTheirCost) {
  FairShare shares;
  TenantShare tenants[2];
  Claim claims[2];
  int64_t tokens[2] = {0, 0};
  for (int n = 0; n < 2; ++n) {
    claims[n].tenant = &tenants[n];
    claims[n].part = n;
  }
  claims[1].cost = 4;
  for (int step = 0; step < 1000; ++step) {
    shares.BeginStep();
    Claim* both[] = {&claims[0], &claims[1]};
    shares.Distribute(both, kStepTokens, kAllWork, [&](Claim* claim, int64_t most) {
      tokens[claim->part] += most;
      return most;
    });
  }
  EXPECT_EQ(tokens[0] + tokens[1], 1000 * kStepTokens);
  EXPECT_NEAR(static_cast<double>(tokens[0]) / static_cast<double>(tokens[1]), 4, 0.1);
}

// What a step leaves of what it was owed, as a token costs more than that, is not kept.
TEST(FairShare, WhoWasAloneIsOwedNothingBeforeWhoComes) {
  FairShare shares;
  TenantShare flooder;
  TenantShare asker;
  const auto make = [](TenantShare* tenant, double remaining, double cost) {
    Claim claim;
    claim.tenant = tenant;
    claim.remaining = remaining;
    claim.cost = cost;
    return claim;
  };
  Claim shallow = make(&flooder, 1e6, 1);
  Claim deep = make(&flooder, 1e6, 3);
  for (int n = 0; n < 10; ++n) {
    std::vector<Claim*> alone{&shallow, &deep};
    shares.BeginStep();
    shares.Distribute(alone, 512, FairShare::WorkFor(alone, 512), [](Claim*, int64_t most) {
      return std::min<int64_t>(most, 256);  // of one text
    });
  }
  Claim question = make(&asker, 50, 1);
  std::vector<Claim*> claims{&shallow, &deep, &question};
  int64_t tokens = 0;
  shares.BeginStep();
  shares.Distribute(claims, 512, FairShare::WorkFor(claims, 512), [&](Claim* claim, int64_t most) {
    if (claim != &question) return most;
    const int64_t taken = std::min<int64_t>(most, 50 - tokens);
    tokens += taken;
    return taken;
  });
  EXPECT_EQ(tokens, 50);
}

// One that asks for little has it in a step that is no longer than that takes.
TEST(FairShare, AStepThatEndsWhatSomeAskForHasNoMoreForOthers) {
  TenantShare tenants[2];
  tenants[1].weight = 3;
  Claim claims[3];
  for (int n = 0; n < 3; ++n) claims[n].tenant = &tenants[n / 2];
  Claim* all[] = {&claims[0], &claims[1], &claims[2]};
  claims[0].remaining = claims[1].remaining = 1000;
  claims[2].remaining = 2000;
  EXPECT_GE(FairShare::WorkFor(all, 512), kAllWork);  // nobody can have all
  claims[2].remaining = 30;
  EXPECT_EQ(FairShare::WorkFor(all, 512), 40);  // 30 for a weight of 3
  EXPECT_GE(FairShare::WorkFor(all, 20), kAllWork);
  // All that a tenant asks for counts.
  claims[0].remaining = claims[1].remaining = 50;
  EXPECT_EQ(FairShare::WorkFor(all, 512), 400);
  EXPECT_EQ(FairShare::WorkFor(std::span(all).first(2), 512), 100);
}

TEST(FairShare, APartOfTheCacheIsKeptForThoseWhoHaveNone) {
  TenantShare share;
  EXPECT_TRUE(FairShare::LeavesRoom(share, 100, 100, 100));  // nobody's
  share.Set(std::make_shared<Tenant>(Tenant{.name = "a"}));
  EXPECT_TRUE(FairShare::LeavesRoom(share, 800, 800, 800));  // has none admitted
  share.admitted = 1;
  EXPECT_TRUE(FairShare::LeavesRoom(share, 300, 400, 800));
  EXPECT_FALSE(FairShare::LeavesRoom(share, 301, 400, 800));
}

}  // namespace
}  // namespace folio
