#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/types/request.h"
#include "server/edge/byte_stream.h"
#include "server/edge/epoll_watch.h"
#include "server/edge/fd.h"
#include "server/edge/frame_guard.h"
#include "server/edge/server_socket.h"
#include "server/limits.h"

namespace folio::server {

// One connection of a client, and the socket behind which gRPC serves it: bytes pass unchanged (but
// for TLS, which ends here), in both directions, for as long as the guard agrees. Holds little:
// what one side does not take at once stops the other. When gRPC has closed its side the client has
// some time to take the rest. If its last call has just ended it is listened to for a moment, until
// it closes: one whose bytes are refused may give up what it has not read yet. One thread; both
// sockets do not block.
class Connection {
 public:
  // `peer` is the address of the client, `port` where it calls from.
  Connection(std::unique_ptr<ByteStream> client, std::string peer, std::string port,
             const ConnectionLimits& limits, SteadyTime now)
      : client_(std::move(client)),
        peer_(std::move(peer)),
        port_(std::move(port)),
        began_(now),
        idle_since_(now),
        guard_(limits) {}

  // Before it is served: goes on with what opens the connection (ByteStream::Open).
  ByteStream::Opening Open() { return client_->Open(); }
  // From now on gRPC serves it behind this socket. To be called once, after Open and before Move.
  void BeServedBehind(Fd server) { server_ = std::make_unique<ServerSocket>(std::move(server)); }
  bool served() const { return server_ != nullptr; }

  // Moves what can be moved. False: nothing more will be, as both sides have closed, one of them is
  // broken, or the guard does not agree: then `refusal` says so.
  bool Move(SteadyTime now);
  // Tells the client why, as far as HTTP/2 allows it here, and stops reading.
  void Refuse(const absl::Status& why);
  // Tells the client, as soon as HTTP/2 allows it, to make its next calls on another connection.
  // Those that run go on.
  void AskToLeave();

  // Has the epoll set wait for what can be done next. To be called after each change.
  void Watch(int epoll, uint64_t id);
  const ByteStream& client() const { return *client_; }
  const std::string& peer() const { return peer_; }
  const std::string& port() const { return port_; }
  const FrameGuard& guard() const { return guard_; }
  const absl::Status& refusal() const { return refusal_; }
  SteadyTime began() const { return began_; }
  // Since when it has had no call.
  SteadyTime idle_since() const { return idle_since_; }
  bool idle() const { return guard_.num_streams() == 0; }
  // Whether the client has had its time to take the rest, and to close, after gRPC has closed. To
  // be called from time to time.
  bool IsOver(SteadyTime now);

 private:
  struct Flow {
    std::string waiting;  // read, not yet taken by the other side
    bool ended = false;   // the reader's end was seen
    bool shut = false;    // and told to the other side
  };
  // False: broken, or refused.
  template <typename Look>
  static bool MoveOne(ByteStream* from, ByteStream* to, Flow* flow, Look look);
  static bool Send(ByteStream* to, std::string_view bytes, Flow* flow);
  // What to wait for: EPOLLIN, EPOLLOUT.
  uint32_t client_events() const;
  uint32_t server_events() const;
  bool CanSendFrame() const { return guard_.between_server_frames() && to_client_.waiting.empty(); }

  const std::unique_ptr<ByteStream> client_;
  std::unique_ptr<ServerSocket> server_;
  const std::string peer_;
  const std::string port_;
  const SteadyTime began_;
  SteadyTime idle_since_;
  FrameGuard guard_;
  absl::Status refusal_;
  bool asks_to_leave_ = false;  // not sent yet
  std::optional<SteadyTime> closes_at_;
  Flow to_server_;
  Flow to_client_;
  EpollWatch client_watch_;
  EpollWatch server_watch_;
};

}  // namespace folio::server
