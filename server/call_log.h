#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "engine/base/mutex.h"
#include "server/clock.h"
#include "server/logging.h"

namespace folio::server {

// Lines of the log about finished calls. A client that calls faster than it may be written of does
// not fill the log: what is left out is counted, and said later. Clients are tenants, or where
// there are none addresses. Calls that end by a fault of the server are counted apart, so that a
// flood hides none. Thread-safe.
class CallLog {
 public:
  static constexpr std::chrono::seconds kReportEvery{10};
  // As many seconds' worth may come at once.
  static constexpr int kBurstSeconds = 10;
  // Beyond so many clients the others share one allowance.
  static constexpr size_t kMaxClients = 1000;

  // Lines each second of one client; 0: no bound.
  explicit CallLog(int lines_per_second) : lines_per_second_(lines_per_second) {}

  void Write(const RpcRecord& call, SteadyTime now);
  // Says what was left out since the last time. To be called about every second.
  void Report(SteadyTime now);

  int64_t num_left_out() const { return num_left_out_.load(std::memory_order_relaxed); }

 private:
  struct Allowance {
    double lines = 0;
    SteadyTime seen{};
    int64_t left_out = 0;
  };
  double burst() const { return static_cast<double>(lines_per_second_) * kBurstSeconds; }
  void Refill(Allowance* allowance, SteadyTime now) const;
  // Whether it takes the line.
  bool Take(const std::string& client, SteadyTime now);

  const int lines_per_second_;
  std::atomic<int64_t> num_left_out_{0};
  Mutex mu_;
  std::map<std::string, Allowance> clients_ FOLIO_GUARDED_BY(mu_);
  SteadyTime next_report_ FOLIO_GUARDED_BY(mu_){};
};

}  // namespace folio::server
