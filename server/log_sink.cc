#include "server/log_sink.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

int OpenWithoutWaiting(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0 || S_ISREG(info.st_mode)) return fd;
  const int own = open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                       O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (own >= 0) return own;
  // A socket, or a terminal of another user.
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  return fd;
}

}  // namespace

LogSink::LogSink(int fd) : given_fd_(fd), fd_(OpenWithoutWaiting(fd)) {}

LogSink::~LogSink() {
  if (fd_ != given_fd_) close(fd_);
}

bool LogSink::WriteRest() {
  if (rest_.empty()) return true;
  const ssize_t written = write(fd_, rest_.data(), rest_.size());
  if (written > 0) rest_.erase(0, static_cast<size_t>(written));
  return rest_.empty();
}

void LogSink::AppendReport(spdlog::memory_buf_t* out) {
  const std::string text =
      absl::StrCat(unreported_, " log lines were dropped: nothing read what the server writes");
  formatter_->format({"", spdlog::level::warn, text}, *out);
}

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  ssize_t written = -1;
  if (WriteRest()) {
    if (unreported_ > 0) AppendReport(&line);
    formatter_->format(message, line);
    written = write(fd_, line.data(), line.size());
  }
  if (written <= 0) {
    ++unreported_;
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  unreported_ = 0;
  rest_.assign(line.data() + written, line.size() - static_cast<size_t>(written));
}

}  // namespace folio::server
