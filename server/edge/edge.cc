#include "server/edge/edge.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio::server {
namespace {

constexpr int kMaxEvents = 128;
constexpr std::chrono::milliseconds kSweepInterval{500};
constexpr std::chrono::seconds kLastWrites{2};
// What epoll says of an event: the wake-up, a listener, or a connection.
constexpr uint64_t kWake = 0;
constexpr uint64_t kFirstListener = 1;
constexpr uint64_t kFirstConnection = 1 << 8;

std::string NumericHost(const sockaddr_storage& address, socklen_t size, std::string* port) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
                    service.data(), service.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  *port = service.data();
  return host.data();
}

// The two ends of a connection between this listener and gRPC. The address of the client becomes
// the name of the first one, so that gRPC's peer() says who called.
bool ConnectedPair(const std::string& peer, uint64_t id, Fd* outer, Fd* inner) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return false;
  *outer = Fd(ends[0]);
  *inner = Fd(ends[1]);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string text = absl::StrCat(peer, "#", ::getpid(), ".", id);
  const size_t size = std::min(text.size(), sizeof(name.sun_path) - 1);
  std::memcpy(name.sun_path + 1, text.data(), size);
  // Without a name it works as well.
  (void)::bind(outer->get(), reinterpret_cast<const sockaddr*>(&name),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size));
  return true;
}

// Each connection takes three descriptors: the client's, and a pair between this listener and gRPC.
// Some are left to everything else.
EdgeLimits WithinDescriptors(EdgeLimits limits) {
  constexpr rlim_t kOthers = 128;
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return limits;
  const rlim_t room = descriptors.rlim_cur > kOthers ? (descriptors.rlim_cur - kOthers) / 3 : 0;
  const auto most = static_cast<int>(std::clamp<rlim_t>(room, 1, 1 << 30));
  if (most >= limits.max_connections) return limits;
  // One address gets the same part of what is left.
  const double part = static_cast<double>(most) / limits.max_connections;
  limits.max_connections_per_peer =
      std::max(1, static_cast<int>(limits.max_connections_per_peer * part));
  limits.max_connections = most;
  return limits;
}

Fd SpareDescriptor() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::StatusOr<std::unique_ptr<Edge>> Edge::Start(const std::string& listen,
                                                  const EdgeLimits& limits, Clock clock,
                                                  Hooks hooks, std::unique_ptr<TlsReloader> tls) {
  std::unique_ptr<Edge> edge(new Edge(limits, std::move(clock), std::move(hooks), std::move(tls)));
  FOLIO_RETURN_IF_ERROR(edge->Listen(listen));
  edge->thread_ = std::thread([edge = edge.get()] { edge->Main(); });
  return edge;
}

