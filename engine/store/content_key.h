#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace folio {

// SHA-256 of what something is made of: two things with the same key have the same content.
using ContentKey = std::array<uint8_t, 32>;

// Of a model, or of its tokenizer (fingerprint.h).
using Fingerprint = ContentKey;

// Lower case.
std::string HexOf(const ContentKey& key);

// What KV depends on beside the token ids before it. `attention` is the canonical text of a
// resolved attention spec; `salt` separates what must not be shared though it is computed alike (an
// adapter, a tenant).
ContentKey FirstKey(const Fingerprint& model, std::string_view attention, std::string_view salt);

// The keys of a rendition's segments are chained over its text, so that a text which grows has them
// too: the key of a segment covers the tokens of its pages, and through `previous` (the key of the
// segment before, FirstKey for the first) all before them.
ContentKey NextKey(const ContentKey& previous, std::span<const int32_t> token_ids);

}  // namespace folio
