// The program as a user runs it, on a page of docs/: the whole validation text is read at the end of each run.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace gpt {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& file)
{
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

class GptProgram : public testing::Test {
protected:
    GptProgram()
    {
        std::string name = (fs::temp_directory_path() / "flashomp-gpt-XXXXXX").string();
        folder_ = ::mkdtemp(name.data());
    }
    ~GptProgram() override { fs::remove_all(folder_); }

    [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

    /// A line of shell in which "$gpt" is the program with a small model and a short run; its exit status.
    int shell(const std::string& line)
    {
        const std::string setup =
            "gpt='" FLASHOMP_GPT_PATH " --data " FLASHOMP_TEXT
            " --seqlen 32 --layers 2 --heads 2 --dim 32 --batch 2 --steps 12 --warmup 2 --ngram 0 "
            "--eval-every 0 --device host --threads 1 --limit 60000'; cd " +
            folder_.string() + "; ";
        const std::string command = "{ " + setup + line + "; } > " + path(".out") + " 2> " + path(".err");
        const int status = std::system(command.c_str()); // NOLINT: a shell is what this is about
        out_ = contents(path(".out"));
        err_ = contents(path(".err"));
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    /// Status 2 and one sentence that holds `words`.
    void expect_refused(const std::string& line, const std::string& words)
    {
        EXPECT_EQ(shell(line), 2) << line << err_;
        EXPECT_NE(err_.find(words), std::string::npos) << err_;
        EXPECT_EQ(err_.substr(0, 5), "gpt: ");
        EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
        EXPECT_TRUE(err_.ends_with(".\n")) << err_;
    }

    [[nodiscard]] std::vector<nlohmann::json> lines(const std::string& name) const
    {
        std::vector<nlohmann::json> all;
        std::istringstream text(contents(path(name)));
        for (std::string line; std::getline(text, line);) {
            all.push_back(nlohmann::json::parse(line));
        }
        return all;
    }

    fs::path folder_;
    std::string out_, err_;
};

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
    const nlohmann::json& result = all.back();
    EXPECT_EQ(result.at("type"), "result");
    EXPECT_GT(result.at("validation").at("perplexity"), 1.0);
    EXPECT_GT(result.at("ngram").at("perplexity"), 1.0);
    EXPECT_EQ(result.at("validation").at("tokens"), result.at("ngram").at("tokens"));
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
    ASSERT_EQ(shell("$gpt --steps 300 --resume killed.safetensors --save killed.safetensors --save-every 100"), 0)
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

#if !defined(__SANITIZE_ADDRESS__) // which reserves more address space than any limit leaves
TEST_F(GptProgram, MemoryEndsForStandardAttentionOnly)
{
    const std::string options = "--seqlen 4096 --batch 1 --heads 4 --steps 1 --memory-limit 500000000 ";
    EXPECT_EQ(shell("$gpt " + options + "--attention flash"), 0) << err_;
    EXPECT_EQ(shell("$gpt " + options + "--attention standard"), 3);
    EXPECT_NE(err_.find("gpt: out of memory: "), std::string::npos) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
}
#endif

TEST_F(GptProgram, BadTextsAreRefused)
{
    std::ofstream(path("empty"));
    std::ofstream(path("short")) << "a few words\nand a few more\n";
    fs::create_directory(path("folder"));
    const std::string program = FLASHOMP_GPT_PATH;
    expect_refused(program + " --data empty", "--data was empty, which holds no text");
    expect_refused(program + " --data folder", "--data was folder, which holds no text");
    expect_refused(program + " --data short", "--seqlen 512 needs at least 513");
    expect_refused(program + " --data nowhere", "nowhere");
}

TEST_F(GptProgram, BadOptionsAreRefused)
{
    expect_refused("$gpt --heads 5", "--dim was 32 with --heads 5; allowed is a multiple of the heads");
    expect_refused("$gpt --heads-kv 3", "--heads-kv was 3 with --heads 2");
    expect_refused("$gpt --attention quick", "--attention was 'quick'; allowed is one of standard, flash");
    expect_refused("$gpt --dtype float16", "--dtype was 'float16'");
    expect_refused("$gpt --dropout 1", "--dropout was 1");
    expect_refused("$gpt --steps many", "--steps");
    expect_refused("$gpt --colour red", "--colour");
    expect_refused("$gpt --device 99", "99");
    expect_refused("$gpt --vocabulary 60000", "--vocabulary was 60000; the text has pairs for");
    expect_refused("$gpt --learning-rate 2", "--learning-rate was 2; allowed is 0 to 1");
    expect_refused("$gpt --json nowhere/run.jsonl", "--json was nowhere/run.jsonl");
}

TEST_F(GptProgram, BadCheckpointsAreRefused)
{
    ASSERT_EQ(shell("$gpt --save good.safetensors"), 0) << err_;
    const std::string good = contents(path("good.safetensors"));
    const auto with = [&](const std::string& name, const std::string& bytes) {
        std::ofstream(path(name), std::ios::binary) << bytes;
    };
    expect_refused("$gpt --resume nowhere.safetensors", "nowhere.safetensors");
    expect_refused("$gpt --resume good.safetensors --dim 64", "--dim was 64, but the model in good.safetensors has 32");
    expect_refused("$gpt --resume good.safetensors --layers 3", "--layers was 3");
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{5}, std::size_t{100}, good.size() / 2, good.size() - 1}) {
        with("cut.safetensors", good.substr(0, size));
        expect_refused("$gpt --resume cut.safetensors", "cut.safetensors: ");
    }
    std::string damaged = good;
    damaged[good.size() - 1000] = static_cast<char>(damaged[good.size() - 1000] ^ 4);
    with("damaged.safetensors", damaged);
    expect_refused("$gpt --resume damaged.safetensors", "damaged.safetensors: is damaged");
    std::string other = good; // a model of another width by its options, of the same length of text
    const std::size_t at = other.find("\\\"dim\\\":32");
    ASSERT_NE(at, std::string::npos);
    other.replace(at, 10, "\\\"dim\\\":64");
    with("other.safetensors", other);
    expect_refused(FLASHOMP_GPT_PATH " --resume other.safetensors", "other.safetensors: has ");
    with("text.safetensors", "a text and no checkpoint");
    expect_refused("$gpt --resume text.safetensors", "text.safetensors: ");
    EXPECT_TRUE(contents(path("good.safetensors")) == good);
}

TEST_F(GptProgram, AFullDiskLeavesTheLastCheckpoint)
{
    ASSERT_EQ(shell("$gpt --stop-after 4 --save model.safetensors"), 0) << err_;
    const std::string before = contents(path("model.safetensors"));
    ASSERT_GT(before.size(), 200000U);
    expect_refused("ulimit -f 100; $gpt --resume model.safetensors --save model.safetensors", "model.safetensors");
    EXPECT_TRUE(contents(path("model.safetensors")) == before);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 3); // the model and the two streams
    expect_refused("$gpt --save nowhere/model.safetensors --steps 1", "nowhere/model.safetensors");
    if (fs::exists("/dev/full")) {
        expect_refused("$gpt --steps 1 --json /dev/full", "/dev/full");
    }
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