Edge::Edge(const EdgeLimits& limits, Clock clock, Hooks hooks, std::unique_ptr<TlsReloader> tls)
    : limits_(WithinDescriptors(limits)),
      clock_(std::move(clock)),
      hooks_(std::move(hooks)),
      tls_(std::move(tls)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      spare_(SpareDescriptor()),
      next_id_(kFirstConnection) {
  for (const char* reason :
       {"abuse", "descriptors", "handshake", "idle", "limit", "partial_messages", "tls"}) {
    closed_[reason] = 0;
  }
  if (tls_ != nullptr) certificate_expires_ = tls_->context()->expires_unix_seconds();
}

void Edge::Stop() {
  if (!thread_.joinable()) return;
  Order(&Orders::end);
  thread_.join();
}

void Edge::Drain() { Order(&Orders::drain); }

void Edge::Order(bool Orders::*what) {
  {
    MutexLock lock(&mu_);
    orders_.*what = true;
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Edge::FollowOrders() {
  uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof(count));
  Orders orders;
  {
    MutexLock lock(&mu_);
    orders = std::exchange(orders_, {});
  }
  if (orders.drain) {
    for (auto& [id, connection] : connections_) {
      connection->AskToLeave();
      connection->Watch(epoll_.get(), id);
    }
  }
  if (orders.end) {
    listeners_.sockets.clear();
    CloseUnserved();
    end_ = std::chrono::steady_clock::now() + kLastWrites;
  }
}

int Edge::num_connections() const {
  MutexLock lock(&mu_);
  return num_connections_;
}

ClosedConnections Edge::closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

int64_t Edge::certificate_expires_unix_seconds() const {
  MutexLock lock(&mu_);
  return certificate_expires_;
}

void Edge::Count(const std::string& why) {
  MutexLock lock(&mu_);
  ++closed_[why];
}

absl::Status Edge::Listen(const std::string& listen) {
  FOLIO_ASSIGN_OR_RETURN(listeners_, ListenOn(listen, "--listen"));
  if (!epoll_.valid() || !wake_.valid()) return absl::UnavailableError("no file descriptors left");
  Watch(wake_.get(), kWake);
  for (size_t n = 0; n < listeners_.sockets.size(); ++n) {
    Watch(listeners_.sockets[n].get(), kFirstListener + n);
  }
  return absl::OkStatus();
}

void Edge::Watch(int fd, uint64_t id) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Edge::Main() {
  pthread_setname_np(pthread_self(), "listener");
  std::array<epoll_event, kMaxEvents> events;
  SteadyTime next_sweep = std::chrono::steady_clock::now();
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), kMaxEvents,
                                   static_cast<int>(kSweepInterval.count()));
    for (int n = 0; n < count; ++n) {
      const uint64_t id = events[static_cast<size_t>(n)].data.u64;
      if (id == kWake) {
        FollowOrders();
      } else if (id >= kFirstConnection) {
        OnEvents(id);
      } else if (id >= kFirstListener && id - kFirstListener < listeners_.sockets.size()) {
        Accept(listeners_.sockets[id - kFirstListener].get());
      }
    }
    const SteadyTime now = std::chrono::steady_clock::now();
    if (now >= next_sweep) {
      Sweep();
      hooks_.on_sweep();
      next_sweep = now + kSweepInterval;
    }
    if (end_.has_value() && (connections_.empty() || now >= *end_)) return;
  }
}

void Edge::Accept(int listener) {
  for (int n = 0; n < kMaxEvents; ++n) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    Fd client(::accept4(listener, reinterpret_cast<sockaddr*>(&address), &size,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client.valid()) {
      if (errno == EMFILE || errno == ENFILE) TurnAway(listener);
      return;
    }
    const int on = 1;
    ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    std::string port;
    const std::string host = NumericHost(address, size, &port);
    if (!MakeRoom(host)) {
      Count("limit");
      continue;
    }
    std::unique_ptr<ByteStream> stream = StreamOf(std::move(client));
    if (stream == nullptr) continue;
    const uint64_t id = next_id_++;
    auto& connection = connections_[id] =
        std::make_unique<Connection>(std::move(stream), host, port, limits_.connection, clock_());
    connection->Watch(epoll_.get(), id);
    ++of_address_[host];
    MutexLock lock(&mu_);
    ++num_connections_;
  }
}

std::unique_ptr<ByteStream> Edge::StreamOf(Fd client) const {
  if (tls_ == nullptr) return std::make_unique<SocketStream>(std::move(client));
  return tls_->context()->Accept(std::move(client));
}

ByteStream::Opening Edge::Open(uint64_t id, Connection* connection, std::string* why) {
  const ByteStream::Opening opening = connection->Open();
  if (opening == ByteStream::Opening::kFailed) {
    *why = "tls";
    hooks_.on_bad_tls(connection->peer(), connection->client().failure());
  }
  if (opening != ByteStream::Opening::kDone || Serve(id, connection)) return opening;
  *why = "descriptors";
  return ByteStream::Opening::kFailed;
}

