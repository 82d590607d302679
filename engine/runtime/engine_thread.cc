#include "engine/runtime/engine_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "engine/base/catch_errors.h"

namespace folio {

EngineThread::EngineThread(EngineLoop* loop, KvStore* store) : loop_(loop), store_(store) {
  Publish(false);
  thread_ = std::thread([this] { Main(); });
}

void EngineThread::Stop() {
  if (!thread_.joinable()) return;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.NotifyOne();
  thread_.join();
}

void EngineThread::PostMade(EngineCommands commands) noexcept {
  {
    MutexLock lock(&mu_);
    inbox_.splice(inbox_.end(), commands);
  }
  wake_.NotifyOne();
}

void EngineThread::Post(EngineCommand command, const LoadItem& request) {
  EngineCommands commands = OneCommand(std::move(command));
  {
    MutexLock lock(&mu_);
    new_requests_.push_back(request);
    ++num_posted_;
    inbox_.splice(inbox_.end(), commands);
  }
  wake_.NotifyOne();
}

EngineStats EngineThread::Stats() const {
  MutexLock lock(&mu_);
  EngineStats stats = stats_;
  stats.posted = num_posted_;
  return stats;
}

WorkLoad EngineThread::GetLoad() const {
  const SteadyTime now = std::chrono::steady_clock::now();
  MutexLock lock(&mu_);
  WorkLoad load = load_;
  load.in_step = stats_.busy;
  load.step_elapsed_seconds = std::chrono::duration<double>(now - published_).count();
  for (LoadItem request : new_requests_) {
    ComesNow(load, &request);
    load.items.push_back(request);
  }
  return load;
}

AnswerLengths EngineThread::answer_lengths() const {
  MutexLock lock(&mu_);
  return load_.answers;
}

bool EngineThread::TakeCommands(bool idle, EngineCommands* commands) {
  commands->clear();
  std::optional<SteadyTime> deadline;
  if (idle) deadline = loop_->NextDeadline();
  MutexLock lock(&mu_);
  while (idle && !stopping_ && inbox_.empty()) {
    if (!deadline.has_value()) {
      wake_.Wait(&mu_);
    } else if (!wake_.WaitUntil(&mu_, *deadline)) {
      break;
    }
  }
  commands->swap(inbox_);
  num_taken_ = new_requests_.size();
  num_posted_taken_ = num_posted_;
  return !stopping_;
}

// Where steps are short, a part of them only is described: little time is for that. The last one
// always is, as what it leaves behind may be all there is for hours.
bool EngineThread::DescribeLoad(bool busy) {
  constexpr int kPartOfTime = 50;
  const SteadyTime begin = std::chrono::steady_clock::now();
  if (busy && begin < describes_again_) return false;
  // Without memory the last one stays.
  const bool described = CatchErrors([&] { loop_->Describe(&next_load_); }).ok();
  const SteadyTime end = std::chrono::steady_clock::now();
  describes_again_ = end + kPartOfTime * (end - begin);
  return described;
}

void EngineThread::TakeDescribedLoad() {
  std::swap(load_, next_load_);
  new_requests_.erase(new_requests_.begin(),
                      new_requests_.begin() + static_cast<std::ptrdiff_t>(num_taken_));
  num_taken_ = 0;
}

void EngineThread::Publish(bool busy) {
  EngineStats stats;
  const EngineLoop::Counters& counters = loop_->counters();
  stats.running = loop_->num_running();
  stats.waiting = loop_->num_waiting();
  stats.waiting_for_memory = loop_->num_waiting_for(Generation::Wait::kMemory);
  stats.waiting_for_document = loop_->num_waiting_for(Generation::Wait::kDocument);
  stats.waiting_prefill_tokens = loop_->waiting_prefill_tokens();
  stats.kv_used_bytes = store_->used_page_bytes();
  stats.summary_used_bytes = store_->used_summary_bytes();
  stats.kv_reserved_bytes = store_->reserved_bytes();
  stats.kv_capacity_bytes = store_->capacity_bytes();
  stats.kv_staying_bytes = loop_->documents().staying_bytes();
  stats.kv_evictable_bytes = loop_->documents().evictable_bytes();
  if (store_->tiered()) {
    stats.kv_memory_bytes = store_->memory_bytes();
    const SliceReads reads = store_->reads();
    stats.home = store_->home();
    stats.home_used_bytes = store_->used_home_bytes();
    stats.slice_hits = reads.hits;
    stats.slice_misses = reads.misses;
    stats.home_read_bytes = reads.bytes_in;
    stats.disk_wait_seconds = reads.seconds_waited;
    stats.caches_read = loop_->restores().num_read();
    stats.caches_prefilled = loop_->restores().num_prefilled();
  }
  stats.steps = counters.steps;
  stats.step_times = counters.step_times;
  stats.prefill_tokens = counters.prefill_tokens;
  stats.decode_tokens = counters.decode_tokens;
  stats.cached_tokens = counters.cached_tokens;
  stats.nonfinite_logits = counters.nonfinite_logits;
  stats.busy = busy;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  stats.last_step_unix_seconds = std::chrono::duration<double>(now).count();
  stats.step_seconds = loop_->last_step().seconds;
  stats.step_answers = loop_->last_step().answers;
  stats.step_prompt_tokens = loop_->last_step().prompt_tokens;
  stats.prefill_token_seconds = loop_->PrefillTokenSeconds();
  const bool described = DescribeLoad(busy);
  MutexLock lock(&mu_);
  stats_ = stats;
  num_posted_ -= std::exchange(num_posted_taken_, 0);
  published_ = std::chrono::steady_clock::now();
  if (described) TakeDescribedLoad();
}

void EngineThread::Apply(EngineCommands* commands) {
  for (EngineCommand& command : *commands) {
    const absl::Status applied = CatchErrors([&] { command.run(*loop_); });
    if (!applied.ok()) command.fail(*loop_, applied);
  }
}

void EngineThread::Main() {
  pthread_setname_np(pthread_self(), "engine");
  EngineCommands commands;
  bool idle = false;
  while (TakeCommands(idle, &commands)) {
    Apply(&commands);
    absl::Status ran = absl::OkStatus();
    if (!commands.empty()) {
      // Statistics must not show as waiting what has a place.
      ran = CatchErrors([&] { loop_->AdmitRequests(); });
      Publish(true);
    }
    if (ran.ok()) ran = CatchErrors([&] { idle = !loop_->RunStep(); });
    if (!ran.ok()) loop_->FailAll(ran);  // what the loop has not caught itself
    Publish(!idle);
  }
  Apply(&commands);
  loop_->FailAll(StatusOf([] { return absl::UnavailableError("the server is shutting down"); }));
  Publish(false);
}

}  // namespace folio
