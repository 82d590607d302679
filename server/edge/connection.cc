#include "server/edge/connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

namespace folio::server {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// Others get their turn.
constexpr int kMaxReads = 8;
// After gRPC has closed: for a client to take the rest, and, if its last call has just ended, to
// close as well.
constexpr std::chrono::seconds kLastWrites{60};
constexpr std::chrono::seconds kLastReads{1};
// RFC 9113, section 7.
constexpr char kNoError = 0x0;
constexpr char kEnhanceYourCalm = 0xb;

bool WouldWait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// Source: RFC 9113, section 6.8. The last stream is the highest there can be: calls that ended are
// not to be sent again.
std::string GoAway(char code, const std::string& reason) {
  const std::string why = reason.substr(0, 200);
  std::string frame(9, '\0');
  frame[2] = static_cast<char>(8 + why.size());
  frame[3] = static_cast<char>(FrameType::kGoAway);
  frame += std::string("\x7f\xff\xff\xff\0\0\0", 7) + code;
  frame += why;
  return frame;
}

}  // namespace

bool Connection::Send(ByteStream* to, std::string_view bytes, Flow* flow) {
  const ssize_t sent = to->Write(bytes);
  if (sent < 0 && !WouldWait()) return false;
  flow->waiting = bytes.substr(sent < 0 ? 0 : static_cast<size_t>(sent));
  return true;
}

template <typename Look>
bool Connection::MoveOne(ByteStream* from, ByteStream* to, Flow* flow, Look look) {
  std::array<char, kReadBytes> buffer;
  if (!flow->waiting.empty() && !Send(to, std::string(std::move(flow->waiting)), flow))
    return false;
  for (int n = 0; n < kMaxReads && flow->waiting.empty() && !flow->ended; ++n) {
    const ssize_t count = from->Read(buffer.data(), buffer.size());
    if (count < 0) return WouldWait();
    flow->ended = count == 0;
    if (flow->ended) break;
    const std::string_view bytes(buffer.data(), static_cast<size_t>(count));
    if (!look(bytes) || !Send(to, bytes, flow)) return false;
    // There was no more: whatever comes meanwhile is an event of its own.
    if (bytes.size() < buffer.size() && !from->reads_in_parts()) break;
  }
  if (flow->ended && flow->waiting.empty() && !flow->shut) {
    to->EndWriting();
    flow->shut = true;
  }
  return true;
}

bool Connection::Move(SteadyTime now) {
  const bool was_idle = idle();
  const bool up = MoveOne(client_.get(), server_.get(), &to_server_, [&](std::string_view bytes) {
    const absl::Status allowed = guard_.FromClient(bytes, now);
    if (!allowed.ok()) Refuse(allowed);
    return allowed.ok();
  });
  const bool down = MoveOne(server_.get(), client_.get(), &to_client_, [&](std::string_view bytes) {
    guard_.FromServer(bytes);
    return true;
  });
  if (asks_to_leave_) AskToLeave();
  if (!was_idle || !idle()) idle_since_ = now;
  return up && down && !(to_client_.shut && (to_server_.ended || IsOver(now)));
}

bool Connection::IsOver(SteadyTime now) {
  // While a client takes nothing, what follows is not read, and so not the end either.
  const bool stuck = served() && !to_client_.waiting.empty();
  const bool ends = to_client_.ended || (stuck && server_->closed());
  if (ends && !closes_at_.has_value()) closes_at_ = now + kLastWrites;
  if (to_client_.shut) closes_at_ = std::min(*closes_at_, idle_since_ + kLastReads);
  return closes_at_.has_value() && now > *closes_at_;
}

void Connection::Refuse(const absl::Status& why) {
  refusal_ = why;
  if (!CanSendFrame()) return;
  Send(client_.get(), GoAway(kEnhanceYourCalm, std::string(why.message())), &to_client_);
  client_->EndWriting();
}

void Connection::AskToLeave() {
  asks_to_leave_ = !CanSendFrame();
  if (!asks_to_leave_) Send(client_.get(), GoAway(kNoError, "the server is draining"), &to_client_);
}

void Connection::Watch(int epoll, uint64_t id) {
  client_watch_.Set(epoll, client_->fd(), client_events(), id);
  if (!served()) return;
  const uint32_t events = server_events();
  // Else that gRPC has closed it would be said again and again.
  if (events == 0) return server_watch_.Remove(epoll, server_->fd());
  server_watch_.Set(epoll, server_->fd(), events, id);
}

uint32_t Connection::client_events() const {
  return (to_server_.waiting.empty() && !to_server_.ended ? EPOLLIN : 0u) |
         (to_client_.waiting.empty() && !client_->wants_write() ? 0u : EPOLLOUT);
}

uint32_t Connection::server_events() const {
  return (to_client_.waiting.empty() && !to_client_.ended ? EPOLLIN : 0u) |
         (to_server_.waiting.empty() ? 0u : EPOLLOUT);
}

}  // namespace folio::server
