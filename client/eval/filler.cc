#include "client/eval/filler.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace folio::eval {
namespace {

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool EndsSentence(char c) { return c == '.' || c == '!' || c == '?'; }
// Bytes of characters outside ASCII count as letters.
bool IsLetter(char c) {
  const unsigned char byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || std::isalpha(byte) != 0;
}

}  // namespace

std::vector<std::string> SplitSentences(const std::string& text) {
  std::vector<std::string> sentences;
  std::string current;
  const auto flush = [&] {
    if (std::any_of(current.begin(), current.end(), IsLetter)) sentences.push_back(current);
    current.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsSpace(text[i])) {
      if (!current.empty() && current.back() != ' ') current += ' ';
      continue;
    }
    current += text[i];
    const bool before_space = i + 1 == text.size() || IsSpace(text[i + 1]);
    if (EndsSentence(text[i]) && before_space) flush();
  }
  while (!current.empty() && current.back() == ' ') current.pop_back();
  flush();
  return sentences;
}

std::vector<std::string> GrassSentences() {
  return {"The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
          "There and back again."};
}

absl::StatusOr<Filler> Filler::Create(const std::vector<std::string>& sentences, FillerStart start,
                                      const TokenCounter& count, uint64_t max_tokens) {
  if (sentences.empty()) return absl::InvalidArgumentError("the filler text has no sentences");
  // A sentence is measured as what it adds behind another one.
  const std::string& lead = sentences.front();
  const absl::StatusOr<uint64_t> lead_tokens = count(lead);
  if (!lead_tokens.ok()) return lead_tokens.status();
  std::vector<Sentence> measured;
  std::map<std::string, uint64_t> known;
  uint64_t total_tokens = 0;
  for (const std::string& text : sentences) {
    auto [entry, is_new] = known.try_emplace(text, 0);
    if (is_new) {
      const absl::StatusOr<uint64_t> both = count(absl::StrCat(lead, " ", text));
      if (!both.ok()) return both.status();
      entry->second = std::max<uint64_t>(1, *both - std::min(*both, *lead_tokens));
    }
    measured.push_back({text, entry->second});
    total_tokens += entry->second;
    if (total_tokens >= max_tokens) break;
  }
  return Filler(std::move(measured), start);
}

}  // namespace folio::eval
