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
// Of a sans-serif of 12 pixels, rounded up: names are given room, not measured.
constexpr double kCharacter = 7.5;
// Lines closer than this cannot be told apart.
constexpr double kTogether = 2;
constexpr double kDash = 7;
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

double WidthOf(const std::string& text) { return kCharacter * static_cast<double>(text.size()); }

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
    const double shown = IsCut(y) ? y_max_ : std::max(y, 0.0);
    return kTop + kPlotHeight * (1 - shown / y_max_);
  }
  // Whether a value lies above the axis, or is none.
  bool IsCut(double y) const { return !std::isfinite(y) || y > y_max_; }

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

// A point of a series as it is drawn, in pixels.
struct Dot {
  double x = 0;
  double y = 0;
  bool is_cut = false;
};
using Line = std::vector<Dot>;

std::vector<Line> Place(const Frame& frame, const std::vector<Series>& series) {
  std::vector<Line> lines;
  for (const Series& one : series) {
    Line& line = lines.emplace_back();
    for (const auto& [x, y] : one.points) {
      line.push_back({frame.X(x), frame.Y(y), frame.IsCut(y)});
    }
  }
  return lines;
}

bool AreTogether(const Dot& a, const Dot& b) {
  return std::abs(a.x - b.x) < kTogether && std::abs(a.y - b.y) < kTogether;
}

// How many lines lie on each other, and which of them one is.
struct Stack {
  int size = 0;
  int rank = 0;
};

// The lines for which `covers` holds, seen from line `i`, for which it does.
template <typename Covers>
Stack StackOf(const std::vector<Line>& lines, size_t i, Covers covers) {
  Stack stack;
  for (size_t j = 0; j < lines.size(); ++j) {
    if (!covers(lines[j])) continue;
    if (j < i) ++stack.rank;
    ++stack.size;
  }
  return stack;
}

bool HasDot(const Line& line, const Dot& dot) {
  return std::any_of(line.begin(), line.end(), [&](const Dot& d) { return AreTogether(d, dot); });
}

bool HasSegment(const Line& line, const Dot& from, const Dot& to) {
  for (size_t i = 1; i < line.size(); ++i) {
    if (AreTogether(line[i - 1], from) && AreTogether(line[i], to)) return true;
  }
  return false;
}

// Lines that lie on each other take turns, dash by dash.
std::string DrawSegment(const Dot& from, const Dot& to, Stack stack, const char* color) {
  std::string dashes;
  if (stack.size > 1) {
    dashes = absl::StrFormat(" stroke-dasharray=\"%g %g\" stroke-dashoffset=\"%g\"", kDash,
                             kDash * (stack.size - 1), -kDash * stack.rank);
  }
  return absl::StrFormat(
      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
      "stroke-width=\"2\"%s/>\n",
      from.x, from.y, to.x, to.y, color, dashes);
}

// Dots that lie on each other stand side by side; what was cut off is a triangle.
std::string DrawDot(const Dot& dot, Stack stack, const char* color) {
  const double x = dot.x + kDash * (stack.rank - (stack.size - 1) / 2.0);
  if (!dot.is_cut) {
    return absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, dot.y,
                           color);
  }
  return absl::StrFormat("<path class=\"cut\" d=\"M%.1f,%.1f l5,9 h-10 z\" fill=\"%s\"/>\n", x,
                         dot.y - 6, color);
}

std::string DrawLine(const std::vector<Line>& lines, size_t i, const char* color) {
  std::string svg;
  const Line& line = lines[i];
  for (size_t k = 1; k < line.size(); ++k) {
    const auto covers = [&](const Line& other) { return HasSegment(other, line[k - 1], line[k]); };
    svg += DrawSegment(line[k - 1], line[k], StackOf(lines, i, covers), color);
  }
  for (const Dot& dot : line) {
    const auto covers = [&](const Line& other) { return HasDot(other, dot); };
    svg += DrawDot(dot, StackOf(lines, i, covers), color);
  }
  return svg;
}

std::string DrawLegend(size_t i, const std::string& name, const char* color) {
  const double y = kTop + 20.0 * static_cast<double>(i) + 8;
  const double x = kLeft + kPlotWidth + 16;
  return absl::StrFormat(
             "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
             "stroke-width=\"3\"/>\n",
             x, x + 20, y - 4, y - 4, color) +
         Text(x + 26, y, "start", name);
}

std::string CellColor(double value) {
  if (value < 0) return "#eee";
  const double v = std::clamp(value, 0.0, 1.0);
  const int red = static_cast<int>(v < 0.5 ? 220 : 220 * 2 * (1 - v));
  const int green = static_cast<int>(v < 0.5 ? 200 * 2 * v : 200);
  return absl::StrFormat("#%02x%02x40", red, green);
}

}  // namespace

std::string LineChart(const ChartText& text, const std::vector<Series>& series, double y_max) {
  const double height = std::max(kTop + kPlotHeight + 70, kTop + 20.0 * series.size() + 20);
  double legend = 0;
  for (const Series& line : series) legend = std::max(legend, WidthOf(line.name));
  const double width = kLeft + std::max(kPlotWidth + 50 + legend, WidthOf(text.title) + kCharacter);
  std::string svg = Begin(width, height);
  const Frame frame(series, y_max);
  svg += frame.Draw(text);
  const std::vector<Line> lines = Place(frame, series);
  bool has_cut = false;
  for (size_t i = 0; i < series.size(); ++i) {
    const char* color = kColors[i % kColors.size()];
    svg += DrawLine(lines, i, color);
    svg += DrawLegend(i, series[i].name, color);
    for (const Dot& dot : lines[i]) has_cut = has_cut || dot.is_cut;
  }
  if (has_cut) {
    svg += Text(kLeft, kTop + kPlotHeight + 56, "start", "triangles: above the axis");
  }
  return svg + "</svg>\n";
}

std::string HeatMaps(const ChartText& text, const std::vector<std::string>& columns,
                     const std::vector<std::string>& rows, const std::vector<HeatMap>& maps) {
  const double panel = kCell * 1.5 * static_cast<double>(columns.size());
  const double gap = 70;
  const double height = kTop + 30 + kCell * static_cast<double>(rows.size()) + 50;
  double pitch = panel + gap;
  for (const HeatMap& map : maps) pitch = std::max(pitch, WidthOf(map.name) + gap / 2);
  const double width =
      kLeft + std::max(pitch * static_cast<double>(maps.size()), WidthOf(text.title) + kCharacter);
  std::string svg = Begin(width, height);
  svg += Text(kLeft, 20, "start", text.title);
  for (size_t m = 0; m < maps.size(); ++m) {
    const double left = kLeft + pitch * static_cast<double>(m);
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
