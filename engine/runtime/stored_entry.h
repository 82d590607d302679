#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/runtime/document_directory.h"
#include "engine/runtime/document_keeper.h"
#include "engine/store/manifest.h"

namespace folio {

using ResolveStoredAttention =
    absl::FunctionRef<absl::StatusOr<AttentionSpec>(const AttentionSpec&)>;

// What the directory lists of a document that an earlier process has stored, but for its
// attachment. Its strategy and positions are those of `fallback` where the stored text is of
// another version of this program, or `resolve` refuses it for this model. An error in it: its
// token ids mean nothing here, or its adapter is not loaded.
DocumentDirectory::Stored StoredEntryOf(const Manifest& manifest, const DocumentKeeper& keeper,
                                        const AttentionSpec& fallback,
                                        ResolveStoredAttention resolve);

}  // namespace folio
