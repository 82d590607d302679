// Numbers for people. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "folio/v1/inference.pb.h"

namespace folio::cli {

// "512 B", "1.5 MiB".
std::string FormatBytes(uint64_t bytes);

// "8.3 ms", "0.25 s", "12 s", "3 min 05 s", "2 h 03 min".
std::string FormatSeconds(double seconds);

// One line after an answer: tokens, time to the first one, speed, memory.
std::string FormatSummary(const v1::Completed& completed);

// What a request or a document would take, in lines.
std::string FormatEstimate(const v1::EstimateResponse& estimate);

// One paragraph per span: where it lies, its part of the votes, the text.
std::string FormatEvidence(const v1::Evidence& evidence);

}  // namespace folio::cli
