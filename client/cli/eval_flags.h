// What the measurements of `folio eval` have in common.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/eval/eval_runner.h"
#include "client/eval/methods.h"
#include "client/eval/task.h"

namespace folio::cli {

struct EvalFlags {
  std::vector<std::string> strategies;
  std::vector<uint64_t> multiples = {1, 2, 4, 8, 16, 32, 64};
  std::vector<uint64_t> tokens;
  int num_trials = 50;
  int concurrency = 4;
  std::string filler = "grass";
  std::string generator = "landmark";
  uint64_t seed = 1;
  std::string output;
  bool resume = false;
  std::string picture;
  int num_depths = 10;
  std::string text;
  uint32_t bucket_tokens = 0;
};

enum class EvalTaskKind { kPasskey, kNeedle, kKvRetrieval };
const char* TaskName(EvalTaskKind kind);

// An empty path writes nothing.
absl::Status WriteFile(const std::string& path, const std::string& content);

// The whole lines of the file; empty if there is none.
std::string ReadIfThere(const std::string& path);

// --output, growing by a record as soon as that is known: an interrupted run can be resumed.
class RecordFile {
 public:
  // An empty path keeps nothing.
  static absl::StatusOr<RecordFile> Create(const std::string& path, const std::string& begin);
  void Add(const std::string& records) {
    if (file_.is_open()) file_ << records << std::flush;
  }

 private:
  std::ofstream file_;
};

absl::StatusOr<std::vector<eval::Method>> MethodsOf(const EvalFlags& flags);
// Everything but what is known and what is reported.
absl::StatusOr<eval::EvalPlan> MakePlan(const EvalFlags& flags, const v1::ServerInfo& info,
                                        const client::CancelToken& cancel);
absl::StatusOr<std::unique_ptr<eval::EvalTask>> MakeTask(EvalTaskKind kind, const EvalFlags& flags,
                                                         const eval::EvalPlan& plan,
                                                         client::Client& client);
// The first trial without an answer makes the command fail, after everything was shown.
absl::Status FirstError(const std::vector<eval::TrialResult>& results);

absl::Status EvalTrials(const EvalFlags& flags, EvalTaskKind kind, Invocation& invocation);
absl::Status EvalPerplexity(const EvalFlags& flags, Invocation& invocation);
absl::Status EvalCoverage(const EvalFlags& flags, Invocation& invocation);

}  // namespace folio::cli
