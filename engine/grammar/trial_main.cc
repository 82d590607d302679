// folio-grammar-trial KIND: compiles the grammar that it reads from standard input, under limits of
// processor time and memory, and follows some random answers. Exit status 0: the grammar is good;
// else standard output says what is wrong with it, or the process dies of a limit. The vocabulary
// is in file 3. Started by CompileTrial.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/splitmix.h"
#include "engine/grammar/compile_trial.h"
#include "engine/grammar/compiled_grammar.h"

namespace folio {
namespace {

constexpr int kNumWalks = 8;
constexpr int kMaxWalkTokens = 64;
// Of the processor's time for one token of an answer: others in the batch wait so long.
constexpr double kMaxSecondsPerToken = 0.02;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // shadow memory takes all addresses
#else
constexpr bool kSanitized = false;
#endif

// Beyond `value`; of processor time SIGXCPU comes then, and SIGKILL a second later.
void SetLimit(int resource, int64_t value) {
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value + 1)};
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
}

void SetLimits() {
  SetLimit(RLIMIT_CPU, kMaxTrialSeconds);
  SetLimit(RLIMIT_CORE, 0);
  if (!kSanitized) SetLimit(RLIMIT_AS, kMaxTrialBytes);
  // Where a container is short of memory this process is killed, not the server.
  if (std::FILE* const score = std::fopen("/proc/self/oom_score_adj", "w")) {
    std::fputs("1000", score);
    std::fclose(score);
  }
}

double Seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string_view Map(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0 || info.st_size == 0) return {};
  const auto size = static_cast<size_t>(info.st_size);
  const void* const bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  return bytes == MAP_FAILED ? std::string_view()
                             : std::string_view(static_cast<const char*>(bytes), size);
}

std::vector<std::string> ReadVocabulary() {
  std::string_view bytes = Map(kTrialVocabularyFd);
  std::vector<std::string> texts;
  uint32_t size = 0;
  while (bytes.size() >= sizeof(size)) {
    std::memcpy(&size, bytes.data(), sizeof(size));
    bytes.remove_prefix(sizeof(size));
    texts.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(std::min<size_t>(size, bytes.size()));
  }
  return texts;
}

// One of the allowed tokens.
int32_t Pick(const AnswerState& state, uint64_t random) {
  uint64_t count = 0;
  for (const uint32_t word : state.allowed())
    count += static_cast<unsigned>(__builtin_popcount(word));
  uint64_t skip = random % count;
  int32_t token = 0;
  while (!state.Allows(token) || skip-- > 0) ++token;
  return token;
}

// Walks through the grammar; the text of what is wrong, or "".
std::string Walk(const AnswerGrammar& grammar, uint64_t seed) {
  const std::unique_ptr<AnswerState> state = grammar.Begin({});
  for (int i = 0; i < kMaxWalkTokens && !state->must_end(); ++i) {
    if (!state->status().ok()) return std::string(state->status().message());
    const double start = Seconds();
    state->Accept(Pick(*state, SplitMix64(seed + static_cast<uint64_t>(i))));
    if (Seconds() - start > kMaxSecondsPerToken) {
      return absl::StrCat("takes more than ", 1000 * kMaxSecondsPerToken,
                          " ms for a token of an answer: make what repeats less ambiguous");
    }
  }
  return std::string(state->status().message());
}

std::string WhatIsWrong(std::string_view kind) {
  GrammarSource source;
  source.text = std::string(Map(STDIN_FILENO));
  source.kind = kind == "ebnf"    ? GrammarSource::Kind::kEbnf
                : kind == "regex" ? GrammarSource::Kind::kRegex
                                  : GrammarSource::Kind::kJsonSchema;
  const GrammarVocabulary vocabulary(ReadVocabulary());
  const auto grammar = CompileGrammar(vocabulary, source);
  if (!grammar.ok()) return std::string(grammar.status().message());
  if ((*grammar)->bytes() > kMaxGrammarBytes) {
    return absl::StrCat("is compiled to ", (*grammar)->bytes(), " bytes, the limit is ",
                        kMaxGrammarBytes, ": shorten it");
  }
  for (uint64_t walk = 0; walk < kNumWalks; ++walk) {
    if (std::string wrong = Walk(**grammar, SplitMix64(walk + 1)); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace
}  // namespace folio

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  folio::SetLimits();
  const std::string wrong = folio::WhatIsWrong(argv[1]);
  if (wrong.empty()) return 0;
  std::fwrite(wrong.data(), 1, wrong.size(), stdout);
  return std::fflush(stdout) == 0 ? 1 : 2;
}
