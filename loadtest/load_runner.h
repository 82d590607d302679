// Sends the requests of a run at their times.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "folio/v1/inference.grpc.pb.h"
#include "loadtest/arrivals.h"
#include "loadtest/generate_call.h"
#include "loadtest/options.h"
#include "loadtest/prompt_builder.h"
#include "loadtest/workload.h"

namespace folio::loadtest {

// One thread dispatches: it starts requests when they are due, whatever the state of the others
// (open loop) or as others end (closed loop), sends probes beside them, and cancels those that are
// to be cancelled. The streams are read by gRPC's own threads. Everything but OnCallDone belongs to
// the thread that calls Run().
class LoadRunner final : private CallObserver {
 public:
  // Of each connection.
  using Stubs = std::vector<std::unique_ptr<v1::Inference::Stub>>;

  // All arguments must outlive the runner.
  LoadRunner(const Stubs& stubs, const PromptBuilder& prompts, const Options& options);

  // Runs once, until the last stream has ended. The records are in the order in which the calls
  // ended.
  std::vector<CallRecord> Run();

 private:
  // A request that is ready before it is due.
  struct Prepared {
    RequestSpec spec;
    v1::GenerateRequest request;
  };
  // Time of a cancellation and the call; the earliest first.
  using CancelTime = std::pair<double, uint64_t>;
  static constexpr double kNever = 1e18;

  void OnCallDone(uint64_t call_id) override;

  Prepared Prepare(RequestSpec spec) const;
  // When the next request (probe) is due; kNever if there is none or no slot for it.
  double NextRequestSeconds(double now) const;
  double NextProbeSeconds() const;
  bool RequestsAreOver(double now) const;
  void StartDue();
  void StartCall(Prepared prepared, double scheduled_seconds);
  void FireCancels();
  void CollectDone();
  // Waits until a call ends or something is due.
  void WaitForWork();

  const Stubs& stubs_;
  const PromptBuilder& prompts_;
  const Options& options_;
  const RunClock clock_;
  Workload workload_;
  std::optional<ArrivalSchedule> arrivals_;
  std::optional<ArrivalSchedule> probe_arrivals_;
  Prepared next_request_;
  std::optional<Prepared> next_probe_;
  uint64_t next_call_id_ = 0;
  uint64_t num_measured_ = 0;
  int num_requests_in_flight_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<GenerateCall>> in_flight_;
  std::priority_queue<CancelTime, std::vector<CancelTime>, std::greater<CancelTime>> cancels_;
  std::vector<CallRecord> records_;

  std::mutex mutex_;
  std::condition_variable call_done_;
  std::vector<uint64_t> done_ids_;  // guarded by mutex_
};

}  // namespace folio::loadtest
