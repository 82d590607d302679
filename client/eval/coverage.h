// What the heads of each layer chose: how much of the text, how evenly, and whether the right part.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/eval/eval_runner.h"

namespace folio::eval {

// The choices of one layer, or of all together, in one trial. A choice is one head's for one token
// of the answer; it takes several chunks.
struct LayerCoverage {
  static constexpr int kAllLayers = -1;

  std::string strategy;
  uint64_t target_tokens = 0;
  int trial_idx = 0;
  int layer = 0;
  // Chunks that were open to choice, and those of them that anyone took.
  uint64_t candidates = 0;
  uint64_t chosen = 0;
  uint64_t num_choices = 0;
  // Entropy of the votes over the candidates, divided by its maximum: 1 if each got as many.
  double uniformity = 0;
  // Whether the needle's chunk was among the candidates; if so, the choices that took it, and those
  // that ranked it first.
  bool has_right = false;
  uint64_t right = 0;
  uint64_t right_first = 0;
};

// One per layer and one for all together; none if every part of the text was seen anyway.
std::vector<LayerCoverage> CoverageOf(const TrialResult& result);

// Means over trials, in the order of strategies, lengths and layers, all layers last.
struct CoverageRow {
  std::string strategy;
  uint64_t target_tokens = 0;
  int layer = 0;
  int num_trials = 0;
  double candidates = 0;
  double coverage = 0;  // chosen of candidates
  double uniformity = 0;
  // Of the trials where the right chunk is a candidate; -1: none is.
  double right = -1;
  double right_first = -1;
};
std::vector<CoverageRow> SummarizeCoverage(const std::vector<LayerCoverage>& all);

std::string FormatCoverage(const std::vector<CoverageRow>& rows);
nlohmann::ordered_json ToJson(const CoverageRow& row);

// One record per trial and layer.
std::string CoverageCsvHeader();
std::string CoverageCsvRecord(const LayerCoverage& coverage);
// Errors: INVALID_ARGUMENT naming the record.
absl::StatusOr<std::vector<LayerCoverage>> ParseCoverageCsv(const std::string& csv);

// How often each layer ranks the right chunk first, by length; one panel per strategy.
std::string CoveragePicture(const std::vector<CoverageRow>& rows);

}  // namespace folio::eval
