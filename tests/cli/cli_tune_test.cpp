// `flashomp tune` as a user runs it, and the table that later calls use.
#include "cli_support.hpp"

#include <cstdlib>
#include <string>

#include <nlohmann/json.hpp>

namespace flashomp::cli_test {
namespace {

using Json = nlohmann::json;

class CliTune : public CliTest {
protected:
    CliTune() { setenv("FLASHOMP_TUNING", table_.c_str(), 1); }
    ~CliTune() override { setenv("FLASHOMP_TUNING", "off", 1); }

    Json read() const { return Json::parse(contents(table_)); }

    /// As tune wrote it, but with blocks that plan() would not take.
    void tune_to_other_blocks(const Arguments& more = {}) const
    {
        succeed(tune_ + more);
        Json table = read();
        for (Json& entry : table["tables"][0]["entries"]) {
            entry["stream_rows"] = 36;
        }
        write_text(table_, table.dump());
    }

    Json bench_row(const char* direction = "forward") const
    {
        return Json::parse(succeed({"bench", "--shape", "b1_h2_n60_d16", "--device", "host", "--repetitions", "2",
                                    "--min-time", "0", "--direction", direction, "--json"})
                               .out)["benchmarks"][0];
    }

    std::string info() const { return succeed({"info"}).out; }

