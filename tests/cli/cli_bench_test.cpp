// `flashomp bench` as a user runs it: files, table, exit status, and one sentence for bad input or a
// failure of the machine.
#include "cli_support.hpp"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

namespace flashomp::cli_test {
namespace {

using Json = nlohmann::json;

class CliBench : public CliTest {
protected:
    const Arguments small_{"bench",      "--shape", "b1_h2kv1_n64_d16_causal", "--device", "host", "--repetitions", "2",
                           "--min-time", "0"};
};

TEST_F(CliBench, RefusesToRunNothing)
{
    Arguments backward_of_a_cache = small_;
    backward_of_a_cache[2] = "b1_h2_n1x64_d16_page16";
    expect_refused(backward_of_a_cache + Arguments{"--direction", "backward"}, "--direction was backward");
    expect_refused(backward_of_a_cache + Arguments{"--direction", "backward", "--json"}, "--direction was backward");
}

TEST_F(CliBench, TableJsonAndCsvOfOneRun)
{
    const std::string text = succeed(small_ + Arguments{"--out", path("r.json"), "--csv", path("r.csv")}).out;
    EXPECT_NE(text.find("b1_h2kv1_n64_d16_causal"), std::string::npos) << text;
    EXPECT_NE(text.find("2 rows in float32 ran on host"), std::string::npos) << text;
    const Json file = Json::parse(contents(path("r.json")));
    ASSERT_EQ(file["benchmarks"].size(), 2U);
    for (const Json& row : file["benchmarks"]) {
        EXPECT_GT(row["real_time"], 0.0);
        EXPECT_LE(row["error_o"], row["bound_o"]);
        EXPECT_EQ(row["on_device"], 0.0);
    }
    for (const char* const key : {"date", "cpu", "flashomp_commit", "flashomp_compiler", "flashomp_flags", "command"}) {
        EXPECT_FALSE(file["context"][key].get<std::string>().empty()) << key;
    }
    EXPECT_NE(file["context"]["command"].get<std::string>().find("b1_h2kv1_n64_d16_causal"), std::string::npos);
    EXPECT_GT(file["context"]["peaks"]["flops"], 0.0);
    EXPECT_NE(contents(path("r.csv")).find("backward,float32,b1_h2kv1_n64_d16_causal,flashomp"), std::string::npos);
}

TEST_F(CliBench, StandardAttentionBesideIt)
{
    const Json file = Json::parse(
        succeed(small_ + Arguments{"--beside-standard", "--direction", "forward", "--dtype", "bfloat16", "--json"})
            .out);
    ASSERT_EQ(file["benchmarks"].size(), 2U);
    EXPECT_EQ(file["benchmarks"][0]["implementation"], "flashomp");
    EXPECT_EQ(file["benchmarks"][1]["implementation"], "standard");
    EXPECT_EQ(file["benchmarks"][0]["run_name"], file["benchmarks"][1]["run_name"]);
    const std::string text = succeed(small_ + Arguments{"--beside-standard", "--direction", "forward"}).out;
    EXPECT_NE(text.find("time / flashomp's"), std::string::npos) << text;
    const ::testing::Matcher<const std::string&> has_row =
        ::testing::ContainsRegex("\n *forward [^\n]* standard[^\n]* [0-9.]+x ");
    EXPECT_TRUE(has_row.Matches(text)) << text;
}

TEST_F(CliBench, AMissingToolIsAFailureOfTheMachineAndNoBadInput)
{
    const Outcome missing =
        run_shell(R"(PATH=/nonexistent; "$0" bench --shape b1_h1_n64_d16 --device host --measure-traffic)");
    EXPECT_EQ(missing.status, 3);
    EXPECT_EQ(missing.err, "flashomp: --measure-traffic on the host needs valgrind on PATH, which is not there.\n");
    EXPECT_EQ(run_shell(R"(PATH=/nonexistent; "$0" bench --shape nothing --device host --measure-traffic)").status, 2);
}

TEST_F(CliBench, PreparedCallsAreCheckedAndTimedLikeOthers)
{
    const Outcome outcome = succeed({"bench", "--shape", "b2_h2_n70_d32_causal", "--shape", "b3_h2_n40_d64_varlen",
                                     "--device", "host", "--prepared", "--min-time", "0.001", "--json"});
    const auto json = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(json.at("context").at("flashomp_calls"), "prepared");
    ASSERT_EQ(json.at("benchmarks").size(), 4U);
    for (const auto& row : json.at("benchmarks")) {
        EXPECT_FALSE(row.contains("error_message")) << row;
        EXPECT_GT(row.at("real_time"), 0) << row;
    }
    expect_refused({"bench", "--shape", "b1_h1_n8_d8", "--backend", "reference", "--prepared"},
                   "--prepared was given with backend reference");
}

TEST_F(CliBench, HelpSpeaksOfRandomInputs)
{
    const std::string help = succeed({"bench", "--help"}).out;
    EXPECT_EQ(help.find("convert the inputs"), std::string::npos) << help;
    EXPECT_NE(help.find("of the random inputs: float32 (default)"), std::string::npos) << help;
}

TEST_F(CliBench, ListNamesTheShapesOfSuitesAndFlags)
{
    const std::string text =
        succeed({"bench", "--shape", "b1_h1_n8_d8", "decode", "--shape", "b2_h1_n8_d8", "--list"}).out;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8 + 2);
    EXPECT_NE(text.find("b16_h32kv8_n1x65536_d128\n"), std::string::npos) << text;
    EXPECT_NE(text.find("b1_h1_n8_d8\nb2_h1_n8_d8\n"), std::string::npos) << text;
}

TEST_F(CliBench, ModelsAreChosenByWhatTheirNamesContain)
{
    const std::string all = succeed({"bench", "models", "--list"}).out;
    EXPECT_NE(all.find("b16_h32kv8_n1x8192_d128_causal_page16  Llama 3 8B, decode\n"), std::string::npos) << all;
    EXPECT_EQ(succeed({"bench", "models", "--model", "Llama 3 8B, decode", "--model", "Qwen3", "--list"}).out,
              "b16_h32kv8_n1x8192_d128_causal_page16  Llama 3 8B, decode\n"
              "b1_h32kv4_n4096_d128_causal  Qwen3 30B-A3B, prefill\n"
              "b16_h32kv4_n1x8192_d128_causal_page16  Qwen3 30B-A3B, decode\n"
              "b1_h32kv4_n2048_d128_causal  Qwen3 30B-A3B, training\n");
    expect_refused({"bench", "models", "--model", "Llama 9"}, "--model was 'Llama 9'");
    expect_refused({"bench", "--shape", "b1_h1_n8_d8", "--model", "Llama"}, "--model was 'Llama'");
}

TEST_F(CliBench, BadInputIsOneSentenceAndNoFile)
{
    const Arguments file{"--out", out() / "r.json"};
    expect_refused(
        Arguments{"bench", "fa4"} + file,
        "suite was 'fa4'; allowed is one of fa2, repro, decode, cache, mla, varlen, models, density, modified, quick");
    expect_refused(Arguments{"bench"} + file, "no shape was given");
    expect_refused(Arguments{"bench", "--shape", "b1"} + file, "shape was 'b1'; allowed is bBATCH");
    expect_refused(Arguments{"bench", "--shapes", path("none.txt")} + file, "none.txt cannot be read");
    expect_refused(small_ + Arguments{"--machine", "tensor", "--out", path("r.json")},
                   "machine was tensor, which is allowed only where");
    EXPECT_FALSE(fs::exists(path("r.json")));
    expect_refused(small_ + Arguments{"--kernel-time"} + file, "kernel time was asked for on the host");
    expect_refused(small_ + Arguments{"--direction", "sideways"} + file, "--direction was 'sideways'");
    expect_refused(small_ + Arguments{"--repetitions", "0"} + file, "--repetitions");
    expect_refused(small_ + Arguments{"--out", path("no/such/folder/r.json")}, "no/such/folder");
    write_text(path("shapes.txt"), "b1_h1_n8_d8 # fine\n\nb1_h3kv2_n8_d8\n");
    expect_refused(Arguments{"bench", "--shapes", path("shapes.txt")} + file,
                   "shapes.txt:3: shape was 'b1_h3kv2_n8_d8'");
}

} // namespace
} // namespace flashomp::cli_test
