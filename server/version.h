#pragma once

namespace folio::server {

inline constexpr char kVersion[] = FOLIO_VERSION;

}  // namespace folio::server
