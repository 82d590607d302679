// Comma-separated values (RFC 4180).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace folio::eval {

// The text, quoted if it has to be.
std::string CsvField(const std::string& text);

// The fields of the record that begins at `*at`, which moves behind it. Quoted fields may have line
// ends.
std::vector<std::string> ReadCsvRecord(const std::string& csv, size_t* at);

}  // namespace folio::eval
