#pragma once

#include <vector>

#include "engine/runtime/engine_loop.h"
#include "engine/runtime/model_runner.h"

namespace folio {

// Runs the steps of an engine loop on a loaded model. Borrows the transformer.
class TransformerRunner : public EngineLoop::StepRunner {
 public:
  explicit TransformerRunner(Transformer* transformer)
      : transformer_(transformer), runner_(transformer) {}

  absl::Status Reserve(const ScheduledTokens& part, bool first) override {
    return runner_.Reserve(part, first);
  }
  void Start(const std::vector<ScheduledTokens>& step) override { runner_.Start(step); }
  ModelRunner::Results Finish() override { return runner_.Finish(); }
  bool runs_ahead() const override { return transformer_->runs_ahead(); }
  absl::Status status() const override { return transformer_->status(); }

 private:
  Transformer* const transformer_;
  ModelRunner runner_;
};

}  // namespace folio
