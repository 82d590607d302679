#pragma once

#include <cstdint>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/types/request.h"
#include "server/edge/frame_scanner.h"
#include "server/edge/header_fields.h"
#include "server/edge/message_progress.h"
#include "server/limits.h"

namespace folio::server {

// Reads along on one cleartext HTTP/2 connection and says when its client sends what no gRPC client
// sends and gRPC keeps in memory without bound: endless header blocks, headers that multiply when
// they are decompressed, streams beyond the limit, floods of control frames, messages that never
// end. Errors of the protocol are gRPC's to find. One thread.
class FrameGuard {
 public:
  explicit FrameGuard(const ConnectionLimits& limits)
      : limits_(limits), control_frames_left_(limits.control_frame_burst) {}

  // The next bytes of the client. Errors, after which it sees no more: INVALID_ARGUMENT (no
  // HTTP/2), RESOURCE_EXHAUSTED naming the limit.
  absl::Status FromClient(std::string_view bytes, SteadyTime now);
  // The next bytes of the server.
  void FromServer(std::string_view bytes);

  // Whether the client has said that it speaks HTTP/2, and sent a frame.
  bool has_begun() const { return has_begun_; }
  // Calls that have not ended.
  int num_streams() const { return static_cast<int>(streams_.size()); }
  // Of messages that have begun and not ended.
  int64_t partial_message_bytes() const { return partial_bytes_; }
  // Whether a frame of somebody else could follow the server's, whose SETTINGS come first.
  bool between_server_frames() const { return server_has_begun_ && from_server_.between_frames(); }

 private:
  struct Stream {
    MessageProgress message;
    bool client_done = false;
    bool server_done = false;
  };
  using Streams = absl::flat_hash_map<uint32_t, Stream>;

  bool ReadPreface(std::string_view* bytes);
  bool BeginClientFrame(const FrameHeader& frame, SteadyTime now);
  bool AddToHeaderBlock(const FrameHeader& frame);
  bool OpenStream(uint32_t stream);
  bool TakeControlFrame(SteadyTime now);
  bool ReadPayload(const FrameHeader& frame, std::string_view part);
  // What of the next bytes of the payload is neither padding nor priority.
  std::string_view Content(std::string_view part);
  void EndOfClient(uint32_t stream);
  void EndOfServer(const FrameHeader& frame);
  void Erase(Streams::iterator stream);
  bool Refuse(absl::Status why);

  const ConnectionLimits limits_;
  absl::Status status_;
  size_t preface_bytes_ = 0;
  bool has_begun_ = false;
  bool server_has_begun_ = false;
  FrameScanner from_client_;
  FrameScanner from_server_;
  Streams streams_;
  uint32_t last_stream_ = 0;
  int64_t partial_bytes_ = 0;

  HeaderFields fields_;
  int64_t header_block_bytes_ = 0;
  // Of the frame that is read: bytes before the content, and of the content.
  uint32_t front_left_ = 0;
  uint32_t content_left_ = 0;
  bool pad_length_next_ = false;

  double control_frames_left_;
  SteadyTime counted_until_{};
};

}  // namespace folio::server
