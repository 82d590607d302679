#include "client/eval/coverage.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/eval/chart.h"
#include "client/eval/csv.h"

namespace folio::eval {
namespace {

struct Votes {
  uint64_t votes = 0;
  uint64_t first_votes = 0;
};
using VotesByChunk = std::map<uint64_t, Votes>;

double Uniformity(const VotesByChunk& votes, uint64_t candidates) {
  double total = 0;
  for (const auto& [chunk, v] : votes) total += static_cast<double>(v.votes);
  if (candidates < 2 || total == 0) return 1;
  double entropy = 0;
  for (const auto& [chunk, v] : votes) {
    const double share = static_cast<double>(v.votes) / total;
    if (share > 0) entropy -= share * std::log(share);
  }
  return entropy / std::log(static_cast<double>(candidates));
}

LayerCoverage Describe(const TrialResult& result, int layer, uint64_t chunk_tokens,
                       uint64_t candidates_end, const VotesByChunk& votes) {
  LayerCoverage c;
  c.strategy = result.strategy;
  c.target_tokens = result.target_tokens;
  c.trial_idx = result.trial_idx;
  c.layer = layer;
  c.candidates = candidates_end - 1;
  c.chosen = votes.size();
  for (const auto& [chunk, v] : votes) c.num_choices += v.first_votes;
  c.uniformity = Uniformity(votes, c.candidates);
  const uint64_t begin = result.prompt_tokens - result.needle_distance_tokens;
  const uint64_t first = begin / chunk_tokens;
  const uint64_t last = (begin + std::max<uint64_t>(1, result.needle_tokens) - 1) / chunk_tokens;
  // A part of the needle that everyone sees anyway needs no choice.
  c.has_right = first >= 1 && last < candidates_end;
  if (!c.has_right) return c;
  for (auto it = votes.lower_bound(first); it != votes.end() && it->first <= last; ++it) {
    c.right = std::max(c.right, it->second.votes);
    c.right_first += it->second.first_votes;
  }
  // A needle across two chunks is found with either; of choices that took both, no one knows.
  c.right = std::max(c.right, c.right_first);
  return c;
}

std::string LayerName(int layer) {
  return layer == LayerCoverage::kAllLayers ? "all" : absl::StrCat(layer);
}

std::string Percent(double part) { return part < 0 ? "-" : absl::StrFormat("%.1f", 100 * part); }

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

void AddMean(double value, int count, double* mean) {
  if (*mean < 0) *mean = 0;
  *mean += (value - *mean) / count;
}

}  // namespace

std::vector<LayerCoverage> CoverageOf(const TrialResult& result) {
  std::vector<LayerCoverage> all;
  VotesByChunk together;
  for (const v1::LayerEvidence& layer : result.layers) {
    if (layer.candidates_end() < 2 || layer.chunk_tokens() == 0) continue;
    VotesByChunk votes;
    for (int i = 0; i < layer.chunks_size(); ++i) {
      votes[layer.chunks(i)] = {layer.votes(i), layer.first_votes(i)};
      together[layer.chunks(i)].votes += layer.votes(i);
      together[layer.chunks(i)].first_votes += layer.first_votes(i);
    }
    all.push_back(Describe(result, static_cast<int>(layer.layer()), layer.chunk_tokens(),
                           layer.candidates_end(), votes));
  }
  if (all.empty()) return all;
  const v1::LayerEvidence& any = result.layers.front();
  all.push_back(Describe(result, LayerCoverage::kAllLayers, any.chunk_tokens(),
                         any.candidates_end(), together));
  return all;
}

std::vector<CoverageRow> SummarizeCoverage(const std::vector<LayerCoverage>& all) {
  std::vector<CoverageRow> rows;
  std::map<std::tuple<std::string, uint64_t, int>, std::pair<size_t, int>> known;
  for (const LayerCoverage& c : all) {
    const auto [it, is_new] =
        known.try_emplace({c.strategy, c.target_tokens, c.layer}, rows.size(), 0);
    if (is_new) {
      rows.push_back({.strategy = c.strategy, .target_tokens = c.target_tokens, .layer = c.layer});
    }
    CoverageRow& row = rows[it->second.first];
    const int n = ++row.num_trials;
    AddMean(static_cast<double>(c.candidates), n, &row.candidates);
    AddMean(Share(c.chosen, c.candidates), n, &row.coverage);
    AddMean(c.uniformity, n, &row.uniformity);
    if (!c.has_right) continue;
    const int with_right = ++it->second.second;
    AddMean(Share(c.right, c.num_choices), with_right, &row.right);
    AddMean(Share(c.right_first, c.num_choices), with_right, &row.right_first);
  }
  std::vector<std::string> strategies;
  for (const CoverageRow& row : rows) {
    if (std::find(strategies.begin(), strategies.end(), row.strategy) == strategies.end()) {
      strategies.push_back(row.strategy);
    }
  }
  const auto place = [&](const CoverageRow& row) {
    const auto at = std::find(strategies.begin(), strategies.end(), row.strategy);
    const bool is_all = row.layer == LayerCoverage::kAllLayers;
    return std::tuple(at - strategies.begin(), row.target_tokens, is_all, row.layer);
  };
  std::sort(rows.begin(), rows.end(),
            [&](const CoverageRow& a, const CoverageRow& b) { return place(a) < place(b); });
  return rows;
}

std::string FormatCoverage(const std::vector<CoverageRow>& rows) {
  std::string table;
  const CoverageRow* before = nullptr;
  for (const CoverageRow& row : rows) {
    const bool same = before != nullptr && before->strategy == row.strategy &&
                      before->target_tokens == row.target_tokens;
    if (!same) {
      absl::StrAppend(&table, before == nullptr ? "" : "\n", row.strategy, ", ", row.target_tokens,
                      " tokens\n",
                      "layer  candidates  coverage %  uniformity  right chosen %  right first %\n");
    }
    absl::StrAppendFormat(&table, "%5s  %10.0f  %10s  %10.2f  %14s  %13s\n", LayerName(row.layer),
                          row.candidates, Percent(row.coverage), row.uniformity, Percent(row.right),
                          Percent(row.right_first));
    before = &row;
  }
  return table;
}

nlohmann::ordered_json ToJson(const CoverageRow& row) {
  nlohmann::ordered_json json;
  json["strategy"] = row.strategy;
  json["target_tokens"] = row.target_tokens;
  json["layer"] = LayerName(row.layer);
  json["trials"] = row.num_trials;
  json["candidates"] = row.candidates;
  json["coverage"] = row.coverage;
  json["uniformity"] = row.uniformity;
  if (row.right >= 0) json["right_chosen"] = row.right;
  if (row.right_first >= 0) json["right_first"] = row.right_first;
  return json;
}

std::string CoverageCsvHeader() {
  return "strategy,target_tokens,trial,layer,candidates,chosen,choices,uniformity,has_right,right,"
         "right_first\n";
}

std::string CoverageCsvRecord(const LayerCoverage& c) {
  return absl::StrCat(CsvField(c.strategy), ",", c.target_tokens, ",", c.trial_idx, ",",
                      LayerName(c.layer), ",", c.candidates, ",", c.chosen, ",", c.num_choices,
                      ",") +
         absl::StrFormat("%.17g,%d,%d,%d\n", c.uniformity, c.has_right ? 1 : 0, c.right,
                         c.right_first);
}

absl::StatusOr<std::vector<LayerCoverage>> ParseCoverageCsv(const std::string& csv) {
  std::vector<LayerCoverage> all;
  size_t at = 0;
  ReadCsvRecord(csv, &at);
  for (int record = 2; at < csv.size(); ++record) {
    const std::vector<std::string> f = ReadCsvRecord(csv, &at);
    LayerCoverage c;
    c.layer = LayerCoverage::kAllLayers;
    const bool whole = f.size() == 11 && absl::SimpleAtoi(f[1], &c.target_tokens) &&
                       absl::SimpleAtoi(f[2], &c.trial_idx) &&
                       (f[3] == "all" || absl::SimpleAtoi(f[3], &c.layer)) &&
                       absl::SimpleAtoi(f[4], &c.candidates) && absl::SimpleAtoi(f[5], &c.chosen) &&
                       absl::SimpleAtoi(f[6], &c.num_choices) &&
                       absl::SimpleAtod(f[7], &c.uniformity) && absl::SimpleAtoi(f[9], &c.right) &&
                       absl::SimpleAtoi(f[10], &c.right_first);
    if (!whole) {
      return absl::InvalidArgumentError(
          absl::StrCat("record ", record, " is none that folio eval coverage wrote"));
    }
    c.strategy = f[0];
    c.has_right = f[8] == "1";
    all.push_back(std::move(c));
  }
  return all;
}

std::string CoveragePicture(const std::vector<CoverageRow>& rows) {
  std::set<uint64_t> lengths;
  std::set<int> layers;
  for (const CoverageRow& row : rows) {
    if (row.layer == LayerCoverage::kAllLayers) continue;
    lengths.insert(row.target_tokens);
    layers.insert(row.layer);
  }
  std::vector<HeatMap> maps;
  for (const CoverageRow& row : rows) {
    if (row.layer == LayerCoverage::kAllLayers) continue;
    if (maps.empty() || maps.back().name != row.strategy) {
      maps.push_back({row.strategy, std::vector<std::vector<double>>(
                                        layers.size(), std::vector<double>(lengths.size(), -1))});
    }
    const auto y = std::distance(layers.begin(), layers.find(row.layer));
    const auto x = std::distance(lengths.begin(), lengths.find(row.target_tokens));
    maps.back().cells[y][x] = row.right_first;
  }
  std::vector<std::string> columns;
  std::vector<std::string> names;
  columns.reserve(lengths.size());
  names.reserve(layers.size());
  for (const uint64_t length : lengths) columns.push_back(absl::StrCat(length));
  for (const int layer : layers) names.push_back(absl::StrCat(layer));
  return HeatMaps({"the right chunk ranks first, by layer and length in tokens", "tokens", "layer"},
                  columns, names, maps);
}

}  // namespace folio::eval
