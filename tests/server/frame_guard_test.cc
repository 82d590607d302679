#include "server/edge/frame_guard.h"

#include <gtest/gtest.h>

#include <string>

namespace folio::server {
namespace {

constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const size_t shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return frame + payload;
}
std::string Headers(uint32_t stream, const std::string& block = "\x82", uint8_t more_flags = 0) {
  return Frame(FrameType::kHeaders, FrameHeader::kEndHeaders | more_flags, stream, block);
}
std::string Data(uint32_t stream, const std::string& payload, uint8_t flags = 0) {
  return Frame(FrameType::kData, flags, stream, payload);
}
// A message of which only `sent` bytes come.
std::string Message(uint32_t size, size_t sent) {
  std::string message(1, '\0');
  for (const int shift : {24, 16, 8, 0}) message.push_back(static_cast<char>(size >> shift));
  return message + std::string(sent, 'x');
}

class FrameGuardTest : public ::testing::Test {
 protected:
  FrameGuardTest() { EXPECT_TRUE(Send(std::string(kPreface)).ok()); }
  absl::Status Send(const std::string& bytes) { return guard_.FromClient(bytes, now_); }
  void Wait(std::chrono::milliseconds time) { now_ += time; }

  ConnectionLimits limits_{.max_header_block_bytes = 1000,
                           .max_header_fields = 20,
                           .max_open_streams = 4,
                           .control_frame_burst = 10,
                           .control_frames_per_second = 100,
                           .max_message_bytes = 5000,
                           .max_partial_message_bytes = 1000};
  SteadyTime now_{std::chrono::seconds(1)};
  FrameGuard guard_{limits_};
};

TEST_F(FrameGuardTest, OrdinaryCallsPass) {
  EXPECT_FALSE(guard_.has_begun());
  EXPECT_TRUE(Send(Frame(FrameType::kSettings, 0, 0, "")).ok());
  EXPECT_TRUE(guard_.has_begun());
  for (uint32_t stream = 1; stream < 2000; stream += 2) {
    ASSERT_TRUE(Send(Headers(stream)).ok());
    EXPECT_EQ(guard_.num_streams(), 1);
    ASSERT_TRUE(Send(Data(stream, Message(5, 5), FrameHeader::kEndStream)).ok());
    guard_.FromServer(Headers(stream) + Data(stream, Message(3, 3)) +
                      Headers(stream, "\x82", FrameHeader::kEndStream));
    ASSERT_EQ(guard_.num_streams(), 0);
  }
  EXPECT_EQ(guard_.partial_message_bytes(), 0);
}

TEST_F(FrameGuardTest, OtherProtocolsAreRefused) {
  FrameGuard other(limits_);
  EXPECT_TRUE(absl::IsInvalidArgument(other.FromClient("GET / HTTP/1.1\r\n", now_)));
  FrameGuard slow(limits_);
  for (const char byte : std::string("PRI * HTT")) {
    EXPECT_TRUE(slow.FromClient(std::string(1, byte), now_).ok());
  }
  EXPECT_TRUE(absl::IsInvalidArgument(slow.FromClient("Q", now_)));
}

TEST_F(FrameGuardTest, AHeaderBlockHasALimitAcrossItsFrames) {
  EXPECT_TRUE(Send(Frame(FrameType::kHeaders, 0, 1, "\x82")).ok());
  absl::Status status;
  int frames = 0;
  const std::string value =
      "\x10\x01"
      "a\x50" +
      std::string(80, 'v');
  for (; status.ok() && frames < 100; ++frames) {
    status = Send(Frame(FrameType::kContinuation, 0, 1, value));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_LT(frames, 12);
  // And empty ones count.
  FrameGuard other(limits_);
  EXPECT_TRUE(other.FromClient(kPreface, now_).ok());
  EXPECT_TRUE(other.FromClient(Frame(FrameType::kHeaders, 0, 1, ""), now_).ok());
  for (frames = 0, status = absl::OkStatus(); status.ok() && frames < 1000; ++frames) {
    status = other.FromClient(Frame(FrameType::kContinuation, 0, 1, ""), now_);
  }
  EXPECT_LT(frames, 200);
}

TEST_F(FrameGuardTest, FieldsAreCountedWithoutDecoding) {
  // 10 that are indexed, 5 literals with names and values, 5 with values; a long string among them.
  std::string block(10, '\x82');
  for (int n = 0; n < 5; ++n)
    block += std::string(
        "\x40\x03"
        "abc\x02"
        "xy",
        8);
  for (int n = 0; n < 4; ++n)
    block += std::string(
        "\x0f\x20\x02"
        "xy",
        5);
  std::string longer = block + std::string("\x44\x7f\x49", 3) + std::string(200, '\x82');
  EXPECT_TRUE(Send(Headers(1, longer)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Send(Headers(3, longer + "\x82"))));
}

TEST_F(FrameGuardTest, PaddingAndPriorityAreNoFields) {
  const std::string front = std::string("\x1e\0\0\0\0\x10", 6);
  const uint8_t flags = FrameHeader::kPadded | FrameHeader::kHasPriority;
  EXPECT_TRUE(
      Send(Headers(1, front + std::string(20, '\x82') + std::string(30, '\0'), flags)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      Send(Headers(3, front + std::string(21, '\x82') + std::string(30, '\0'), flags))));
}

TEST_F(FrameGuardTest, StreamsAreLimitedUntilBothSidesHaveEnded) {
  for (const uint32_t stream : {1, 3, 5, 7}) EXPECT_TRUE(Send(Headers(stream)).ok());
  guard_.FromServer(Headers(1, "\x82", FrameHeader::kEndStream));
  EXPECT_EQ(guard_.num_streams(), 4);  // the client still sends
  guard_.FromServer(Frame(FrameType::kRstStream, 0, 1, std::string(4, '\0')));
  EXPECT_EQ(guard_.num_streams(), 3);
  EXPECT_TRUE(Send(Headers(9)).ok());
  EXPECT_TRUE(Send(Headers(9, "\x82", FrameHeader::kEndStream)).ok());  // trailers
  EXPECT_TRUE(absl::IsResourceExhausted(Send(Headers(11))));
}

TEST_F(FrameGuardTest, FloodsOfControlFramesAreRefusedAndAFewAreNot) {
  const std::string reset = Frame(FrameType::kRstStream, 0, 1, std::string(4, '\0'));
  for (int n = 0; n < 100; ++n) {
    ASSERT_TRUE(Send(reset).ok()) << n;
    Wait(std::chrono::milliseconds(10));
  }
  absl::Status status;
  int frames = 0;
  for (; status.ok() && frames < 100; ++frames) status = Send(reset);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(frames, 11);
}

TEST_F(FrameGuardTest, MessagesThatDoNotEndAreLimited) {
  EXPECT_TRUE(Send(Headers(1) + Data(1, Message(5000, 0))).ok());
  EXPECT_TRUE(Send(Data(1, std::string(400, 'x'))).ok());
  EXPECT_TRUE(Send(Headers(3) + Data(3, Message(5000, 400))).ok());
  EXPECT_EQ(guard_.partial_message_bytes(), 800);
  // Whole ones count for nothing, and what ends lets go.
  EXPECT_TRUE(Send(Headers(5) + Data(5, Message(900, 900))).ok());
  EXPECT_EQ(guard_.partial_message_bytes(), 800);
  EXPECT_TRUE(Send(Frame(FrameType::kRstStream, 0, 3, std::string(4, '\0'))).ok());
  EXPECT_EQ(guard_.partial_message_bytes(), 400);
  guard_.FromServer(Frame(FrameType::kRstStream, 0, 1, std::string(4, '\0')));
  EXPECT_EQ(guard_.partial_message_bytes(), 0);
  // gRPC refuses this one by its length.
  EXPECT_TRUE(Send(Headers(7) + Data(7, Message(5001, 4000), FrameHeader::kEndStream)).ok());
  EXPECT_TRUE(Send(Headers(9) + Data(9, Message(5000, 900))).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Send(Data(9, std::string(101, 'x')))));
}

// However bytes arrive, they mean the same.
TEST_F(FrameGuardTest, FramesMayComeByteByByte) {
  const std::string bytes =
      std::string(kPreface) + Frame(FrameType::kSettings, 0, 0, std::string(12, '\0')) +
      Headers(1,
              "\x82\x40\x03"
              "abc\x02"
              "xy") +
      Data(1, Message(700, 300)) + Headers(3) +
      Data(3, Message(10, 10) + Message(20, 5), FrameHeader::kEndStream) +
      Data(1, std::string("\x04", 1) + std::string(100, 'x') + std::string(4, '\0'),
           FrameHeader::kPadded);
  FrameGuard whole(limits_);
  EXPECT_TRUE(whole.FromClient(bytes, now_).ok());
  FrameGuard single(limits_);
  for (const char byte : bytes) EXPECT_TRUE(single.FromClient(std::string(1, byte), now_).ok());
  for (const FrameGuard* guard : {&whole, &single}) {
    EXPECT_EQ(guard->num_streams(), 2);
    EXPECT_EQ(guard->partial_message_bytes(), 400);
  }
}

TEST_F(FrameGuardTest, KnowsWhereTheServersFramesEnd) {
  EXPECT_FALSE(guard_.between_server_frames());  // its SETTINGS come first
  const std::string data = Data(1, "abc");
  guard_.FromServer(data.substr(0, 10));
  EXPECT_FALSE(guard_.between_server_frames());
  guard_.FromServer(data.substr(10));
  EXPECT_TRUE(guard_.between_server_frames());
}

}  // namespace
}  // namespace folio::server
