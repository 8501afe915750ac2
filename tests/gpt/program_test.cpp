// The program as a user runs it: the whole validation text is read at the end of each run.
#include "program_support.hpp"
#include "support/sanitizers.hpp"

#include <cmath>

namespace gpt {
namespace {

using testing::contents;
using testing::GptProgram;
namespace fs = std::filesystem;

/// Losses of all steps of a record.
std::vector<double> losses(const std::vector<nlohmann::json>& lines)
{
    std::vector<double> all;
    for (const nlohmann::json& line : lines) {
        if (line.at("type") == "step") {
            all.push_back(line.at("loss"));
        }
    }
    return all;
}

TEST_F(GptProgram, TrainsAndWrites)
{
    ASSERT_EQ(shell("$gpt --steps 40 --ngram 5 --eval-every 20 --json run.jsonl --save m.safetensors --sample 30"), 0)
        << err_;
    EXPECT_NE(out_.find("5-gram model"), std::string::npos) << out_;
    const auto all = lines("run.jsonl");
    const std::vector<double> loss = losses(all);
    ASSERT_EQ(loss.size(), 40U);
    EXPECT_NEAR(loss.front(), std::log(256.0), 0.3);
    EXPECT_LT(loss.back(), 0.8 * loss.front());
    // The result is there before the n-gram model, for which memory may end.
    const nlohmann::json& result = all.at(all.size() - 2);
    const nlohmann::json& ngram = all.back();
    EXPECT_EQ(result.at("type"), "result");
    EXPECT_EQ(ngram.at("type"), "ngram");
    EXPECT_GT(result.at("validation").at("perplexity"), 1.0);
    EXPECT_GT(ngram.at("perplexity"), 1.0);
    EXPECT_EQ(result.at("validation").at("tokens"), ngram.at("tokens"));
    const std::string products = all.front().at("products");
    EXPECT_NE(out_.substr(0, out_.find('\n')).find("products by " + products), std::string::npos) << out_;
    for (const nlohmann::json& line : all) {
        if (line.at("type") == "step") {
            EXPECT_GT(line.at("kept_bytes"), 0);
            EXPECT_GT(line.at("peak_resident_bytes"), line.at("kept_bytes"));
            EXPECT_GT(line.at("utilisation"), 0.0);
            EXPECT_LE(line.at("attention_seconds"), line.at("seconds"));
        }
    }
    // The text of the saved model, which needs no text to be there.
    const std::string written = out_.substr(out_.rfind("a token\n") + 8);
    ASSERT_EQ(shell("$gpt --steps 40 --resume m.safetensors --data nowhere --sample 30"), 0) << err_;
    EXPECT_EQ(out_, written);
}

TEST_F(GptProgram, AStoppedRunEndsWithTheSameBits)
{
    for (const std::string options : {"", "--dtype bfloat16 --dropout 0.1 --vocabulary 300 --alibi true"}) {
        ASSERT_EQ(shell("$gpt " + options + " --save whole.safetensors --json whole.jsonl"), 0) << err_;
        ASSERT_EQ(shell("$gpt " + options + " --save part.safetensors --stop-after 5 --json part.jsonl"), 0) << err_;
        ASSERT_EQ(shell("$gpt --resume part.safetensors --save part.safetensors --json part.jsonl"), 0) << err_;
        EXPECT_EQ(losses(lines("whole.jsonl")), losses(lines("part.jsonl")));
        EXPECT_TRUE(contents(path("whole.safetensors")) == contents(path("part.safetensors"))) << options;
        fs::remove(path("whole.jsonl"));
        fs::remove(path("part.jsonl"));
    }
}

TEST_F(GptProgram, AKilledRunEndsWithTheSameBits)
{
    ASSERT_EQ(shell("$gpt --steps 300 --save whole.safetensors"), 0) << err_;
    // Killed at any moment after the first checkpoint, in the middle of a step or of a write.
    ASSERT_EQ(shell("$gpt --steps 300 --save killed.safetensors --save-every 1 & child=$!; "
                    "until [ -e killed.safetensors ]; do sleep 0.01; done; sleep 0.05; kill -KILL $child; "
                    "wait $child; [ $? -gt 128 ]"),
              0)
        << "the run ended before it was killed";
    ASSERT_EQ(shell("$gpt --steps 300 --resume killed.safetensors --save killed.safetensors --save-every 500"), 0)
        << err_;
    // Options are part of a checkpoint: the same ones on both sides.
    ASSERT_EQ(shell("$gpt --steps 300 --resume whole.safetensors --sample 40"), 0) << err_;
    const std::string written = out_;
    ASSERT_EQ(shell("$gpt --steps 300 --resume killed.safetensors --sample 40"), 0) << err_;
    EXPECT_EQ(out_, written);
    EXPECT_TRUE(contents(path("whole.safetensors")) == contents(path("killed.safetensors")));
}

TEST_F(GptProgram, FlashAndStandardAttentionReachTheSamePerplexity)
{
    // At the default rate so few tokens a step make so small a model chaotic: a rounding grows to percents in 60 steps.
    const auto perplexity = [&](const std::string& options) {
        fs::remove(path("run.jsonl"));
        EXPECT_EQ(shell("$gpt --steps 60 --warmup 10 --learning-rate 0.001 --json run.jsonl " + options), 0) << err_;
        return lines("run.jsonl").back().at("validation").at("perplexity").get<double>();
    };
    for (const auto& [dtype, bound] : {std::pair("float32", 0.001), std::pair("bfloat16", 0.005)}) {
        const std::string with = std::string("--dtype ") + dtype;
        EXPECT_NEAR(perplexity(with + " --attention flash") / perplexity(with + " --attention standard"), 1, bound)
            << dtype;
    }
    EXPECT_NEAR(perplexity("--attention reference") / perplexity("--attention openmp"), 1, 0.001);
}

#if !FLASHOMP_ADDRESS_SANITIZER // which reserves more address space than any limit leaves
TEST_F(GptProgram, MemoryEndsForStandardAttentionOnly)
{
    const std::string options = "--seqlen 4096 --batch 1 --heads 4 --steps 1 --memory-limit 500000000 ";
    EXPECT_EQ(shell("$gpt " + options + "--attention flash"), 0) << err_;
    EXPECT_EQ(shell("$gpt " + options + "--attention standard"), 3);
    EXPECT_NE(err_.find("gpt: out of memory: "), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
}
#endif

/// With this rate weights grow until the loss is no number, in the middle of a run or after its last step.
constexpr const char* wild = " --learning-rate 1 --weight-decay 10 --warmup 0 --last-rate 1 ";

TEST_F(GptProgram, ADivergedModelHasNoResult)
{
    int steps = 1;
    while (shell("$gpt" + std::string(wild) + "--save m.safetensors --sample 3 --steps " + std::to_string(steps)) ==
           0) {
        EXPECT_EQ(out_.find("nan"), std::string::npos) << out_;
        EXPECT_EQ(out_.find("inf "), std::string::npos) << out_;
        fs::remove(path("m.safetensors"));
        ASSERT_LT(++steps, 100);
    }
    expect_failed("$gpt" + std::string(wild) + "--save m.safetensors --steps " + std::to_string(steps),
                  "the loss is no number");
    EXPECT_FALSE(fs::exists(path("m.safetensors")));
}

TEST_F(GptProgram, ADivergedModelDoesNotTakeThePlaceOfAGoodOne)
{
    ASSERT_EQ(shell("$gpt --steps 3 --save m.safetensors"), 0) << err_;
    expect_failed("$gpt --resume m.safetensors --steps 100 --save-every 1" + std::string(wild),
                  "a smaller rate is needed");
    EXPECT_EQ(shell("$gpt --resume m.safetensors --steps 100 --stop-after 1 --learning-rate 0"), 0) << err_;
}

TEST_F(GptProgram, NumbersAreDecimal)
{
    ASSERT_EQ(shell("$gpt --steps 010 --hash-rows 09 --hash-rows 050 --json run.jsonl"), 0) << err_;
    EXPECT_EQ(losses(lines("run.jsonl")).size(), 10U);
    EXPECT_EQ(lines("run.jsonl").front().at("options").at("hash_rows"), 50);
}

TEST_F(GptProgram, ThePredictionIsThatOfThePlan)
{
    ASSERT_EQ(shell("$gpt --steps 1 --json run.jsonl"), 0) << err_;
    const nlohmann::json predicted = lines("run.jsonl").front().at("predicted");
    ASSERT_EQ(shell(FLASHOMP_CLI_PATH " plan --shape b2_h2_n32_d16_causal --layers 2 --dtype bfloat16 --device host "
                                      "--json"),
              0)
        << err_;
    const nlohmann::json plan = nlohmann::json::parse(out_);
    EXPECT_NE(plan.dump().find(predicted.at("both").at("peak_bytes").dump()), std::string::npos) << plan.dump();
}

} // namespace
} // namespace gpt
