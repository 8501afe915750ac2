// JSON from files that anybody may have written.
#include "json_text.hpp"

#include <ctime>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace flashomp::io {
namespace {

std::string problem_of(const std::string& text, std::size_t deepest = 3)
{
    try {
        static_cast<void>(parse_json(text, deepest));
        return "";
    } catch (const JsonProblem& problem) {
        return problem.what();
    }
}

TEST(JsonText, IsWhatNlohmannReads)
{
    for (const char* const text :
         {"null", "true", "-5", "18446744073709551615", "1.5e3", R"("a\u00fc\n")", "[]", "{}",
          "[1,[2,[3]],{\"a\":null}]", R"({"a":{"b":[1,2,3],"c":"d"},"e":[{"f":false},{}],"":-1})"}) {
        EXPECT_EQ(parse_json(text, 4), nlohmann::json::parse(text)) << text;
    }
}

TEST(JsonText, Problems)
{
    const std::vector<std::pair<std::string, std::string>> problems{
        {"", "is not valid JSON at byte 1"},
        {"{} x", "is not valid JSON at byte 4"},
        {"[1,]", "is not valid JSON at byte 4"},
        {"\"\xff\"", "is not valid JSON at byte 2"},
        {R"({"a":1,"a":2})", "has the key \"a\" twice in one object"},
        {R"([{"a":{"b":1,"b":2}}])", "has the key \"b\" twice in one object"},
        {"[1e999]", "has a number out of range at byte 6"},
        {"-1e999", "has a number out of range at byte 6"},
        {"[[[[]]]]", "is nested more than 3 levels deep"},
        {R"({"a":{"b":{"c":{}}}})", "is nested more than 3 levels deep"},
        {std::string(1'000'000, '['), "is nested more than 3 levels deep"},
        {"{\"" + std::string(1'000'000, '\x1b') + "\":1}", "is not valid JSON at byte 3"},
    };
    for (const auto& [text, problem] : problems) {
        EXPECT_EQ(problem_of(text), problem) << text.substr(0, 80);
    }
    const std::string long_key = '"' + std::string(1'000'000, 'k') + "\":1";
    EXPECT_EQ(problem_of("{" + long_key + "," + long_key + "}"),
              "has the key \"" + std::string(40, 'k') + "…\" twice in one object");
}

TEST(JsonText, ContainersThatNobodyNeeds)
{
    std::string many = "[0";
    std::string members = R"([{"0":0)";
    for (int i = 0; i < (1 << 20); ++i) {
        many += ",0";
        members += ",\"k" + std::to_string(i) + "\":0";
    }
    EXPECT_EQ(problem_of(many + "]"), "has more than 1048576 values in an array");
    EXPECT_EQ(problem_of(members + "}]"), "has more than 1048576 members in an object");
}

TEST(JsonText, MembersAreHandedOut)
{
    std::map<std::string, std::string> members;
    const nlohmann::json rest =
        parse_json(R"({"a":{"b":[1,2]},"c":3,"d":[{"a":4}]})", 3,
                   [&](const std::string& name, const nlohmann::json& value) { members[name] = value.dump(); });
    EXPECT_EQ(members,
              (std::map<std::string, std::string>{{"a", R"({"b":[1,2]})"}, {"c", "3"}, {"d", R"([{"a":4}])"}}));
    EXPECT_EQ(rest.dump(), R"({"a":null,"c":null,"d":null})");
}

TEST(JsonText, TimeGrowsWithTheTextOnly)
{
    const auto seconds = [](int members) {
        std::string text = "{\"tensor 0\":{\"shape\":[1],\"at\":[0,4]}";
        for (int i = 1; i < members; ++i) {
            text += ",\"tensor " + std::to_string(i) + "\":{\"shape\":[1],\"at\":[0,4]}";
        }
        const std::clock_t start = std::clock();
        EXPECT_EQ(problem_of(text + "}"), "");
        return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    };
    EXPECT_LT(seconds(200'000), 20.0); // nlohmann's parser with a callback: half an hour
}

} // namespace
} // namespace flashomp::io
