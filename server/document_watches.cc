#include "server/document_watches.h"

#include <utility>
#include <vector>

namespace folio::server {

class DocumentWatches::Watched final : public PumpTarget,
                                       public std::enable_shared_from_this<Watched> {
 public:
  Watched(DocumentWatches* watches, std::string id) : watches_(watches), id_(std::move(id)) {}

  // Before the pump looks, it is woken for a change once.
  void Note() noexcept {
    if (!noted_.exchange(true)) watches_->pump_->Wake(shared_from_this());
  }

  // PumpTarget.
  void Handle(Event) override {}
  void Tick(SteadyTime now) override {
    noted_ = false;  // first: what changes from now on is looked at once more
    const Engine* const engine = watches_->engine_();
    if (engine == nullptr) return;
    const std::optional<DocumentInfo> document = engine->GetDocument(id_);
    for (const auto& watcher : Watchers()) {
      watches_->pump_->Run(watcher, [&] { watcher->OnDocument(document, now); });
    }
  }
  // It could not be woken: it is of no use any more.
  void Stop(const absl::Status& status) override {
    for (const auto& watcher : Watchers()) watcher->Stop(status);
    watches_->Forget(id_, this);
  }

  // Under the mutex of `watches`.
  std::set<std::shared_ptr<DocumentWatcher>> watchers;

 private:
  std::vector<std::shared_ptr<DocumentWatcher>> Watchers() const {
    MutexLock lock(&watches_->mu_);
    return {watchers.begin(), watchers.end()};
  }

  DocumentWatches* const watches_;
  const std::string id_;
  std::atomic<bool> noted_ = false;
};

void DocumentWatches::Join(const std::string& id, std::shared_ptr<DocumentWatcher> watcher) {
  std::shared_ptr<Watched> watched;
  {
    MutexLock lock(&mu_);
    std::shared_ptr<Watched>& place = watched_[id];
    if (place == nullptr) place = std::make_shared<Watched>(this, id);
    place->watchers.insert(std::move(watcher));
    watched = place;
    num_watched_ = static_cast<int>(watched_.size());
  }
  watched->Note();
}

void DocumentWatches::Leave(const std::string& id,
                            const std::shared_ptr<DocumentWatcher>& watcher) {
  MutexLock lock(&mu_);
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  it->second->watchers.erase(watcher);
  if (it->second->watchers.empty()) watched_.erase(it);
  num_watched_ = static_cast<int>(watched_.size());
}

void DocumentWatches::Forget(const std::string& id, const Watched* watched) {
  MutexLock lock(&mu_);
  const auto it = watched_.find(id);
  if (it != watched_.end() && it->second.get() == watched) watched_.erase(it);
  num_watched_ = static_cast<int>(watched_.size());
}

void DocumentWatches::OnChange(const DocumentHandle& document) noexcept {
  if (num_watched_ == 0) return;
  std::shared_ptr<Watched> watched;
  {
    MutexLock lock(&mu_);
    const auto it = watched_.find(document.id);
    if (it == watched_.end()) return;
    watched = it->second;
  }
  watched->Note();
}

}  // namespace folio::server
