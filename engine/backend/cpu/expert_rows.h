#pragma once

#include <span>
#include <vector>

namespace folio {

// Which rows of a step go through which expert of a mixture. One thread; memory is kept from step
// to step.
class ExpertRows {
 public:
  struct Entry {
    int row = 0;
    float weight = 0;
  };

  // Each row goes through the num_chosen experts with the largest scores, among equals the smaller
  // index, with the softmax of those scores as weights.
  //   scores [num_rows, num_experts]
  // REQUIRES: num_chosen <= num_experts.
  void Choose(const float* scores, int num_rows, int num_experts, int num_chosen);

  // In ascending order of rows.
  std::span<const Entry> of(int expert) const { return rows_[expert]; }

 private:
  std::vector<std::vector<Entry>> rows_;  // by expert
  std::vector<int> chosen_;               // of one row, best first
  std::vector<float> weights_;
};

}  // namespace folio
