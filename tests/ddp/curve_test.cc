#include "common/curve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace {

/// The corners of the polylines, each as "x,y x,y ... ".
std::vector<std::string> polylines(const std::string& svg) {
  std::vector<std::string> found;
  const std::string name = " points='";
  for (auto at = svg.find(name); at != std::string::npos; at = svg.find(name, at)) {
    at += name.size();
    found.push_back(svg.substr(at, svg.find('\'', at) - at));
  }
  return found;
}

long corners(const std::string& polyline) {
  return std::count(polyline.begin(), polyline.end(), ',');
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Curve, BeforeTheFirstStepThereAreAxes) {
  const std::string svg = draw({}, {.title = "title", .unit = "nats", .step_count = 10});
  EXPECT_EQ(polylines(svg), (std::vector<std::string>{"", ""}));
  EXPECT_NE(svg.find(">title<"), std::string::npos);
  EXPECT_NE(svg.find(">loss in nats<"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Curve, PointsStandWhereTheyShould) {
  const LossCurve curve{.training = {4, 2}, .held_out = {{2, 1}}};
  const std::string svg = draw(curve, {.title = "", .unit = "", .step_count = 2});
  // The frame goes from 68 to 836 (0 to 2 steps) and from 404 up to 72 (0 to 4).
  EXPECT_EQ(polylines(svg), (std::vector<std::string>{"452.0,72.0 836.0,238.0 ", "836.0,321.0 "}));
}

TEST(Curve, ManyStepsAreDrawnAsMeans) {
  LossCurve curve;
  for (int i = 0; i < 1000; ++i) curve.training.push_back(i % 2 == 0 ? 1 : 3);
  const std::string svg = draw(curve, {.title = "", .unit = "", .step_count = 1000});
  EXPECT_EQ(corners(polylines(svg)[0]), 77);  // 76 means of 13, one of 12
  EXPECT_NE(svg.find("training, mean of 13 steps: 2.000"), std::string::npos);
}

TEST(Curve, WhatIsNotFiniteIsLeftOut) {
  const LossCurve curve{.training = {1, kNan, 1, std::numeric_limits<double>::infinity()},
                        .held_out = {{1, kNan}, {2, 1}}};
  const std::string svg = draw(curve, {.title = "", .unit = "", .step_count = 4});
  EXPECT_EQ(corners(polylines(svg)[0]), 2);
  EXPECT_EQ(corners(polylines(svg)[1]), 1);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(Curve, ALevelIsALineWithItsName) {
  const std::string svg =
      draw({}, {.title = "", .unit = "", .step_count = 4, .level = PlotText::Level{"guess", 2.25}});
  EXPECT_NE(svg.find("guess: 2.250"), std::string::npos);
  EXPECT_NE(svg.find("y1='105.2'"), std::string::npos);  // of 2.5, the next tick above
}

}  // namespace
