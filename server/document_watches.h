#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "server/event_pump.h"

namespace folio::server {

// A stream that tells of one document. Called on the pump thread; what it throws fails the stream.
class DocumentWatcher : public PumpTarget {
 public:
  // The document as it is now; nullopt: there is none with its id.
  virtual void OnDocument(const std::optional<DocumentInfo>& document, SteadyTime now) = 0;
};

// Which streams watch which documents. A change costs whoever makes it the same however many watch:
// the pump is woken once, and looks at the document for all of them. No change is lost: one that
// comes while the pump looks wakes it again. Thread-safe; outlives the engine.
class DocumentWatches {
 public:
  // Borrows the pump. `engine` may give nullptr.
  DocumentWatches(EventPump* pump, std::function<Engine*()> engine)
      : pump_(pump), engine_(std::move(engine)) {}

  // The watcher is told of the document now, and after each change until Leave.
  void Join(const std::string& id, std::shared_ptr<DocumentWatcher> watcher);
  void Leave(const std::string& id, const std::shared_ptr<DocumentWatcher>& watcher);
  // The document has changed. Needs no memory.
  void OnChange(const DocumentHandle& document) noexcept;

 private:
  // One document that somebody watches.
  class Watched;
  void Forget(const std::string& id, const Watched* watched);

  EventPump* const pump_;
  const std::function<Engine*()> engine_;
  std::atomic<int> num_watched_ = 0;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<Watched>> watched_ FOLIO_GUARDED_BY(mu_);  // by id
};

}  // namespace folio::server
