#pragma once

#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace folio::server {

// Writes log lines to a descriptor and never waits for whoever reads it: a line that cannot be
// written at once is dropped and counted, and the next one that can be is preceded by a line that
// says how many. Thread-safe.
//
// O_NONBLOCK is a property of the open file, which the parent process and stderr may share, so a
// pipe or a terminal is opened again. Sockets cannot be, and get the flag as they are. Writing to a
// regular file does not wait for a reader. There is no queue but the kernel's: nothing to join when
// the process ends, and nothing is lost when it crashes.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // Borrows the descriptor.
  explicit LogSink(int fd);
  ~LogSink() override;

  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  bool WriteRest();
  void AppendReport(spdlog::memory_buf_t* out);

  const int given_fd_;
  const int fd_;
  std::atomic<int64_t> dropped_{0};
  int64_t unreported_ = 0;
  // Of the last line: terminals take less than a line at a time.
  std::string rest_;
};

}  // namespace folio::server
