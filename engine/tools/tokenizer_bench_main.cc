// folio-tokenizer-bench: speed and memory of a model's tokenizer on five kinds of text.
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_split.h"
#include "engine/base/input_file.h"
#include "engine/base/memory_info.h"
#include "engine/base/status_macros.h"
#include "engine/tokenizer/open_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"

ABSL_FLAG(std::string, tokenizer, "", "a tokenizer.model or a tokenizer.json");
ABSL_FLAG(std::string, prose, "", "text file that the kind prose repeats");
ABSL_FLAG(std::string, kinds, "prose,letter,random,cjk,emoji", "kinds of text to measure");
ABSL_FLAG(int64_t, bytes, 4 << 20, "size of each text");
ABSL_FLAG(int, rounds, 3, "repetitions; the least CPU time and the most memory are printed");

namespace folio {
namespace {

constexpr size_t kMaxProseBytes = 256 << 20;

void AppendUtf8(uint32_t code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint32_t kLeads[] = {0, 0xC0, 0xE0, 0xF0};
  text->push_back(static_cast<char>(kLeads[more] | code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) {
    text->push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3F)));
  }
}

uint32_t Below(uint32_t limit, std::mt19937* random) {
  return static_cast<uint32_t>((*random)()) % limit;
}

// Any character, those of one, two, three and four bytes as often.
uint32_t AnyCharacter(std::mt19937* random) {
  constexpr uint32_t kEnds[] = {0x80, 0x800, 0x10000, 0x110000};
  const uint32_t code = Below(kEnds[Below(4, random)], random);
  return code >= 0xD800 && code < 0xE000 ? 0xFFFD : code;
}

absl::StatusOr<std::string> MakeText(const std::string& kind, size_t num_bytes) {
  std::mt19937 random(1);
  std::string text;
  text.reserve(num_bytes);
  if (kind == "prose") {
    FOLIO_ASSIGN_OR_RETURN(const std::string prose,
                           ReadSmallFile(absl::GetFlag(FLAGS_prose), kMaxProseBytes));
    if (prose.empty()) return absl::InvalidArgumentError("--prose names an empty file");
    while (text.size() + prose.size() <= num_bytes) text += prose;
    if (text.empty()) return absl::InvalidArgumentError("--prose names a file above --bytes");
    return text;
  }
  while (text.size() + 4 <= num_bytes) {
    if (kind == "letter") {
      text.push_back('a');
    } else if (kind == "random") {
      AppendUtf8(AnyCharacter(&random), &text);
    } else if (kind == "cjk") {
      AppendUtf8(0x4E00 + Below(0x5200, &random), &text);
    } else if (kind == "emoji") {
      AppendUtf8(0x1F600 + Below(0x50, &random), &text);
    } else {
      return absl::InvalidArgumentError("--kinds: known are prose, letter, random, cjk and emoji");
    }
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Open(const std::string& path) {
  constexpr int kAnyVocabulary = 1 << 30;
  constexpr size_t kMaxFileBytes = 256 << 20;
  if (path.ends_with(".json")) {
    FOLIO_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxFileBytes));
    return TokenizerFromJson(path, text, {}, kAnyVocabulary);
  }
  FOLIO_ASSIGN_OR_RETURN(auto tokenizer, SentencePieceTokenizer::Open(path, kAnyVocabulary));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

// The resident set is at its highest now.
void ForgetPeak() {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;
}

absl::Status Measure(const Tokenizer& tokenizer, const std::string& kind) {
  FOLIO_ASSIGN_OR_RETURN(const std::string text,
                         MakeText(kind, static_cast<size_t>(absl::GetFlag(FLAGS_bytes))));
  double best_s = 0;
  int64_t most_bytes = 0;
  size_t num_tokens = 0;
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    ForgetPeak();
    const int64_t before = ResidentBytes();
    const std::clock_t start = std::clock();
    const auto ids = tokenizer.Encode(text);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    FOLIO_RETURN_IF_ERROR(ids.status());
    num_tokens = ids->size();
    most_bytes = std::max(most_bytes, PeakResidentBytes() - before);
    if (round == 0 || seconds < best_s) best_s = seconds;
  }
  const auto num_bytes = static_cast<double>(text.size());
  std::printf("%-8s %10zu %10zu %8.3f %8.1f %10.1f %8.1f\n", kind.c_str(), text.size(), num_tokens,
              best_s, num_bytes / best_s / 1e6, static_cast<double>(most_bytes) / (1 << 20),
              static_cast<double>(most_bytes) / num_bytes);
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Run() {
  FOLIO_ASSIGN_OR_RETURN(const auto tokenizer, Open(absl::GetFlag(FLAGS_tokenizer)));
  std::printf("%-8s %10s %10s %8s %8s %10s %8s\n", "text", "bytes", "tokens", "CPU s", "MB/s",
              "peak MiB", "B/byte");
  const std::vector<std::string> kinds = absl::StrSplit(absl::GetFlag(FLAGS_kinds), ',');
  for (const std::string& kind : kinds) FOLIO_RETURN_IF_ERROR(Measure(*tokenizer, kind));
  return absl::OkStatus();
}

}  // namespace
}  // namespace folio

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Measures a tokenizer: speed, and memory beside the text (tokens included).");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = folio::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "folio-tokenizer-bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
