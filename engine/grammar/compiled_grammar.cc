#include "engine/grammar/compiled_grammar.h"

#include <time.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/catch_errors.h"

namespace {

// What the library warned of in this thread: that it leaves something out of what was asked for.
thread_local std::string first_warning;
constexpr int kWarning = 2;

}  // namespace

// The library's own hooks (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level == kWarning && first_warning.empty()) first_warning = message;
}

}  // namespace xgrammar

namespace folio {
namespace {

// Of the processor's time; more than this for one token, and the answer ends.
constexpr double kMaxSecondsPerToken = 0.25;

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class State final : public AnswerState {
 public:
  State(const xgrammar::CompiledGrammar& grammar, int vocab_size,
        const std::vector<int32_t>& ending)
      : vocab_size_(static_cast<size_t>(vocab_size)),
        ending_(ending.begin(), ending.end()),
        matcher_(grammar, EndsOf(ending, vocab_size)),
        mask_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size + 1))),
        allowed_(static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size))) {
    Update([] { return true; });
  }

  const std::vector<uint32_t>& allowed() const override { return allowed_; }
  bool must_end() const override { return must_end_; }
  const absl::Status& status() const override { return status_; }

  void Accept(int32_t token) override {
    Update([this, token] { return matcher_.AcceptToken(token); });
  }

 private:
  // The library wants at least one: then the token behind the vocabulary.
  static std::vector<int> EndsOf(const std::vector<int32_t>& ending, int vocab_size) {
    return ending.empty() ? std::vector<int>{vocab_size} : ending;
  }

  template <typename Step>
  void Update(const Step& step) {
    if (!status_.ok()) return;
    const double start = ThreadSeconds();
    absl::Status done = StatusOf([&] {
      if (!step()) return absl::InternalError("the grammar refuses a token that it has allowed");
      FillAllowed();
      return absl::OkStatus();
    });
    if (done.ok() && ThreadSeconds() - start > kMaxSecondsPerToken) {
      done = absl::ResourceExhaustedError(
          "the constraint takes too long to follow: make it less ambiguous");
    }
    if (done.ok() && !must_end_ &&
        std::ranges::all_of(allowed_, [](auto word) { return word == 0; })) {
      done = absl::FailedPreconditionError(
          "no token is left to draw: the vocabulary has none that goes on as the constraint wants");
    }
    if (done.ok()) return;
    status_ = std::move(done);
    std::ranges::fill(allowed_, 0u);
  }

  void FillAllowed() {
    auto shape = static_cast<int64_t>(mask_.size());
    DLTensor tensor{mask_.data(), {kDLCPU, 0}, 1, xgrammar::GetBitmaskDLType(), &shape, nullptr, 0};
    matcher_.FillNextTokenBitmask(&tensor);
    // Bits behind the vocabulary mean nothing.
    mask_[vocab_size_ / 32] &= (1u << (vocab_size_ % 32)) - 1;
    std::copy_n(mask_.begin(), allowed_.size(), allowed_.begin());
    if (!matcher_.IsCompleted()) return;
    // What is left may be an end alone.
    size_t num_ends = 0;
    for (const int32_t token : ending_) num_ends += Allows(token) ? 1 : 0;
    size_t num_allowed = 0;
    for (const uint32_t word : allowed_)
      num_allowed += static_cast<size_t>(__builtin_popcount(word));
    must_end_ = num_allowed == num_ends;
  }

  const size_t vocab_size_;
  const std::vector<int> ending_;  // each once
  xgrammar::GrammarMatcher matcher_;
  std::vector<uint32_t> mask_;  // with one token behind the vocabulary
  std::vector<uint32_t> allowed_;
  bool must_end_ = false;
  absl::Status status_;
};

class Compiled final : public AnswerGrammar {
 public:
  explicit Compiled(xgrammar::CompiledGrammar grammar) : grammar_(std::move(grammar)) {}

  std::unique_ptr<AnswerState> Begin(const std::vector<int32_t>& ending) const override {
    std::vector<int32_t> once = ending;
    std::ranges::sort(once);
    once.erase(std::unique(once.begin(), once.end()), once.end());
    return std::make_unique<State>(grammar_, grammar_.GetTokenizerInfo().GetVocabSize() - 1, once);
  }
  int64_t bytes() const override { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }

 private:
  const xgrammar::CompiledGrammar grammar_;
};

xgrammar::CompiledGrammar Compile(const xgrammar::TokenizerInfo& vocabulary,
                                  const GrammarSource& source) {
  xgrammar::GrammarCompiler compiler(vocabulary, /*max_threads=*/1, /*cache_enabled=*/false);
  switch (source.kind) {
    case GrammarSource::Kind::kEbnf:
      return compiler.CompileGrammar(source.text);
    case GrammarSource::Kind::kRegex:
      return compiler.CompileRegex(source.text);
    case GrammarSource::Kind::kJsonSchema:
      break;
  }
  // One line: with free white space an answer may go on without getting anywhere.
  return compiler.CompileJSONSchema(source.text, /*any_whitespace=*/false);
}

}  // namespace

struct GrammarVocabulary::Impl {
  xgrammar::TokenizerInfo info;
};

// One more than there are, for State::EndsOf.
GrammarVocabulary::GrammarVocabulary(const std::vector<std::string>& texts)
    : impl_(std::make_unique<Impl>(Impl{xgrammar::TokenizerInfo(
          texts, xgrammar::VocabType::RAW, static_cast<int>(texts.size()) + 1,
          std::vector<int32_t>{static_cast<int32_t>(texts.size())})})) {}
GrammarVocabulary::~GrammarVocabulary() = default;

std::vector<std::string> TextsOfTokens(const Tokenizer& tokenizer, int vocab_size) {
  std::vector<std::string> texts(static_cast<size_t>(vocab_size));
  const size_t known = std::min(texts.size(), tokenizer.pieces().size());
  for (size_t id = 0; id < known; ++id) {
    const Piece& piece = tokenizer.pieces()[id];
    if (piece.kind == PieceKind::kText || piece.kind == PieceKind::kBytes) texts[id] = piece.text;
  }
  return texts;
}

absl::StatusOr<std::shared_ptr<const AnswerGrammar>> CompileGrammar(
    const GrammarVocabulary& vocabulary, const GrammarSource& source) {
  first_warning.clear();
  std::shared_ptr<const AnswerGrammar> grammar;
  try {
    grammar = std::make_shared<Compiled>(Compile(vocabulary.impl().info, source));
  } catch (const std::bad_alloc&) {
    return absl::InvalidArgumentError("needs too much memory to be compiled: shorten it");
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (first_warning.empty()) return grammar;
  return absl::InvalidArgumentError(first_warning);
}

}  // namespace folio
