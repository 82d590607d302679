#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace folio {

// The bytes that a token of a byte-level vocabulary stands for: such files write each byte as one
// printable character (GPT-2, Radford et al. 2019: the printable ones of Latin-1 as themselves, the
// others as U+0100 and on). nullopt if a character of the token stands for no byte.
std::optional<std::string> ByteLevelBytes(std::string_view token);

}  // namespace folio
