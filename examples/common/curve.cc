#include "common/curve.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <utility>

#include "common/file.h"

namespace {

constexpr double kWidth = 860, kHeight = 460;  // of the picture
constexpr double kLeft = 68, kRight = 836, kTop = 72, kBottom = 404;
constexpr double kLegend = 50;
constexpr std::size_t kMostMeans = 80;  // points of the training curve
constexpr std::size_t kLooks = 20;      // at the held-out loss
constexpr const char* kTrainingColor = "#1f6fb4";
constexpr const char* kHeldOutColor = "#d8631e";
constexpr const char* kLevelColor = "#4d4d4d";

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...) {
  char text[400];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof(text), format, values);
  va_end(values);
  return text;
}

/// From 0 to `high`, with a tick at each multiple of `step`: 1, 2 or 5 times a power of ten.
struct Scale {
  Scale(double most, double ticks_wanted) {
    const double rough = (most > 0 ? most : 1) / ticks_wanted;
    step = std::pow(10, std::floor(std::log10(rough)));
    for (const double factor : {2.0, 2.5, 2.0}) {
      if (step < rough) step *= factor;
    }
    high = most;
  }
  Scale up_to_a_tick() const {
    Scale scale = *this;
    scale.high = std::max(std::ceil(high / step), 1.0) * step;
    return scale;
  }
  std::size_t tick_count() const { return static_cast<std::size_t>(high / step + 1e-6) + 1; }
  double tick(std::size_t number) const { return static_cast<double>(number) * step; }
  double share(double value) const { return value / high; }

  double high = 1, step = 1;
};

std::vector<LossCurve::Point> finite(const std::vector<LossCurve::Point>& points) {
  std::vector<LossCurve::Point> found;
  std::copy_if(points.begin(), points.end(), std::back_inserter(found),
               [](const LossCurve::Point& point) { return std::isfinite(point.loss); });
  return found;
}

std::vector<LossCurve::Point> means(const std::vector<double>& losses, std::size_t together) {
  std::vector<LossCurve::Point> points;
  for (std::size_t begin = 0; begin < losses.size(); begin += together) {
    const std::size_t end = std::min(begin + together, losses.size());
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += losses[i];
    // Step 1 is losses[0]: the middle of these steps.
    points.push_back(
        {static_cast<double>(begin + end + 1) / 2, sum / static_cast<double>(end - begin)});
  }
  return points;
}

/// The frame that the curves stand in.
class Picture {
 public:
  Picture(const Scale& steps, const Scale& losses) : steps_(steps), losses_(losses) {
    add(
        formatted("<svg xmlns='http://www.w3.org/2000/svg' width='%g' height='%g' "
                  "viewBox='0 0 %g %g' font-family='sans-serif' font-size='13'>",
                  kWidth, kHeight, kWidth, kHeight));
    add("<rect width='100%' height='100%' fill='white'/>");
  }

  void axes(const PlotText& text) {
    write(kLeft, 30, "start", "black", "<tspan font-size='17'>" + text.title + "</tspan>");
    for (std::size_t i = 0; i < losses_.tick_count(); ++i) {
      const double at = y(losses_.tick(i));
      line(kLeft, at, kRight, at, "#e4e4e4", "1");
      write(kLeft - 8, at + 4.5, "end", "#333333", formatted("%.4g", losses_.tick(i)));
    }
    for (std::size_t i = 0; i < steps_.tick_count(); ++i) {
      const double at = x(steps_.tick(i));
      line(at, kBottom, at, kBottom + 5, "#333333", "1");
      write(at, kBottom + 20, "middle", "#333333", formatted("%.12g", steps_.tick(i)));
    }
    line(kLeft, kBottom, kRight, kBottom, "#333333", "1");
    line(kLeft, kTop, kLeft, kBottom, "#333333", "1");
    write((kLeft + kRight) / 2, kHeight - 12, "middle", "black", "step");
    add(formatted("<g transform='translate(18 %g) rotate(-90)'>", (kTop + kBottom) / 2));
    write(0, 0, "middle", "black", "loss in " + text.unit);
    add("</g>");
  }

