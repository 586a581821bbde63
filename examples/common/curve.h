// The loss over the steps of a run, and its picture.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

struct LossCurve {
  struct Point {
    double step = 0, loss = 0;
  };
  std::vector<double> training;  ///< of every step so far, on the samples of rank 0
  std::vector<Point> held_out;   ///< on what is not trained on, now and then
};

/// What a picture says besides the curve. Texts stand in it as they are: XML, where & is &amp;.
struct PlotText {
  struct Level {
    std::string name;
    double loss = 0;
  };
  std::string title;
  std::string unit;                 ///< of the loss
  std::size_t step_count = 0;       ///< of the whole run
  std::optional<Level> level = {};  ///< a loss to compare with: a horizontal line
};

/// An SVG picture. The training loss is drawn as means of equally many steps. What is not a finite
/// number is left out.
std::string draw(const LossCurve& curve, const PlotText& text);

/// The picture of a run that goes on, written to FILE whenever there is more of it. Throws
/// std::runtime_error where that cannot be.
class LossPlot {
 public:
  /// Writes at once: that it cannot is said before hours of training. FILE is empty: no picture.
  LossPlot(std::string file, LossCurve* curve, PlotText text);
  /// Some twenty times in a run, and at its end: time to look at the held-out loss.
  bool due(std::size_t step) const;
  void add_held_out(std::size_t step, double loss);

 private:
  void write() const;

  const std::string file_;
  LossCurve* const curve_;
  const PlotText text_;
};
