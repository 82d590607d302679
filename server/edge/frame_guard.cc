#include "server/edge/frame_guard.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"

namespace folio::server {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint32_t kPriorityBytes = 5;
constexpr int64_t kFrameHeaderBytes = 9;

bool IsControl(const FrameHeader& frame) {
  switch (frame.type) {
    case FrameType::kPriority:
    case FrameType::kRstStream:
    case FrameType::kSettings:
    case FrameType::kPing:
      return true;
    case FrameType::kData:
      return frame.length == 0 && !frame.Has(FrameHeader::kEndStream);
    default:
      return false;
  }
}

}  // namespace

absl::Status FrameGuard::FromClient(std::string_view bytes, SteadyTime now) {
  if (!status_.ok() || !ReadPreface(&bytes)) return status_;
  from_client_.Scan(
      bytes, [&](const FrameHeader& frame) { return BeginClientFrame(frame, now); },
      [&](const FrameHeader& frame, std::string_view part) { return ReadPayload(frame, part); });
  return status_;
}

void FrameGuard::FromServer(std::string_view bytes) {
  server_has_begun_ = true;
  from_server_.Scan(
      bytes,
      [&](const FrameHeader& frame) {
        EndOfServer(frame);
        return true;
      },
      [](const FrameHeader&, std::string_view) { return true; });
}

bool FrameGuard::Refuse(absl::Status why) {
  status_ = std::move(why);
  return false;
}

bool FrameGuard::ReadPreface(std::string_view* bytes) {
  const std::string_view expected = kPreface.substr(preface_bytes_, bytes->size());
  if (bytes->substr(0, expected.size()) != expected) {
    return Refuse(absl::InvalidArgumentError("the client does not speak HTTP/2 in cleartext"));
  }
  preface_bytes_ += expected.size();
  bytes->remove_prefix(expected.size());
  return true;
}

bool FrameGuard::TakeControlFrame(SteadyTime now) {
  if (counted_until_ == SteadyTime{}) counted_until_ = now;
  const double seconds = std::chrono::duration<double>(now - counted_until_).count();
  counted_until_ = now;
  control_frames_left_ =
      std::min<double>(limits_.control_frame_burst,
                       control_frames_left_ + seconds * limits_.control_frames_per_second);
  if ((control_frames_left_ -= 1) >= 0) return true;
  return Refuse(absl::ResourceExhaustedError(
      absl::StrCat("more than ", limits_.control_frame_burst, " control frames, or ",
                   limits_.control_frames_per_second, " each second")));
}

bool FrameGuard::OpenStream(uint32_t stream) {
  if (stream <= last_stream_) return true;  // trailers
  last_stream_ = stream;
  if (num_streams() >= limits_.max_open_streams) {
    return Refuse(absl::ResourceExhaustedError(
        absl::StrCat("more than ", limits_.max_open_streams, " streams on a connection")));
  }
  streams_[stream] = {};
  return true;
}

bool FrameGuard::AddToHeaderBlock(const FrameHeader& frame) {
  if (frame.type == FrameType::kHeaders) {
    header_block_bytes_ = 0;
    fields_.BeginBlock();
  }
  header_block_bytes_ += kFrameHeaderBytes + frame.length;
  if (header_block_bytes_ <= limits_.max_header_block_bytes) return true;
  return Refuse(absl::ResourceExhaustedError(
      absl::StrCat("more than ", limits_.max_header_block_bytes, " bytes of headers in a block")));
}

bool FrameGuard::BeginClientFrame(const FrameHeader& frame, SteadyTime now) {
  has_begun_ = true;
  const bool headers = frame.type == FrameType::kHeaders;
  const bool may_be_padded = headers || frame.type == FrameType::kData;
  pad_length_next_ = may_be_padded && frame.Has(FrameHeader::kPadded);
  front_left_ = (pad_length_next_ ? 1 : 0) +
                (headers && frame.Has(FrameHeader::kHasPriority) ? kPriorityBytes : 0);
  content_left_ = frame.length - std::min(frame.length, front_left_);
  if (IsControl(frame) && !TakeControlFrame(now)) return false;
  if (headers && !OpenStream(frame.stream)) return false;
  if ((headers || frame.type == FrameType::kContinuation) && !AddToHeaderBlock(frame)) return false;
  if (frame.type == FrameType::kRstStream) {
    if (const auto it = streams_.find(frame.stream); it != streams_.end()) Erase(it);
  } else if (may_be_padded && frame.Has(FrameHeader::kEndStream)) {
    EndOfClient(frame.stream);
  }
  return true;
}

std::string_view FrameGuard::Content(std::string_view part) {
  if (pad_length_next_ && !part.empty()) {
    const auto padding = static_cast<uint8_t>(part.front());
    content_left_ -= std::min<uint32_t>(content_left_, padding);
    pad_length_next_ = false;
  }
  const size_t skipped = std::min<size_t>(front_left_, part.size());
  front_left_ -= static_cast<uint32_t>(skipped);
  part = part.substr(skipped, content_left_);
  content_left_ -= static_cast<uint32_t>(part.size());
  return part;
}

bool FrameGuard::ReadPayload(const FrameHeader& frame, std::string_view part) {
  if (frame.type == FrameType::kHeaders || frame.type == FrameType::kContinuation) {
    fields_.Add(Content(part));
    if (fields_.count() <= limits_.max_header_fields) return true;
    return Refuse(absl::ResourceExhaustedError(
        absl::StrCat("more than ", limits_.max_header_fields, " fields in a header block")));
  }
  if (frame.type != FrameType::kData) return true;
  const auto it = streams_.find(frame.stream);
  if (it == streams_.end() || it->second.client_done) return true;
  partial_bytes_ += it->second.message.Add(Content(part), limits_.max_message_bytes);
  if (partial_bytes_ <= limits_.max_partial_message_bytes) return true;
  return Refuse(absl::ResourceExhaustedError(
      absl::StrCat("more than ", limits_.max_partial_message_bytes,
                   " bytes of messages that have not come whole, on a connection")));
}

void FrameGuard::EndOfClient(uint32_t stream) {
  const auto it = streams_.find(stream);
  if (it == streams_.end()) return;
  partial_bytes_ -= it->second.message.partial_bytes();
  it->second.message = {};
  it->second.client_done = true;
  if (it->second.server_done) Erase(it);
}

void FrameGuard::EndOfServer(const FrameHeader& frame) {
  const auto it = streams_.find(frame.stream);
  if (it == streams_.end()) return;
  if (frame.type == FrameType::kRstStream) return Erase(it);
  const bool may_end = frame.type == FrameType::kHeaders || frame.type == FrameType::kData;
  if (!may_end || !frame.Has(FrameHeader::kEndStream)) return;
  it->second.server_done = true;
  if (it->second.client_done) Erase(it);
}

void FrameGuard::Erase(Streams::iterator stream) {
  partial_bytes_ -= stream->second.message.partial_bytes();
  streams_.erase(stream);
}

}  // namespace folio::server
