#include "base/config.h"

#include <gtest/gtest.h>

#include "tutti/error.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;

std::string rejection(const Settings& options, const Environment& environment) {
  try {
    const Config config(options, environment);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Config, DefaultsAreTheDocumentedOnes) {
  const Config config({}, {});
  EXPECT_EQ(config.duration(Setting::timeout), 30min);
  EXPECT_EQ(config.duration(Setting::stall_timeout), 30s);
  EXPECT_EQ(config.text(Setting::backend), "automatic");
}

TEST(Config, OptionWinsOverVariableOverDefault) {
  const Environment environment = {{"TUTTI_TIMEOUT", "5s"}, {"TUTTI_STALL_TIMEOUT", "7s"}};
  const Config config({{"timeout", "90s"}}, environment);
  EXPECT_EQ(config.duration(Setting::timeout), 90s);
  EXPECT_EQ(config.duration(Setting::stall_timeout), 7s);
  for (const SettingInfo& row : config.describe()) {
    if (row.name == "timeout") {
      EXPECT_EQ(row.source, "option");
      EXPECT_EQ(row.value, "90s");
      EXPECT_EQ(row.default_value, "30min");
    } else if (row.name == "stall_timeout") {
      EXPECT_EQ(row.source, "TUTTI_STALL_TIMEOUT");
    } else {
      EXPECT_EQ(row.source, "default") << row.name;
    }
    EXPECT_FALSE(row.doc.empty()) << row.name;
  }
}

TEST(Config, AHintOfAnotherLibraryCountsWhereNothingElseIsSaid) {
  const Environment environment = {{"GLOO_SOCKET_IFNAME", "eth1"}, {"NCCL_SOCKET_IFNAME", "=ib0"}};
  const Config hinted({}, environment);
  EXPECT_EQ(hinted.text(Setting::socket_ifname), "=ib0");
  EXPECT_EQ(hinted.source(Setting::socket_ifname), "NCCL_SOCKET_IFNAME");
  EXPECT_EQ(Config({}, {{"GLOO_SOCKET_IFNAME", "eth1"}}).text(Setting::socket_ifname), "eth1");
  EXPECT_EQ(Config({{"socket_ifname", "lo"}}, environment).text(Setting::socket_ifname), "lo");
  Environment both = environment;
  both["TUTTI_SOCKET_IFNAME"] = "eth0";
  EXPECT_EQ(Config({}, both).source(Setting::socket_ifname), "TUTTI_SOCKET_IFNAME");
}

TEST(Config, EmptyVariableIsNotSet) {
  const Config config({}, {{"TUTTI_TIMEOUT", ""}, {"TUTTI_LOG", ""}});
  EXPECT_EQ(config.duration(Setting::timeout), 30min);
  EXPECT_EQ(config.log_level(), LogLevel::warn);
}

TEST(Config, WordsBecomeTheirValues) {
  EXPECT_EQ(Config({{"log", "debug"}}, {}).log_level(), LogLevel::debug);
  EXPECT_EQ(Config({}, {{"TUTTI_LOG", "error"}}).log_level(), LogLevel::error);
}

TEST(Config, BytesHaveUnits) {
  EXPECT_EQ(parse_bytes("it", "0"), 0u);
  EXPECT_EQ(parse_bytes("it", "65536"), 65536u);
  EXPECT_EQ(parse_bytes("it", "64KiB"), 65536u);
  EXPECT_EQ(parse_bytes("it", "1MiB"), std::size_t{1} << 20);
  for (const char* const wrong : {"-1", "64K", "1.5MiB", "20000000000GiB", "", "B"}) {
    const std::string text = rejection({{"segment_bytes", wrong}}, {});
    EXPECT_TRUE(contains(text, "64KiB")) << wrong << ": " << text;
  }
}

TEST(Config, EveryDefaultParses) {
  for (const SettingInfo& row : Config({}, {}).describe()) {
    EXPECT_EQ(rejection({{row.name, row.default_value}}, {}), "accepted") << row.name;
  }
}

TEST(Config, UnknownOptionIsAnErrorWithTheNearestName) {
  const std::string text = rejection({{"timeot", "5s"}}, {});
  EXPECT_TRUE(contains(text, "\"timeot\"") && contains(text, "did you mean \"timeout\"?")) << text;
}

TEST(Nearest, IsCloseForTheLengthOfTheWord) {
  const std::vector<std::string> names = {"run", "tee", "grace", "redirects"};
  for (const auto& [word, found] : {std::pair{"rnu", "run"},
                                    {"ru", "run"},
                                    {"tune", ""},
                                    {"garce", "grace"},
                                    {"gracious", ""},
                                    {"rediercst", "redirects"},
                                    {"ridiricts", "redirects"},
                                    {"ridirict", ""}})
    EXPECT_EQ(nearest(word, names), found) << word;
}

TEST(Config, UnknownSettingIsToldWithTheOnesThereAre) {
  const std::string near = rejection({{"tiemout", "5"}}, {});
  EXPECT_TRUE(contains(near,
                       "\"tiemout\" is not a setting, did you mean \"timeout\"? The settings "
                       "are "))
      << near;
  const std::string far = rejection({{"qqqqqqqqqq", "5"}}, {});
  EXPECT_TRUE(contains(far, "\"qqqqqqqqqq\" is not a setting; the settings are ")) << far;
}

TEST(Config, ValueThatDoesNotParseNamesItsSource) {
  const std::string option = rejection({{"timeout", "soon"}}, {});
  EXPECT_TRUE(contains(option, "setting \"timeout\"") && contains(option, "\"soon\"")) << option;
  const std::string variable = rejection({}, {{"TUTTI_LOG", "loud"}});
  EXPECT_TRUE(contains(variable, "TUTTI_LOG") && contains(variable, "error|warn|info|debug"))
      << variable;
  EXPECT_NE(rejection({{"rank", "1.5"}}, {}), "accepted");
}

TEST(Config, AskingByTheWrongTypeIsABug) {
  const Config config({}, {});
  EXPECT_THROW(config.number(Setting::timeout), Error);
}

TEST(Config, Durations) {
  EXPECT_EQ(parse_duration("x", "30s"), 30s);
  EXPECT_EQ(parse_duration("x", "30min"), 30min);
  EXPECT_EQ(parse_duration("x", "500ms"), 500ms);
  EXPECT_EQ(parse_duration("x", "250us"), 250us);
  EXPECT_EQ(parse_duration("x", "0s"), 0s);
  EXPECT_EQ(parse_duration("x", "1h30min"), 90min);
  EXPECT_EQ(parse_duration("x", "60"), 60s)
      << "a plain number: seconds, as for tutti run --timeout";
  EXPECT_EQ(parse_duration("x", "never"), std::chrono::nanoseconds::max());
  for (const char* wrong : {"", "s", "1h30", "-1", "-1s", "30 s", "30sec", "1.5s", "9999999999h",
                            "18446744073709551616ns"}) {
    EXPECT_THROW(parse_duration("x", wrong), Error) << wrong;
  }
}

TEST(Config, UnknownVariablesAreNamedWithTheNearest) {
  const auto lines = unknown_variables({{"TUTTI_TIMEOT", "1s"},
                                        {"TUTTI_TIMEOUT", "1s"},
                                        {"TUTTI_XYZZY_PLUGH", "1"},
                                        {"TUTTI_TEST_SEED", "1"},
                                        {"PATH", "/bin"}});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(contains(lines[0], "did you mean TUTTI_TIMEOUT?")) << lines[0];
  EXPECT_TRUE(contains(lines[1], "TUTTI_XYZZY_PLUGH") && !contains(lines[1], "did you mean"))
      << lines[1];
}

TEST(Config, EnvironmentIsThisProcesss) {
  ASSERT_EQ(::setenv("TUTTI_TEST_VALUE", "a=b", 1), 0);
  EXPECT_EQ(read_environment().at("TUTTI_TEST_VALUE"), "a=b");
  ::unsetenv("TUTTI_TEST_VALUE");
  EXPECT_EQ(read_environment().count("TUTTI_TEST_VALUE"), 0u);
}

}  // namespace
}  // namespace tutti
