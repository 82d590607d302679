#include "client/eval/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/eval/csv.h"
#include "client/status.h"

namespace folio::eval {
namespace {

void AddTo(const TrialResult& result, Cell* cell) {
  if (!result.status.ok()) {
    ++cell->num_errors;
    return;
  }
  const double weight = 1.0 / ++cell->num_answers;
  cell->num_correct += result.correct ? 1 : 0;
  cell->mean_prompt_tokens +=
      weight * (static_cast<double>(result.prompt_tokens) - cell->mean_prompt_tokens);
  cell->mean_ttft_seconds += weight * (result.ttft_seconds - cell->mean_ttft_seconds);
  cell->max_device_kv_bytes = std::max(cell->max_device_kv_bytes, result.device_kv_bytes_peak);
}

double AccuracyPercent(const Cell& cell) { return 100.0 * cell.num_correct / cell.num_answers; }

}  // namespace

std::vector<Row> SummarizeResults(const std::vector<TrialResult>& results) {
  std::set<uint64_t> lengths;
  std::vector<std::string> strategies;
  std::map<std::string, std::map<uint64_t, Cell>> cells;
  for (const TrialResult& result : results) {
    lengths.insert(result.target_tokens);
    const std::string& name = result.strategy;
    if (std::find(strategies.begin(), strategies.end(), name) == strategies.end()) {
      strategies.push_back(name);
    }
    AddTo(result, &cells[name][result.target_tokens]);
    if (!result.needle_in_window.has_value()) continue;
    const char* part = *result.needle_in_window ? " (needle in window)" : " (needle outside)";
    AddTo(result, &cells[absl::StrCat(name, part)][result.target_tokens]);
  }
  std::vector<Row> rows;
  for (const std::string& strategy : strategies) {
    for (const char* part : {"", " (needle in window)", " (needle outside)"}) {
      const auto found = cells.find(absl::StrCat(strategy, part));
      if (found == cells.end()) continue;
      Row row{.name = found->first};
      for (const uint64_t length : lengths) {
        row.cells.push_back(found->second[length]);
        row.cells.back().target_tokens = length;
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

Interval WilsonInterval(int num_correct, int num_answers) {
  constexpr double kZ = 1.959963984540054;  // the 97.5 % quantile of the normal distribution
  const double n = num_answers;
  const double p = num_correct / n;
  const double center = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / (1 + kZ * kZ / n);
  return {.low = std::max(0.0, center - half), .high = std::min(1.0, center + half)};
}

std::string FormatTable(const std::vector<Row>& rows) {
  size_t name_columns = sizeof("strategy") - 1;
  for (const Row& row : rows) name_columns = std::max(name_columns, row.name.size());
  const auto pad = [name_columns](const std::string& name) {
    return name + std::string(name_columns - name.size(), ' ');
  };
  std::string table = pad("strategy");
  if (!rows.empty()) {
    for (const Cell& cell : rows.front().cells) {
      absl::StrAppendFormat(&table, " %10d", cell.target_tokens);
    }
  }
  table += "\n";
  for (const Row& row : rows) {
    table += pad(row.name);
    std::string intervals = pad("  95 %");
    for (const Cell& cell : row.cells) {
      std::string accuracy = "-";
      std::string interval = "-";
      if (cell.num_answers > 0) {
        const auto [low, high] = WilsonInterval(cell.num_correct, cell.num_answers);
        accuracy = absl::StrFormat("%.1f", AccuracyPercent(cell));
        interval = absl::StrFormat("%.1f-%.1f", 100 * low, 100 * high);
      }
      if (cell.num_errors > 0) accuracy += "!";
      absl::StrAppendFormat(&table, " %10s", accuracy);
      absl::StrAppendFormat(&intervals, " %10s", interval);
    }
    absl::StrAppend(&table, "\n", intervals, "\n");
  }
  return table;
}

std::string CsvHeader() {
  return "strategy,target_tokens,trial,depth,expected,answer,correct,prompt_tokens,"
         "needle_distance_tokens,needle_in_window,ttft_seconds,device_kv_bytes_peak,error\n";
}

std::string CsvRecord(const TrialResult& result) {
  const bool ok = result.status.ok();
  const std::string in_window =
      result.needle_in_window.has_value() ? (*result.needle_in_window ? "1" : "0") : "";
  std::string record =
      absl::StrCat(CsvField(result.strategy), ",", result.target_tokens, ",", result.trial_idx, ",",
                   absl::StrFormat("%.4f", result.depth), ",", CsvField(result.expected), ",",
                   CsvField(result.answer), ",");
  absl::StrAppend(&record, ok ? (result.correct ? "1" : "0") : "", ",", result.prompt_tokens, ",",
                  result.needle_distance_tokens, ",", in_window, ",",
                  ok ? absl::StrFormat("%.6f", result.ttft_seconds) : "", ",",
                  ok ? absl::StrCat(result.device_kv_bytes_peak) : "", ",",
                  ok ? "" : CsvField(client::FormatError(result.status)), "\n");
  return record;
}

std::string FormatCsv(const std::vector<TrialResult>& results) {
  std::string csv = CsvHeader();
  for (const TrialResult& result : results) csv += CsvRecord(result);
  return csv;
}

std::vector<DepthGrid> GridByDepth(const std::vector<TrialResult>& results, int num_depths) {
  std::vector<DepthGrid> grids;
  for (const Row& row : SummarizeResults(results)) {
    if (row.name.ends_with(")")) continue;  // a part of the trials of another row
    DepthGrid grid{.name = row.name, .lengths = {}, .accuracy = {}};
    for (const Cell& cell : row.cells) grid.lengths.push_back(cell.target_tokens);
    grid.accuracy.assign(num_depths, std::vector<double>(grid.lengths.size(), -1));
    for (int depth = 0; depth < num_depths; ++depth) {
      for (size_t column = 0; column < grid.lengths.size(); ++column) {
        Cell cell;
        for (const TrialResult& result : results) {
          const auto of_result = static_cast<int>(std::lround(result.depth * (num_depths - 1)));
          if (result.strategy == row.name && result.target_tokens == grid.lengths[column] &&
              of_result == depth) {
            AddTo(result, &cell);
          }
        }
        if (cell.num_answers > 0) grid.accuracy[depth][column] = AccuracyPercent(cell) / 100;
      }
    }
    grids.push_back(std::move(grid));
  }
  return grids;
}

double DepthPercent(const DepthGrid& grid, size_t row) {
  const size_t last = grid.accuracy.size() - 1;
  return last == 0 ? 50 : 100 * static_cast<double>(row) / static_cast<double>(last);
}

std::string FormatGrid(const DepthGrid& grid) {
  std::string table = absl::StrCat(grid.name, "\ndepth ");
  for (const uint64_t length : grid.lengths) absl::StrAppendFormat(&table, " %9d", length);
  table += "\n";
  for (size_t depth = 0; depth < grid.accuracy.size(); ++depth) {
    absl::StrAppendFormat(&table, "%4.0f %%", DepthPercent(grid, depth));
    for (const double value : grid.accuracy[depth]) {
      absl::StrAppendFormat(&table, " %9s", value < 0 ? "-" : absl::StrFormat("%.0f", 100 * value));
    }
    table += "\n";
  }
  return table;
}

absl::StatusOr<std::vector<TrialResult>> ParseCsv(const std::string& csv) {
  std::vector<TrialResult> results;
  size_t at = 0;
  ReadCsvRecord(csv, &at);
  for (int line = 2; at < csv.size(); ++line) {
    const std::vector<std::string> f = ReadCsvRecord(csv, &at);
    TrialResult r;
    const bool whole = f.size() == 13 && absl::SimpleAtoi(f[1], &r.target_tokens) &&
                       absl::SimpleAtoi(f[2], &r.trial_idx) && absl::SimpleAtod(f[3], &r.depth) &&
                       absl::SimpleAtoi(f[7], &r.prompt_tokens) &&
                       absl::SimpleAtoi(f[8], &r.needle_distance_tokens);
    if (!whole) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", line, " is none that folio eval wrote"));
    }
    if (f[6].empty()) continue;
    r.strategy = f[0];
    r.expected = f[4];
    r.answer = f[5];
    r.correct = f[6] == "1";
    if (!f[9].empty()) r.needle_in_window = f[9] == "1";
    if (!absl::SimpleAtod(f[10], &r.ttft_seconds)) r.ttft_seconds = 0;
    if (!absl::SimpleAtoi(f[11], &r.device_kv_bytes_peak)) r.device_kv_bytes_peak = 0;
    results.push_back(std::move(r));
  }
  return results;
}

nlohmann::ordered_json TrialToJson(const TrialResult& result) {
  nlohmann::ordered_json json;
  json["strategy"] = result.strategy;
  json["target_tokens"] = result.target_tokens;
  json["trial"] = result.trial_idx;
  json["depth"] = result.depth;
  json["expected"] = result.expected;
  json["answer"] = result.answer;
  json["prompt_tokens"] = result.prompt_tokens;
  json["needle_distance_tokens"] = result.needle_distance_tokens;
  if (result.needle_in_window.has_value()) json["needle_in_window"] = *result.needle_in_window;
  if (!result.status.ok()) {
    json["error"] = client::FormatError(result.status);
    return json;
  }
  json["correct"] = result.correct;
  json["ttft_seconds"] = result.ttft_seconds;
  json["device_kv_bytes_peak"] = result.device_kv_bytes_peak;
  return json;
}

nlohmann::ordered_json RowsToJson(const std::vector<Row>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    for (const Cell& cell : row.cells) {
      nlohmann::ordered_json json;
      json["strategy"] = row.name;
      json["target_tokens"] = cell.target_tokens;
      json["answers"] = cell.num_answers;
      json["correct"] = cell.num_correct;
      json["errors"] = cell.num_errors;
      if (cell.num_answers > 0) {
        const auto [low, high] = WilsonInterval(cell.num_correct, cell.num_answers);
        json["accuracy"] = AccuracyPercent(cell) / 100.0;
        json["accuracy_low"] = low;
        json["accuracy_high"] = high;
        json["mean_prompt_tokens"] = cell.mean_prompt_tokens;
        json["mean_ttft_seconds"] = cell.mean_ttft_seconds;
        json["max_device_kv_bytes"] = cell.max_device_kv_bytes;
      }
      array.push_back(std::move(json));
    }
  }
  return array;
}

}  // namespace folio::eval
