#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backend/backend.h"
#include "engine/kv/kv_store.h"
#include "engine/runtime/loaded_model.h"
#include "engine/store/fingerprint.h"

namespace folio {

// Where the cache of a model goes that leaves the device, and where its documents are kept: what
// --kv-dir and --kv-host-bytes ask for.

// Errors: INVALID_ARGUMENT if the backend cannot have such tiers.
absl::Status CheckTiers(const EngineOptions& options, Backend* backend);

// Opens the directory, and makes the home of pages in it, which the model owns. Errors: of
// OpenFiles and DiskBytes, and those of the file system.
absl::StatusOr<KvTiers> SetupTiers(const EngineOptions& options, const KvGeometry& geometry,
                                   LoadedModel* model);

// Opens the store of documents, if there is a directory; `tensors` are those of the model's
// weights. Errors: as SetupTiers.
absl::Status SetupKeeper(const EngineOptions& options, const KvGeometry& geometry,
                         const TensorDigests& tensors, LoadedModel* model);

}  // namespace folio
