#include "engine/grammar/compile_trial.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace folio {
namespace {

using Clock = std::chrono::steady_clock;

// For a process that is not given its processor time.
constexpr auto kDeadline = std::chrono::seconds(30);
constexpr size_t kMaxMessageBytes = 4096;

absl::Status Failed(const char* what) {
  return absl::InternalError(
      absl::StrCat("a constraint cannot be compiled: ", what, ": ", strerror(errno)));
}

// A file without a name that holds `bytes`, its offset at the start.
absl::StatusOr<int> FileOf(const char* name, std::string_view bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create");
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      close(fd);
      return Failed("write");
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

const char* NameOf(GrammarSource::Kind kind) {
  switch (kind) {
    case GrammarSource::Kind::kEbnf:
      return "ebnf";
    case GrammarSource::Kind::kRegex:
      return "regex";
    case GrammarSource::Kind::kJsonSchema:
      break;
  }
  return "json-schema";
}

// What the process prints until it ends or the deadline passes.
std::string ReadAll(int fd) {
  const auto deadline = Clock::now() + kDeadline;
  std::string text;
  char buffer[kMaxMessageBytes];
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return text;
    pollfd wait{fd, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(left)) <= 0) continue;
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    const size_t room = kMaxMessageBytes - text.size();
    text.append(buffer, std::min(room, static_cast<size_t>(got)));
  }
}

absl::StatusOr<pid_t> Spawn(const std::string& program, const char* kind, int vocabulary,
                            int source, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, source, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, vocabulary, kTrialVocabularyFd);
  posix_spawn_file_actions_addclosefrom_np(&actions, kTrialVocabularyFd + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = program;
  std::string kind_name = kind;
  char* const arguments[] = {name.data(), kind_name.data(), nullptr};
  pid_t pid = 0;
  errno = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (errno != 0) return Failed("posix_spawn");
  return pid;
}

absl::Status Verdict(int wait_status, const std::string& message) {
  if (WIFEXITED(wait_status)) {
    if (WEXITSTATUS(wait_status) == 0) return absl::OkStatus();
    if (!message.empty()) return absl::InvalidArgumentError(message);
    return absl::InternalError("a constraint cannot be compiled: its process ends without a word");
  }
  const int signal = WTERMSIG(wait_status);
  if (signal == SIGXCPU) {
    return absl::InvalidArgumentError(
        absl::StrCat("takes more than ", kMaxTrialSeconds,
                     " s to compile: shorten it, or make what repeats less ambiguous"));
  }
  return absl::InvalidArgumentError(
      "takes too long, too deep a stack or too much memory to be "
      "compiled: shorten it");
}

}  // namespace

std::string DefaultTrialProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / "folio-grammar-trial").string();
}

absl::StatusOr<std::unique_ptr<CompileTrial>> CompileTrial::Create(
    std::string program, const std::vector<std::string>& texts) {
  if (access(program.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server compiles no constraints: there is no program ", program));
  }
  std::string bytes;
  for (const std::string& text : texts) {
    const auto size = static_cast<uint32_t>(text.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof(size));
    bytes += text;
  }
  FOLIO_ASSIGN_OR_RETURN(const int vocabulary, FileOf("folio-vocabulary", bytes));
  return std::unique_ptr<CompileTrial>(new CompileTrial(std::move(program), vocabulary));
}

CompileTrial::~CompileTrial() { close(vocabulary_); }

absl::Status CompileTrial::Run(const GrammarSource& source) const {
  FOLIO_ASSIGN_OR_RETURN(const int text, FileOf("folio-grammar", source.text));
  const absl::Cleanup close_text = [text] { close(text); };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Failed("pipe2");
  const absl::Cleanup close_output = [&ends] { close(ends[0]); };
  const auto pid = Spawn(program_, NameOf(source.kind), vocabulary_, text, ends[1]);
  close(ends[1]);
  if (!pid.ok()) return pid.status();
  const std::string message = ReadAll(ends[0]);
  kill(*pid, SIGKILL);  // unless it has ended by itself
  int wait_status = 0;
  while (waitpid(*pid, &wait_status, 0) < 0) {
    if (errno != EINTR) return Failed("waitpid");
  }
  return Verdict(wait_status, message);
}

}  // namespace folio
