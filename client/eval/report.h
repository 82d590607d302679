// Results of a measurement as a table, as CSV and as JSON. Pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/eval/eval_runner.h"

namespace folio::eval {

// The answers of one strategy to one length.
struct Cell {
  uint64_t target_tokens = 0;
  int num_answers = 0;
  int num_correct = 0;
  // Trials without an answer; they count nowhere else.
  int num_errors = 0;
  // Of the answered trials.
  double mean_prompt_tokens = 0;
  double mean_ttft_seconds = 0;
  uint64_t max_device_kv_bytes = 0;
};

// A row of the table: a strategy, or the part of its trials that has the needle inside (outside)
// the window of LM-Infinite.
struct Row {
  std::string name;
  // One per length, in the order of the lengths.
  std::vector<Cell> cells = {};
};

// Rows in the order in which the strategies first appear, cells by increasing length. Rows "…
// (needle in window)" and "… (needle outside)" follow every strategy that has such trials.
std::vector<Row> SummarizeResults(const std::vector<TrialResult>& results);

// The 95 % interval of a proportion of which `num_correct` of `num_answers` > 0 trials are right
// (Wilson 1927), within 0 to 1.
struct Interval {
  double low;
  double high;
};
Interval WilsonInterval(int num_correct, int num_answers);

// Accuracy in percent per strategy and length, and below it its Wilson interval; "-" without
// answers, "!" after cells with errors.
std::string FormatTable(const std::vector<Row>& rows);

// One record per trial.
std::string CsvHeader();
std::string CsvRecord(const TrialResult& result);
std::string FormatCsv(const std::vector<TrialResult>& results);

// The part of right answers by depth of the needle and length: one grid per strategy, whose rows
// are depths spread evenly from 0 to 1. An answer counts for the row that is nearest.
struct DepthGrid {
  std::string name;
  std::vector<uint64_t> lengths;
  // [num_depths][lengths]; -1 where there is no answer
  std::vector<std::vector<double>> accuracy;
};
std::vector<DepthGrid> GridByDepth(const std::vector<TrialResult>& results, int num_depths);
// Of a row, in percent; 50 of the only one.
double DepthPercent(const DepthGrid& grid, size_t row);
std::string FormatGrid(const DepthGrid& grid);

// Results as CsvRecord wrote them, those without an answer left out. Errors: INVALID_ARGUMENT
// naming the line.
absl::StatusOr<std::vector<TrialResult>> ParseCsv(const std::string& csv);

// {"strategy", "target_tokens", "trial", "depth", "expected", "answer", "correct", "prompt_tokens",
// "needle_distance_tokens", "needle_in_window"?, "ttft_seconds"?, "device_kv_bytes_peak"?,
// "error"?}
nlohmann::ordered_json TrialToJson(const TrialResult& result);

// [{"strategy", "target_tokens", "answers", "correct", "errors", "accuracy"?, "accuracy_low"?,
// "accuracy_high"?, "mean_prompt_tokens"?, "mean_ttft_seconds"?, "max_device_kv_bytes"?}]
nlohmann::ordered_json RowsToJson(const std::vector<Row>& rows);

}  // namespace folio::eval
