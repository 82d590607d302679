#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace folio {

// XXH3 (Y. Collet): finds what broke by accident, not what was forged.
uint64_t Checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

// 128 bits: no two tensors that exist have the same by chance.
std::array<uint64_t, 2> Checksum128(std::span<const std::byte> bytes);

}  // namespace folio