    const fs::path table_ = path("tuning.json");
    const Arguments tune_{"tune",          "--shape", "b1_h2_n64_d16", "--device", "host",
                          "--repetitions", "2",       "--min-time",    "0"};
};

TEST_F(CliTune, WritesTheTableThatLaterCallsUse)
{
    const std::string text = succeed(tune_).out;
    EXPECT_NE(text.find("forward b1_h2_n64_d16: openmp forward float32 d64 n64x64 heads 2x2"), std::string::npos)
        << text;
    EXPECT_NE(text.find("chosen"), std::string::npos) << text;
    EXPECT_EQ(text.find("x as fast"), std::string::npos) << text; // "the fastest one was 0.49x as fast"
    EXPECT_NE(text.find("stored in " + table_.string()), std::string::npos) << text;
    ASSERT_EQ(read()["tables"].size(), 1U);
    EXPECT_EQ(read()["tables"][0]["entries"].size(), 2U);
    EXPECT_NE(info().find(table_.string() + "; host: 2 entries of this build"), std::string::npos) << info();

    tune_to_other_blocks();
    EXPECT_EQ(bench_row()["tuned"], true);
    EXPECT_EQ(bench_row("backward")["tuned"], true);
    const Json report = Json::parse(succeed(small_problem("forward") + Arguments{"--out", out(), "--json"}).out);
    EXPECT_EQ(report["passes"]["forward"]["tuned"], false); // another class
    setenv("FLASHOMP_TUNING", "off", 1);
    EXPECT_EQ(bench_row()["tuned"], false);
    EXPECT_NE(info().find("tuning    off"), std::string::npos) << info();
}

TEST_F(CliTune, ACallOnFilesUsesTheTableAndGivesTheSameResult)
{
    const auto tuned_forward = [&](const char* name) {
        return Json::parse(succeed(small_problem("forward") + Arguments{"--out", path(name), "--json"})
                               .out)["passes"]["forward"]["tuned"];
    };
    EXPECT_EQ(tuned_forward("before"), false);
    tune_to_other_blocks({"--shape", "b1_h4kv2_n5x7_d8"});
    EXPECT_EQ(tuned_forward("after"), true);
    EXPECT_LT(difference(path("after/o.npy"), path("before/o.npy")), 1e-6);
    succeed(small_problem("forward") + Arguments{"--out", path("threads"), "--threads", "3"});
    EXPECT_EQ(contents(path("threads/o.npy")), contents(path("after/o.npy")));
    EXPECT_NE(succeed(small_problem("forward") + Arguments{"--out", out()}).out.find(", tuned"), std::string::npos);
}

TEST_F(CliTune, TablesOfOtherBuildsAndDevicesDoNotCount)
{
    for (const char* const key : {"build", "device", "driver"}) {
        fs::remove(table_);
        tune_to_other_blocks();
        EXPECT_EQ(bench_row()["tuned"], true);
        Json table = read();
        table["tables"][0][key] = "another";
        write_text(table_, table.dump());
        EXPECT_EQ(bench_row()["tuned"], false) << key;
        EXPECT_NE(info().find("host: 0 entries"), std::string::npos) << info();
    }
}

TEST_F(CliTune, AFileThatIsNoTableIsNeverUsedAndNeverReplaced)
{
    write_text(table_, "my thesis");
    EXPECT_EQ(bench_row()["tuned"], false);
    const std::string sentence = table_.string() + ": is not a tuning table";
    EXPECT_NE(info().find("ignored: " + sentence), std::string::npos) << info();
    expect_refused(tune_, sentence);
    EXPECT_EQ(contents(table_), "my thesis");
}

TEST_F(CliTune, DryRunAndOutLeaveTheUsersTableAlone)
{
    EXPECT_NE(succeed(tune_ + Arguments{"--dry-run"}).out.find("nothing was stored"), std::string::npos);
    succeed(tune_ + Arguments{"--out", path("other.json"), "--direction", "backward"});
    EXPECT_FALSE(fs::exists(table_));
    const Json other = Json::parse(contents(path("other.json")));
    EXPECT_EQ(other["flashomp_tuning"], 1);
    ASSERT_EQ(other["tables"][0]["entries"].size(), 1U);
    EXPECT_EQ(other["tables"][0]["entries"][0]["direction"], "backward");
}

TEST_F(CliTune, JsonHasEveryCandidate)
{
    const Json json = Json::parse(
        succeed(tune_ + Arguments{"--json", "--softcap", "5", "--direction", "forward", "--dtype", "bfloat16"}).out);
    EXPECT_EQ(json["table"], table_.string());
    ASSERT_EQ(json["tuned"].size(), 1U);
    const Json& tuned = json["tuned"][0];
    EXPECT_EQ(tuned["class"], "openmp forward bfloat16 d64 modified n64x64 heads 2x2");
    ASSERT_GE(tuned["candidates"].size(), 2U);
    EXPECT_EQ(tuned["candidates"][0]["candidate"], "auto");
    int chosen = 0;
    for (const Json& candidate : tuned["candidates"]) {
        EXPECT_LE(candidate["error_o"], candidate["bound_o"]);
        EXPECT_GT(candidate["milliseconds"], 0.0);
        chosen += candidate["chosen"] ? 1 : 0;
    }
    EXPECT_EQ(chosen, 1);
    EXPECT_FALSE(json["context"]["cpu"].is_null());
}

TEST_F(CliTune, WithoutAShapeItIsTheQuickSuite)
{
    EXPECT_NE(succeed({"tune", "--list"}).out.find("b1_h8kv2_n1x4096_d128\n"), std::string::npos);
}

TEST_F(CliTune, BadInputIsOneSentenceAndNoTable)
{
    expect_refused({"tune", "--backend", "reference"},
                   "--backend was 'reference'; allowed is one of auto, openmp, cuda");
    expect_refused({"tune", "fa4"}, "suite was 'fa4'; allowed is one of");
    expect_refused({"tune", "--shape", "b1"}, "shape was 'b1'; allowed is bBATCH");
    expect_refused({"tune", "--shapes", "-"}, "--shapes was '-'; allowed is the name of a file");
    expect_refused(tune_ + Arguments{"--min-gain", "-1"}, "--min-gain was '-1'; allowed is a number from 0 to 100");
    expect_refused(tune_ + Arguments{"--machine", "plain"}, "'--machine' is not an option of flashomp tune");
    expect_refused(tune_ + Arguments{"--dtype", "float8_e4m3"}, "--dtype was 'float8_e4m3'");
    expect_refused({"tune", "--device", "99"}, "device was 99");
    expect_refused(tune_ + Arguments{"--out", path("")}, "a tuning table is a regular file");
    EXPECT_FALSE(fs::exists(table_));
    setenv("FLASHOMP_TUNING", "off", 1);
    expect_refused(
        tune_, "FLASHOMP_TUNING was off; allowed with tune is the name of a file, or anything with --out or --dry-run");
}

} // namespace
} // namespace flashomp::cli_test
