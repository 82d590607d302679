#include "engine/runtime/stored_entry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/runtime/attention_text.h"

namespace folio {

namespace {

// Its own files may have changed since: then no cache is that of the attention.
absl::Status SetAdapter(const AdapterSpec& adapter, ResolveStoredAttention resolve,
                        AttentionSpec* attention) {
  if (adapter.name.empty()) return absl::OkStatus();
  attention->adapter = adapter;
  const auto resolved = resolve(*attention);
  if (!resolved.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the document was uploaded for the adapter ", Quoted(adapter.name),
                     ", which is not loaded; start the server with --lora ", adapter.name,
                     "=DIR, or delete the document and upload it again"));
  }
  *attention = *resolved;
  return absl::OkStatus();
}

}  // namespace

DocumentDirectory::Stored StoredEntryOf(const Manifest& manifest, const DocumentKeeper& keeper,
                                        const AttentionSpec& fallback,
                                        ResolveStoredAttention resolve) {
  DocumentDirectory::Stored stored;
  stored.handle = {manifest.id, manifest.incarnation};
  stored.attention = fallback;
  stored.num_tokens = manifest.num_tokens();
  stored.stored_bytes = manifest.data_bytes();
  stored.text_bytes = manifest.text_bytes;
  stored.whole = manifest.state == StoredState::kComplete;
  stored.attributes = manifest.attributes;
  if (auto attention = ParseAttentionText(manifest.attention)) {
    const AdapterSpec adapter = std::exchange(attention->adapter, {});
    const auto resolved = resolve(*attention);
    if (resolved.ok()) stored.attention = *resolved;
    stored.error = SetAdapter(adapter, resolve, &stored.attention);
  }
  const StoredRendition* const cache = keeper.CacheOf(manifest);
  if (cache != nullptr && cache->attention == AttentionText(stored.attention)) {
    stored.cached_tokens = cache->num_tokens;
  }
  if (!keeper.KnowsTokens(manifest)) {
    stored.error = absl::FailedPreconditionError(
        "the document was tokenised by another tokenizer than that of this model; upload it "
        "again");
  }
  return stored;
}

}  // namespace folio
