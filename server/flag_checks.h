#pragma once

#include <CLI/CLI.hpp>

namespace folio::server {

// What flags of numbers may be.
inline const CLI::Range kAtLeastOne(1, 1 << 30);
inline const CLI::Range kCount(0, 1 << 30);

// A number of bytes, or one with a unit: KB is 1000 bytes, KiB is 1024.
inline const CLI::AsSizeValue kSize(/*kb_is_1000=*/true);

}  // namespace folio::server
