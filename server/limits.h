#pragma once

#include <cstddef>
#include <cstdint>

namespace folio::server {

// What one HTTP/2 connection may send before it is closed (server/edge). gRPC 1.51, which Debian 12
// has, keeps what these bound in memory without a bound of its own.
struct ConnectionLimits {
  // Of one header block, HEADERS and CONTINUATION frames together, as sent. gRPC refuses more than
  // 8 KiB, but only once the block has ended.
  int64_t max_header_block_bytes = int64_t{32} << 10;
  // Fields in it: each may stand for 4 KiB of the compression table.
  int max_header_fields = 256;
  // Streams that are open at the same time. gRPC is told half of it and refuses more; a client that
  // goes on regardless is not one of gRPC's.
  int max_open_streams = 512;
  // RST_STREAM, PING, SETTINGS, PRIORITY and empty frames: so many at once, and each second.
  int control_frame_burst = 5000;
  int control_frames_per_second = 1000;
  // Of one message; gRPC is told the same, and refuses longer ones.
  uint64_t max_message_bytes = uint64_t{4} << 20;
  // Of messages that have begun and not ended: four of the largest.
  int64_t max_partial_message_bytes = int64_t{16} << 20;
};

struct EdgeLimits {
  ConnectionLimits connection = {};
  // Connections at the same time, in all and of one address. A new one takes the place of the one
  // that has had no call for longest; where all have calls it is refused.
  int max_connections = 1024;
  int max_connections_per_peer = 512;
  // Of all connections together; beyond it the one that holds most is closed.
  int64_t max_partial_message_bytes = int64_t{128} << 20;
  // From the connection to its first HTTP/2 frame.
  int handshake_seconds = 20;
};

// What requests and uploads may hold.
struct RequestLimits {
  // Of all messages as gRPC has parsed them and of the tokens made of them: MemoryBudget.
  int64_t max_memory_bytes = int64_t{128} << 20;
  // Events that one stream may hold for a client that does not read: beyond it the request stops
  // decoding until the client has read, and others take its place.
  int64_t max_stream_buffer_bytes = int64_t{256} << 10;
  // A write that the client does not take for so long ends the stream with ABORTED.
  int slow_reader_seconds = 60;
  // An upload that has had no byte for so long is deleted.
  int upload_expiry_seconds = 3600;
};

// Of the metrics port, whose clients are a few scrapers.
struct MetricsLimits {
  unsigned max_connections = 256;
  unsigned max_connections_per_peer = 32;
  // Without a byte, half a request sent or not.
  unsigned idle_seconds = 10;
  // Of one request with all its headers.
  size_t max_request_bytes = size_t{32} << 10;
};

}  // namespace folio::server
