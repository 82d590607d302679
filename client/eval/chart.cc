#include "client/eval/chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace folio::eval {
namespace {

constexpr double kLeft = 60;
constexpr double kTop = 40;
constexpr double kPlotWidth = 520;
constexpr double kPlotHeight = 260;
constexpr double kCell = 34;
// Colour-blind safe (Okabe and Ito 2008).
constexpr std::array<const char*, 8> kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                "#E69F00", "#56B4E9", "#000000", "#B8A000"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escape(text));
}

std::string Begin(double width, double height) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      width, height);
}

// The axes of a line chart.
class Frame {
 public:
  Frame(const std::vector<Series>& series, double y_max) : y_max_(y_max) {
    for (const Series& line : series) {
      for (const auto& [x, y] : line.points) {
        x_min_ = std::min(x_min_, x);
        x_max_ = std::max(x_max_, x);
        if (y_max <= 0 && std::isfinite(y)) y_max_ = std::max(y_max_, y);
      }
    }
    if (x_max_ <= x_min_) x_max_ = 2 * x_min_;
    if (y_max_ <= 0) y_max_ = 1;
  }

  double X(double x) const {
    return kLeft + kPlotWidth * std::log(x / x_min_) / std::log(x_max_ / x_min_);
  }
  double Y(double y) const {
    const double shown = std::isfinite(y) ? std::clamp(y, 0.0, y_max_) : y_max_;
    return kTop + kPlotHeight * (1 - shown / y_max_);
  }

  std::string Draw(const ChartText& text) const {
    std::string svg = Text(kLeft, 20, "start", text.title);
    for (int i = 0; i <= 4; ++i) {
      const double y = y_max_ * i / 4;
      absl::StrAppendFormat(
          &svg, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft,
          kLeft + kPlotWidth, Y(y), Y(y));
      svg += Text(kLeft - 6, Y(y) + 4, "end", absl::StrFormat("%g", y));
    }
    for (double x = x_min_; x <= x_max_ * 1.001; x *= 2) {
      svg += Text(X(x), kTop + kPlotHeight + 18, "middle", absl::StrFormat("%.0f", x));
    }
    svg += Text(kLeft + kPlotWidth / 2, kTop + kPlotHeight + 36, "middle", text.x_label);
    svg += Text(kLeft, kTop - 6, "end", text.y_label);
    return svg;
  }

 private:
  double x_min_ = 1e300;
  double x_max_ = 0;
  double y_max_ = 0;
};

std::string CellColor(double value) {
  if (value < 0) return "#eee";
  const double v = std::clamp(value, 0.0, 1.0);
  const int red = static_cast<int>(v < 0.5 ? 220 : 220 * 2 * (1 - v));
  const int green = static_cast<int>(v < 0.5 ? 200 * 2 * v : 200);
  return absl::StrFormat("#%02x%02x40", red, green);
}

}  // namespace

std::string LineChart(const ChartText& text, const std::vector<Series>& series, double y_max) {
  const double height = std::max(kTop + kPlotHeight + 50, kTop + 20.0 * series.size() + 20);
  std::string svg = Begin(kLeft + kPlotWidth + 280, height);
  const Frame frame(series, y_max);
  svg += frame.Draw(text);
  for (size_t i = 0; i < series.size(); ++i) {
    const char* color = kColors[i % kColors.size()];
    std::string points;
    for (const auto& [x, y] : series[i].points) {
      absl::StrAppendFormat(&points, "%.1f,%.1f ", frame.X(x), frame.Y(y));
    }
    absl::StrAppendFormat(
        &svg, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
        points, color, i >= kColors.size() ? " stroke-dasharray=\"5 3\"" : "");
    const double y = kTop + 20.0 * static_cast<double>(i) + 8;
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
                          "stroke-width=\"3\"/>\n",
                          kLeft + kPlotWidth + 16, kLeft + kPlotWidth + 36, y - 4, y - 4, color);
    svg += Text(kLeft + kPlotWidth + 42, y, "start", series[i].name);
  }
  return svg + "</svg>\n";
}

std::string HeatMaps(const ChartText& text, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows, const std::vector<HeatMap>& maps) {
  const double panel = kCell * 1.5 * static_cast<double>(columns.size());
  const double gap = 70;
  const double height = kTop + 30 + kCell * static_cast<double>(rows.size()) + 50;
  std::string svg = Begin(kLeft + (panel + gap) * static_cast<double>(maps.size()), height);
  svg += Text(kLeft, 20, "start", text.title);
  for (size_t m = 0; m < maps.size(); ++m) {
    const double left = kLeft + (panel + gap) * static_cast<double>(m);
    svg += Text(left, kTop + 10, "start", maps[m].name);
    for (size_t r = 0; r < rows.size(); ++r) {
      const double top = kTop + 20 + kCell * static_cast<double>(r);
      svg += Text(left - 6, top + kCell / 2 + 4, "end", rows[r]);
      for (size_t c = 0; c < columns.size(); ++c) {
        const double x = left + kCell * 1.5 * static_cast<double>(c);
        const double value = maps[m].cells[r][c];
        absl::StrAppendFormat(&svg,
                              "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                              "fill=\"%s\" stroke=\"white\"/>\n",
                              x, top, kCell * 1.5, kCell, CellColor(value));
        if (value < 0) continue;
        svg += Text(x + kCell * 0.75, top + kCell / 2 + 4, "middle",
                    absl::StrFormat("%.0f", 100 * value));
      }
    }
    const double bottom = kTop + 20 + kCell * static_cast<double>(rows.size());
    for (size_t c = 0; c < columns.size(); ++c) {
      svg += Text(left + kCell * 1.5 * (static_cast<double>(c) + 0.5), bottom + 16, "middle",
                  columns[c]);
    }
    svg += Text(left + panel / 2, bottom + 34, "middle", text.x_label);
  }
  svg += Text(kLeft - 6, kTop + 10, "end", text.y_label);
  return svg + "</svg>\n";
}

}  // namespace folio::eval