  /// A curve and its entry of the legend.
  void curve(const std::vector<LossCurve::Point>& points, const char* color, const char* width,
             bool marked, const std::string& name) {
    std::string corners;
    for (const auto& point : points) {
      corners += formatted("%.1f,%.1f ", x(point.step), y(point.loss));
      if (marked) mark(x(point.step), y(point.loss), color);
    }
    add(formatted("<polyline fill='none' stroke-linejoin='round' stroke='%s' stroke-width='%s'",
                  color, width) +
        " points='" + corners + "'/>");
    const std::string last = points.empty() ? "" : formatted(": %.3f", points.back().loss);
    const double at = legend(color, width, "none", name + last);
    if (marked) mark(at, kLegend, color);
  }

  void level(const PlotText::Level& at) {
    line(kLeft, y(at.loss), kRight, y(at.loss), kLevelColor, "1.5", "6 4");
    legend(kLevelColor, "1.5", "6 4", at.name + formatted(": %.3f", at.loss));
  }

  std::string done() { return svg_ + "</svg>\n"; }

 private:
  double x(double step) const { return kLeft + (kRight - kLeft) * steps_.share(step); }
  double y(double loss) const { return kBottom - (kBottom - kTop) * losses_.share(loss); }
  /// Returns where the middle of the sample is.
  double legend(const char* color, const char* width, const char* dashes,
                const std::string& words) {
    const double at = kLeft + (kRight - kLeft) / 3 * legend_count_++;
    line(at, kLegend, at + 24, kLegend, color, width, dashes);
    write(at + 31, kLegend + 4.5, "start", "black", words);
    return at + 12;
  }
  void add(const std::string& element) { svg_ += element + "\n"; }
  void line(double x1, double y1, double x2, double y2, const char* color, const char* width,
            const char* dashes = "none") {
    add(
        formatted("<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s' stroke-width='%s' "
                  "stroke-dasharray='%s'/>",
                  x1, y1, x2, y2, color, width, dashes));
  }
  void mark(double at_x, double at_y, const char* color) {
    add(formatted("<circle cx='%.1f' cy='%.1f' r='3.2' fill='%s'/>", at_x, at_y, color));
  }
  void write(double at_x, double at_y, const char* anchor, const char* color,
             const std::string& words) {
    add(formatted("<text x='%.1f' y='%.1f' text-anchor='%s' fill='%s'>", at_x, at_y, anchor,
                  color) +
        words + "</text>");
  }

  const Scale steps_, losses_;
  double legend_count_ = 0;
  std::string svg_;
};

}  // namespace

std::string draw(const LossCurve& curve, const PlotText& text) {
  const std::size_t step_count = std::max({text.step_count, curve.training.size(), std::size_t{1}});
  const std::size_t together = (step_count + kMostMeans - 1) / kMostMeans;
  const auto training = finite(means(curve.training, together));
  const auto held_out = finite(curve.held_out);
  double most = text.level ? text.level->loss : 0;
  for (const auto& points : {training, held_out}) {
    for (const auto& point : points) most = std::max(most, point.loss);
  }
  Picture picture(Scale(static_cast<double>(step_count), 8), Scale(most, 6).up_to_a_tick());
  picture.axes(text);
  const std::string of = together == 1 ? "" : formatted(", mean of %zu steps", together);
  picture.curve(training, kTrainingColor, "1.6", false, "training" + of);
  picture.curve(held_out, kHeldOutColor, "2", true, "held out");
  if (text.level) picture.level(*text.level);
  return picture.done();
}

LossPlot::LossPlot(std::string file, LossCurve* curve, PlotText text)
    : file_(std::move(file)), curve_(curve), text_(std::move(text)) {
  write();
}

bool LossPlot::due(std::size_t step) const {
  const std::size_t every = (text_.step_count + kLooks - 1) / kLooks;
  return step % every == 0 || step == text_.step_count;
}

void LossPlot::add_held_out(std::size_t step, double loss) {
  curve_->held_out.push_back({static_cast<double>(step), loss});
  write();
}

void LossPlot::write() const {
  if (!file_.empty()) write_file(file_, draw(*curve_, text_));
}