bool Edge::Serve(uint64_t id, Connection* connection) {
  Fd outer;
  Fd inner;
  if (!ConnectedPair(absl::StrCat(connection->peer(), ":", connection->port()), id, &outer,
                     &inner)) {
    return false;
  }
  connection->BeServedBehind(std::move(outer));
  if (hooks_.peer_names != nullptr) {
    std::vector<std::string> names = connection->client().peer_names();
    if (!names.empty()) hooks_.peer_names->Add(id, std::move(names));
  }
  hooks_.handover(inner.Release());
  return true;
}

void Edge::TurnAway(int listener) {
  spare_.Close();
  const Fd unlucky(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (unlucky.valid()) Count("descriptors");
  spare_ = SpareDescriptor();
}

bool Edge::MakeRoom(const std::string& address) {
  const auto same = of_address_.find(address);
  const bool peer_full =
      same != of_address_.end() && same->second >= limits_.max_connections_per_peer;
  if (!peer_full && static_cast<int>(connections_.size()) < limits_.max_connections) return true;
  auto longest = connections_.end();
  for (auto it = connections_.begin(); it != connections_.end(); ++it) {
    const Connection& one = *it->second;
    if (!one.idle() || (peer_full && one.peer() != address)) continue;
    if (longest == connections_.end() || one.idle_since() < longest->second->idle_since()) {
      longest = it;
    }
  }
  if (longest == connections_.end()) return false;
  Close(longest, "idle");
  return true;
}

void Edge::OnEvents(uint64_t id) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;  // closed by an event before
  Connection& connection = *it->second;
  if (!connection.served()) {
    std::string why;
    const ByteStream::Opening opening = Open(id, &connection, &why);
    if (opening == ByteStream::Opening::kWaits) return connection.Watch(epoll_.get(), id);
    if (opening != ByteStream::Opening::kDone) {
      Close(it, why);
      return;
    }
  }
  if (!connection.Move(clock_())) {
    Close(it, connection.refusal().ok() ? "" : "abuse");
    return;
  }
  connection.Watch(epoll_.get(), id);
}

void Edge::CloseUnserved() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    it = it->second->served() ? std::next(it) : Close(it, "");
  }
}

void Edge::LookAtCertificate() {
  absl::Status loaded;
  if (tls_->Look(&loaded) == TlsReloader::Outcome::kUnchanged) return;
  hooks_.on_certificate(loaded);
  MutexLock lock(&mu_);
  certificate_expires_ = tls_->context()->expires_unix_seconds();
}

void Edge::Sweep() {
  if (tls_ != nullptr) LookAtCertificate();
  const SteadyTime now = clock_();
  const auto handshake = std::chrono::seconds(limits_.handshake_seconds);
  int64_t partial_bytes = 0;
  auto most = connections_.end();
  for (auto it = connections_.begin(); it != connections_.end();) {
    Connection& one = *it->second;
    if (!one.guard().has_begun() && now - one.began() > handshake) {
      it = Close(it, "handshake");
      continue;
    }
    if (one.IsOver(now)) {
      it = Close(it, "");
      continue;
    }
    const int64_t held = one.guard().partial_message_bytes();
    partial_bytes += held;
    if (most == connections_.end() || held > most->second->guard().partial_message_bytes()) {
      most = it;
    }
    ++it;
  }
  if (partial_bytes <= limits_.max_partial_message_bytes || most == connections_.end()) return;
  most->second->Refuse(absl::ResourceExhaustedError(
      "the server holds too much of messages that have not come whole"));
  Close(most, "partial_messages");
}

Edge::Connections::iterator Edge::Close(Connections::iterator connection, const std::string& why) {
  if (!why.empty()) Count(why);
  const auto same = of_address_.find(connection->second->peer());
  if (--same->second == 0) of_address_.erase(same);
  {
    MutexLock lock(&mu_);
    --num_connections_;
  }
  if (hooks_.peer_names != nullptr) hooks_.peer_names->Remove(connection->first);
  return connections_.erase(connection);
}

}  // namespace folio::server
