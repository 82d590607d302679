#include "engine/runtime/stored_entry.h"

#include "engine/runtime/attention_text.h"

namespace folio {

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
  if (const auto attention = ParseAttentionText(manifest.attention)) {
    const auto resolved = resolve(*attention);
    if (resolved.ok()) stored.attention = *resolved;
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
