#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <optional>

namespace folio::server {

// What an epoll set waits for at one descriptor. The kernel is told only what changes.
class EpollWatch {
 public:
  // Events of it carry `id`; without `events` they are errors and the end alone.
  void Set(int epoll, int fd, uint32_t events, uint64_t id) {
    if (events_ == events) return;
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    const int change = events_.has_value() ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (::epoll_ctl(epoll, change, fd, &event) == 0) events_ = events;
  }
  // Nothing at all.
  void Remove(int epoll, int fd) {
    if (!events_.has_value()) return;
    ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr);
    events_.reset();
  }

 private:
  std::optional<uint32_t> events_;
};

}  // namespace folio::server
