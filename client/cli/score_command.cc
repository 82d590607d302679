#include <cmath>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/attention_flags.h"
#include "client/cli/command.h"
#include "client/cli/exit_code.h"
#include "client/cli/format.h"
#include "client/cli/json_lines.h"
#include "client/cli/progress_line.h"
#include "client/cli/text_input.h"

namespace folio::cli {
namespace {

constexpr size_t kPartBytes = size_t{16} << 10;

struct ScoreFlags {
  std::string file;
  AttentionFlags attention;
  uint32_t bucket_tokens = 0;
  uint64_t repeat = 1;
};

// The parts of a file, as often as wanted, with a space between the copies.
class FileParts {
 public:
  FileParts(const client::DocumentSource& source, uint64_t repeat)
      : source_(source), left_(repeat) {}

  absl::StatusOr<std::optional<v1::ScoreRequest>> Next() {
    if (left_ == 0) return std::optional<v1::ScoreRequest>();
    const absl::StatusOr<std::string> data = source_.Read(offset_, kPartBytes);
    if (!data.ok()) return data.status();
    v1::ScoreRequest request;
    request.set_text(*data);
    offset_ += data->size();
    if (offset_ >= source_.size_bytes()) {
      offset_ = 0;
      if (--left_ > 0) request.mutable_text()->push_back(' ');
    }
    return std::optional<v1::ScoreRequest>(std::move(request));
  }

 private:
  const client::DocumentSource& source_;
  uint64_t left_;
  uint64_t offset_ = 0;
};

absl::Status Score(const ScoreFlags& flags, Invocation& invocation) {
  const auto attention = ParseAttention(flags.attention);
  if (!attention.ok()) return attention.status();
  const auto source = OpenText(flags.file, invocation.console);
  if (!source.ok()) return source.status();
  if ((*source)->size_bytes() == 0) {
    return AsFileError(absl::InvalidArgumentError(flags.file + " is empty"));
  }
  const auto client = invocation.Connect();
  if (!client.ok()) return client.status();
  v1::ScoreHeader header;
  SetAttention(*attention, &header);
  header.set_bucket_tokens(flags.bucket_tokens);
  FileParts parts(**source, flags.repeat);
  std::ostream& out = invocation.console.out;
  if (!invocation.json) out << "positions               tokens  perplexity\n";
  return (*client)->Score(
      header, [&parts] { return parts.Next(); }, {.cancel = invocation.cancel},
      [&](const v1::ScoreEvent& event) {
        if (invocation.json) {
          WriteJsonLine(out, event);
        } else if (event.has_bucket()) {
          const v1::ScoreBucket& b = event.bucket();
          const std::string range = absl::StrCat("[", b.begin(), ", ", b.end(), ")");
          out << absl::StrFormat("%-22s %8d %11.3f\n", range, b.num_tokens(),
                                 std::exp(-b.log_likelihood() / b.num_tokens()))
              << std::flush;
        } else if (event.has_completed()) {
          const v1::ScoreCompleted& c = event.completed();
          const uint64_t scored = c.num_tokens() > 0 ? c.num_tokens() - 1 : 0;
          out << absl::StrFormat("%-22s %8d %11.3f\n", "all", scored,
                                 scored == 0 ? 0.0 : std::exp(-c.log_likelihood() / scored));
          invocation.console.err << "KV " << FormatBytes(c.memory().device_kv_bytes_peak())
                                 << std::endl;
        }
      });
}

}  // namespace

Command AddScoreCommand(CLI::App& root) {
  const auto flags = std::make_shared<ScoreFlags>();
  CLI::App* app = root.add_subcommand(
      "score", "Perplexity of a text by position; of any length under lm_infinite");
  app->add_option("file", flags->file, "UTF-8 text file or pipe, or - for stdin")->required();
  app->add_option("--bucket-tokens", flags->bucket_tokens,
                  "Tokens in a bucket of positions (default: buckets that double)");
  app->add_option("--repeat", flags->repeat, "Read the file so many times, one after the other")
      ->check(CLI::PositiveNumber);
  AddAttentionFlags(*app, flags->attention);
  return {app, [flags](Invocation& invocation) { return Score(*flags, invocation); }};
}

}  // namespace folio::cli
