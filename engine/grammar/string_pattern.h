#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace folio {

// Rewrites the pattern of a JSON string so that what the library makes of it is right: `.`, negated
// classes and \S \D \W leave out what JSON must escape, and bounded repetitions are written out.
// (In patterns of schemas xgrammar 0.2.8 mixes up repetitions within groups and alternatives with
// what is beside them: bounded ones, and unbounded ones, which are refused.) Anchors around the
// whole fall away. Errors: INVALID_ARGUMENT for what is not supported, or repeats too much.
absl::StatusOr<std::string> PatternOfString(std::string_view pattern);

// Of strings of min to max characters; max < 0: no bound.
std::string PatternOfLength(int64_t min, int64_t max);

// Of strings of this format; null: it is not known.
const char* PatternOfFormat(std::string_view format);
// All that are known, for messages.
inline constexpr char kKnownFormats[] = "date, date-time, email, ipv4, time, uuid";

}  // namespace folio
