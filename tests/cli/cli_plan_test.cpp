// `flashomp plan`: the literature's figures out of one command, and numbers that agree with what then runs.
#include "cli_support.hpp"

#include "flashomp/version.hpp"

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace flashomp::cli_test {
namespace {

using Json = nlohmann::json;

class CliPlan : public CliTest {
protected:
    [[nodiscard]] Json plan(const Arguments& arguments) const
    {
        return Json::parse(succeed(Arguments{"plan"} + arguments + Arguments{"--json"}).out);
    }
};

TEST_F(CliPlan, ThePublishedFiguresComeOutOfOneCommand)
{
    const std::string text = succeed({"plan", "--shape", "b1_h64kv8_n131072_d128", "--dtype", "bfloat16", "--layers",
                                      "80", "--seqlens", "8192,131072", "--device", "host"})
                                 .out;
    for (const char* const figure : {"34.36 GB", "1.049 MB", "175.9 TB", "+25.0 % of backward", "+16.7 % of training",
                                     "none", "flash", "checkpoint", "both", "planned, not run"}) {
        EXPECT_NE(text.find(figure), std::string::npos) << figure << " in\n" << text;
    }
}

TEST_F(CliPlan, ACallWithACacheHasNoBackward)
{
    const Arguments cache{"--shape", "b2_h4kv2_n1x64_d32_page16", "--device", "host"};
    const Json json = plan(cache);
    EXPECT_TRUE(json.contains("forward"));
    EXPECT_FALSE(json.contains("backward"));
    EXPECT_FALSE(json.contains("kept"));
    EXPECT_FALSE(json["flops"].contains("backward"));
    EXPECT_EQ(succeed(Arguments{"plan"} + cache).out.find("backward"), std::string::npos);
    expect_refused(Arguments{"plan"} + cache + Arguments{"--layers", "2"}, "--layers was 2, and the shape has a cache");
}

TEST_F(CliPlan, JsonSaysTheSameInNumbers)
{
    const Json json =
        plan({"--shape", "b1_h64kv8_n131072_d128", "--dtype", "bfloat16", "--layers", "80", "--device", "host"});
    EXPECT_DOUBLE_EQ(json["kept"]["standard_per_head"], 131072.0 * 131072.0 * 2);
    EXPECT_DOUBLE_EQ(json["model"]["kept"][0]["standard"], 80.0 * 64 * 131072.0 * 131072.0 * 2);
    EXPECT_EQ(json["model"]["checkpointing"].size(), 4U);
    EXPECT_EQ(json["is_device"], false);
    EXPECT_GT(json["peaks"]["flops"], 0.0);
    for (const char* const direction : {"forward", "backward"}) {
        const Json& traffic = json[direction]["traffic"];
        EXPECT_LT(traffic["least"]["total"], traffic["tiles"]["total"]);
        EXPECT_GT(json[direction]["roofline"]["tiles"]["seconds"], 0.0);
    }
}

TEST_F(CliPlan, ExtraBytesAreThoseThatTheRunReports)
{
    // [1, 4, 64, 32] in the order of axes [batch, seqlen, heads, dim].
    const std::string q = tensor("plan_q", {1, 64, 4, 32});
    const Arguments run{"forward", "--q", q, "--k", q, "--v", q, "--device", "host", "--threads", "2"};
    const Json done = Json::parse(succeed(run + Arguments{"--out", out(), "--json"}).out);
    const Json planned = plan({"--shape", "b1_h4_n64_d32", "--device", "host", "--threads", "2"});
    EXPECT_EQ(planned["forward"]["extra_bytes"], done["passes"]["forward"]["extra_bytes"]);
}

TEST_F(CliPlan, AGpuNeedNotBeThereWhereTheBuildHasItsCode)
{
    const Arguments h200{"--shape", "b2_h32_n8192_d64", "--dtype", "bfloat16", "--device",
                         "h200",    "--backend",        "openmp"};
    if (std::string_view(build_info().offload) == "none") {
        expect_refused(Arguments{"plan"} + h200, "device was h200, but this build has no GPU code");
        return;
    }
    const Json json = plan(h200);
    EXPECT_EQ(json["is_device"], true);
    EXPECT_NE(json["where"].get<std::string>().find("not looked for"), std::string::npos);
    for (const Json& pass : json["forward"]["passes"]) {
        EXPECT_TRUE(pass["machine"] == "hopper" || pass["machine"] == "tensor") << pass;
        EXPECT_GT(pass["crews"], 100);
    }
    EXPECT_NE(json["peaks"]["bandwidth_source"].get<std::string>().find("measured"), std::string::npos);
}

TEST_F(CliPlan, RanksShareTheCallByEveryScheme)
{
    const Arguments shape{"--shape", "b1_h8kv4_n4096_d64_causal", "--dtype", "bfloat16", "--device", "host"};
    const Json sharding = plan(shape + Arguments{"--ranks", "1,8", "--interconnect", "25"})["sharding"];
    EXPECT_EQ(sharding["interconnect"], 25e9);
    EXPECT_DOUBLE_EQ(sharding["latency"], 10e-6);
    constexpr double block = 512 * 4 * 128 * 2;
    for (const char* const direction : {"forward", "backward"}) {
        const Json& calls = sharding[direction];
        ASSERT_EQ(calls.size(), 8U);
        EXPECT_EQ(calls[0]["scheme"], "one rank");
        EXPECT_EQ(calls[0]["sent_by_all"], 0.0);
        EXPECT_EQ(calls[0]["seconds"], calls[0]["seconds_of_one_rank"]);
        EXPECT_EQ(calls[1]["scheme"], "ring, contiguous");
        EXPECT_EQ(calls[4]["scheme"], "ring, zigzag");
        EXPECT_FALSE(calls[1].contains("schedule"));
        // K and V; backward twice as much of dK and dV, to each place that sees them and home.
        const double messages = 28 + (direction == std::string("backward") ? 2 * (28 + 7) : 0);
        EXPECT_EQ(calls[1]["sent_by_all"], messages * block);
        EXPECT_GT(calls[1]["imbalance"], 1.5);
        EXPECT_LT(calls[4]["imbalance"], 1.01);
        EXPECT_EQ(calls[4]["hop_bytes"], direction == std::string("backward") ? 3 * block : block);
    }
}

TEST_F(CliPlan, SchedulesAreShownHopByHop)
{
    const Arguments asked{"--shape",        "b1_h8kv4_n4096_d64_causal",
                          "--device",       "host",
                          "--ranks",        "4",
                          "--interconnect", "1",
                          "--latency",      "0",
                          "--schedule"};
    const Json call = plan(asked)["sharding"]["forward"][0];
    ASSERT_EQ(call["schedule"]["ranks"].size(), 4U);
    ASSERT_EQ(call["schedule"]["phases"].size(), 4U);
    const double end = call["schedule"]["phases"][3]["end"];
    EXPECT_DOUBLE_EQ(call["seconds"], end);
    for (const Json& rank : call["schedule"]["ranks"]) {
        const double computing = rank["computing"], waiting = rank["waiting"], idle = rank["idle"];
        EXPECT_NEAR((computing + waiting + idle) / end, 1, 1e-9);
    }
    const std::string text = succeed(Arguments{"plan"} + asked).out;
    for (const char* const words :
         {"ranks like this one", "1 GB/s each way", "Ulysses 2 x ring 2, zigzag", "all-gather, zigzag",
          "ring hides from N", "rank 3", "3 hop", "4 home", "float32 parts"}) {
        EXPECT_NE(text.find(words), std::string::npos) << words << " in\n" << text;
    }
}

TEST_F(CliPlan, BadInputIsOneSentence)
{
    const Arguments small{"plan", "--shape", "b1_h1_n8_d8", "--device", "host"};
    for (const char* const ranks : {"0", "-1", "4097", "2,,4", "two", "1.5", ""}) {
        expect_refused(small + Arguments{"--interconnect", "1", "--ranks", ranks},
                       "allowed is whole numbers from 1 to 4096");
    }
    for (const char* const speed : {"0", "-3", "nan", "inf", "1e10", "fast"}) {
        expect_refused(small + Arguments{"--ranks", "2", "--interconnect", speed}, "allowed is a number above 0");
    }
    for (const char* const latency : {"-1", "nan", "x"}) {
        expect_refused(small + Arguments{"--ranks", "2", "--interconnect", "1", "--latency", latency},
                       "allowed is a number from 0 to 1e9, in microseconds");
    }
    expect_refused(small + Arguments{"--ranks", "2"}, "--ranks was given without --interconnect");
    expect_refused(small + Arguments{"--interconnect", "2"}, "--interconnect was given without --ranks");
    expect_refused(small + Arguments{"--latency", "2"}, "--latency was given without --ranks");
    expect_refused(small + Arguments{"--schedule"}, "--schedule was given without --ranks");
    expect_refused({"plan", "--shape", "b1_h1_n64_d8_page8", "--ranks", "2", "--interconnect", "1"},
                   "with ranks, allowed are shapes without _blocks");

    expect_refused({"plan", "--shape", "1x4x2048x64"}, "shape was '1x4x2048x64'; allowed is bBATCH_hHEADS");
    expect_refused({"plan", "--shape", "b1_h1_n8_d577"}, "head dims of 1 to 576, those of v to 512");
    expect_refused({"plan", "--shape", "b1_h1_n8_d576"}, "head dims of 1 to 576, those of v to 512");
    expect_refused({"plan"}, "--shape is required");
    expect_refused({"plan", "--shape", "b1_h1_n8_d8", "--device", "h300"}, "--device was 'h300'");
    expect_refused({"plan", "--shape", "b1_h1_n8_d8", "--device", "host", "--machine", "tensor"},
                   "machine was tensor, which is allowed only where the call runs on a GPU");
    expect_refused({"plan", "--shape", "b1_h1_n8_d8", "--layers", "0"}, "--layers was '0'");
    expect_refused({"plan", "--shape", "b1_h1_n8_d8", "--layers", "2", "--seqlens", "8,x"}, "--seqlens was 'x'");
    expect_refused({"plan", "--shape", "b1_h1_n8_d8", "--seqlens", "8"}, "--seqlens was given without --layers");
    expect_refused({"plan", "--shape", "b1_h1_n8x9_d8", "--layers", "2"}, "with layers, allowed are equal lengths");
}

} // namespace
} // namespace flashomp::cli_test
