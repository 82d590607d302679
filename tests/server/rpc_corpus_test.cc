// What ./dev fuzz runs for as long as it is told, here with its seeds and some changes of each.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "absl/strings/str_split.h"
#include "tests/fuzz/rpc_target.h"
#include "tests/server/raw_call.h"

namespace folio::testing {
namespace {

constexpr int kChangesOfEach = 50;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

std::string Changed(std::string input, std::mt19937* random) {
  const auto place = [&] { return (*random)() % input.size(); };
  for (int left = 1 + static_cast<int>((*random)() % 4); left > 0; --left) {
    switch ((*random)() % 3) {
      case 0:
        input[place()] ^= static_cast<char>(1 << (*random)() % 8);
        break;
      case 1:
        input.insert(place(), std::string(1, static_cast<char>((*random)())));
        break;
      default:
        input.resize(1 + place());
    }
  }
  return input;
}

bool IsAnswer(const grpc::Status& status) {
  return status.error_code() != grpc::StatusCode::UNKNOWN &&
         status.error_code() != grpc::StatusCode::INTERNAL &&
         status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
}

// There is no request to cancel and no disk to save to, which a client would wait for.
std::set<std::string> NotOk() { return {"CancelRequest", "SaveDocument", "WatchDocument"}; }

TEST(RpcCorpus, EveryMethodAnswersWhateverItIsSent) {
  RpcTarget target;
  std::mt19937 random(7);
  std::set<std::string> seen;
  for (const auto& entry : std::filesystem::directory_iterator(FOLIO_RPC_CORPUS)) {
    const std::string input = ReadFile(entry.path());
    // The byte that picks the method and the name of the file say the same.
    const std::vector<std::string> name = absl::StrSplit(entry.path().filename().string(), '-');
    ASSERT_EQ(AllMethods().at(static_cast<uint8_t>(input.at(0)))->name(), name[0]);
    seen.insert(name[0]);
    SCOPED_TRACE(entry.path());
    const grpc::Status status = target.Call(input);
    EXPECT_TRUE(IsAnswer(status)) << status.error_code() << ": " << status.error_message();
    // The first of each is what a client would send.
    if (name[1] == "0" && !NotOk().contains(name[0])) {
      EXPECT_TRUE(status.ok()) << status.error_code() << ": " << status.error_message();
    }
    for (int n = 0; n < kChangesOfEach; ++n) {
      const std::string changed = Changed(input, &random);
      EXPECT_TRUE(IsAnswer(target.Call(changed))) << ::testing::PrintToString(changed);
    }
  }
  EXPECT_EQ(seen.size(), AllMethods().size());
}

}  // namespace
}  // namespace folio::testing
