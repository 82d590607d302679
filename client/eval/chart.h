// Pictures of measurements as SVG. Pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace folio::eval {

struct Series {
  std::string name;
  // x above 0, ascending.
  std::vector<std::pair<double, double>> points;
};

struct ChartText {
  std::string title;
  std::string x_label;
  std::string y_label;
};

// Lines over a logarithmic x axis; y goes from 0 to y_max, or to the largest value if that is 0.
// Values above it are triangles at the upper edge. Lines that lie on each other take turns, dash by
// dash, and their points stand side by side.
std::string LineChart(const ChartText& text, const std::vector<Series>& series, double y_max);

// One panel per name, side by side: a cell for every row and column, from red (0) over yellow to
// green (1); below 0: not measured.
struct HeatMap {
  std::string name;
  std::vector<std::vector<double>> cells;  // [rows][columns]
};
std::string HeatMaps(const ChartText& text, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows, const std::vector<HeatMap>& maps);

}  // namespace folio::eval
