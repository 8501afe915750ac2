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

TEST_F(CliPlan, BadInputIsOneSentence)
{
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
