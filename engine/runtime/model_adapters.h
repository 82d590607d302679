#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/adapter.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/loaded_model.h"

namespace folio {

// The adapters that a model is to have, checked against it before its memory is planned.
class ModelAdapters {
 public:
  // Errors: INVALID_ARGUMENT (names, their number), those of AdapterFile::Open; they name the
  // adapter.
  static absl::StatusOr<ModelAdapters> Open(const EngineOptions& options,
                                            const ModelConfig& config);

  // Of all of them, with what their products are kept in for steps of so many rows.
  int64_t bytes(int max_step_rows) const;
  int64_t max_rank() const;

  // Gives the model its adapters, what they are known by, and what is told of them. Errors: those
  // of AdapterFile::Load.
  absl::Status Load(LoadedModel* model) const;

 private:
  struct Named {
    std::string name;
    AdapterFile file;
  };
  std::vector<Named> adapters_;
};

}  // namespace folio
