#include "tests/server/fake_tokenizer.h"

namespace folio::testing {

FakeTokenizer::FakeTokenizer() : pieces_(kFirstByte + 256) {
  for (int byte = 0; byte < 256; ++byte) {
    pieces_[kFirstByte + byte].text = std::string(1, static_cast<char>(byte));
  }
}

std::vector<int32_t> FakeTokenizer::TokensOf(std::string_view text) {
  std::vector<int32_t> ids = {kFirstByte + ' '};
  for (const char c : text) ids.push_back(kFirstByte + static_cast<unsigned char>(c));
  return ids;
}

absl::Status FakeTokenizer::AppendTokens(std::string_view text, TextStart start, const Interrupt&,
                                         std::vector<int32_t>* ids) const {
  if (text.find(kHold) != std::string_view::npos) {
    std::unique_lock<std::mutex> lock(mu_);
    ++num_holding_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
  }
  const std::vector<int32_t> tokens = TokensOf(text);
  const int without_space = start == TextStart::kContinued ? 1 : 0;
  ids->insert(ids->end(), tokens.begin() + without_space, tokens.end());
  return absl::OkStatus();
}

absl::StatusOr<std::string> FakeTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id >= kFirstByte) text.push_back(static_cast<char>(id - kFirstByte));
  }
  return !text.empty() && text.front() == ' ' ? text.substr(1) : text;
}

void FakeTokenizer::WaitUntilHolding(int count) const {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return num_holding_ >= count; });
}

void FakeTokenizer::Release() const {
  std::lock_guard<std::mutex> lock(mu_);
  released_ = true;
  changed_.notify_all();
}

}  // namespace folio::testing
