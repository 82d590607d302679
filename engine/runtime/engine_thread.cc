#include "engine/runtime/engine_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace folio {

EngineThread::EngineThread(EngineLoop* loop, KvStore* store) : loop_(loop), store_(store) {
  Publish(false);
  thread_ = std::thread([this] { Main(); });
}

EngineThread::~EngineThread() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void EngineThread::Post(Command command) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    inbox_.push_back(std::move(command));
  }
  wake_.notify_one();
}

EngineStats EngineThread::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

std::optional<EngineThread::DocumentProgress> EngineThread::Progress(
    const std::string& document_id) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto it = progress_.find(document_id);
  if (it == progress_.end()) return std::nullopt;
  return it->second;
}

bool EngineThread::TakeCommands(bool idle, std::vector<Command>* commands) {
  commands->clear();
  std::unique_lock<std::mutex> lock(mu_);
  const auto has_work = [this] { return stopping_ || !inbox_.empty(); };
  if (idle && !has_work()) {
    const std::optional<SteadyTime> deadline = loop_->NextDeadline();
    if (deadline.has_value()) {
      wake_.wait_until(lock, *deadline, has_work);
    } else {
      wake_.wait(lock, has_work);
    }
  }
  commands->swap(inbox_);
  return !stopping_;
}

void EngineThread::Publish(bool busy) {
  EngineStats stats;
  const EngineLoop::Counters& counters = loop_->counters();
  stats.running = loop_->num_running();
  stats.waiting = loop_->num_waiting();
  stats.waiting_prefill_tokens = loop_->waiting_prefill_tokens();
  stats.kv_used_bytes = store_->used_page_bytes();
  stats.summary_used_bytes = store_->used_summary_bytes();
  stats.kv_reserved_bytes = store_->reserved_bytes();
  stats.kv_capacity_bytes = store_->capacity_bytes();
  stats.steps = counters.steps;
  stats.prefill_tokens = counters.prefill_tokens;
  stats.decode_tokens = counters.decode_tokens;
  stats.cached_tokens = counters.cached_tokens;
  stats.busy = busy;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  stats.last_step_unix_seconds = std::chrono::duration<double>(now).count();

  std::unordered_map<std::string, DocumentProgress> progress;
  for (const auto& [id, document] : loop_->documents().documents()) {
    DocumentProgress& entry = progress[id];
    entry.status = document->status;
    entry.prefilled_tokens = document->primary().sequence.num_in_kv;
    for (const auto& rendition : document->renditions) {
      entry.kv_bytes += store_->OwnPageBytes(rendition->sequence.kv);
      entry.summary_bytes += store_->SummaryBytes(rendition->sequence.kv);
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  stats_ = stats;
  progress_.swap(progress);
}

void EngineThread::Main() {
  pthread_setname_np(pthread_self(), "engine");
  std::vector<Command> commands;
  bool idle = false;
  while (TakeCommands(idle, &commands)) {
    for (Command& command : commands) command(*loop_);
    if (!commands.empty()) Publish(true);
    idle = !loop_->RunStep();
    Publish(!idle);
  }
  for (Command& command : commands) command(*loop_);
  loop_->FailAll(absl::UnavailableError("the server is shutting down"));
  Publish(false);
}

}  // namespace folio
