// What the program refuses: one sentence, before the first step, and nothing lost.
#include "program_support.hpp"

#include "checkpoint.hpp"

namespace gpt {
namespace {

using testing::contents;
using testing::GptProgram;
using testing::made_up_text;
namespace fs = std::filesystem;

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
    expect_refused("$gpt --hashed-ngrams 1", "--hashed-ngrams was 1; allowed is 0, or 2 to 16");
    expect_refused("$gpt --alibi -1", "--alibi was '-1'; allowed is one of true, false");
    expect_refused("$gpt --json nowhere/run.jsonl", "--json was nowhere/run.jsonl");
}

TEST_F(GptProgram, NumbersAreWholeAndFit)
{
    expect_refused("$gpt --seed -1", "--seed was '-1'; allowed is a natural number of at most 64 bits");
    expect_refused("$gpt --seed 18446744073709551616", "--seed was '18446744073709551616'");
    expect_refused("$gpt --steps 9223372036854775808", "--steps was '9223372036854775808'");
    expect_refused("$gpt --threads 4294967297", "--threads was '4294967297'");
    expect_refused("$gpt --steps 1.5", "--steps was '1.5'");
    expect_refused("$gpt --dropout 1e999", "--dropout was '1e999'");
    EXPECT_EQ(shell("$gpt --steps 1 --seed 18446744073709551615"), 0) << err_;
}

TEST_F(GptProgram, PathsThatCannotBeAreRefusedWithASentence)
{
    fs::create_symlink("loop", path("loop"));
    const std::string longest(300, 'x');
    for (const std::string option : {"--data", "--resume", "--save", "--json"}) {
        expect_refused("$gpt " + option + " ''", option + " was empty; allowed is the path of a file");
        expect_refused("$gpt " + option + " loop", "loop");
        expect_refused("$gpt " + option + " " + longest, longest);
        EXPECT_EQ(err_.find("exception"), std::string::npos) << err_;
        EXPECT_EQ(err_.find("unexpected"), std::string::npos) << err_;
    }
    expect_refused("$gpt --data \"$(printf '\\377')\"", "--data was ?, which is not printable UTF-8");
}

TEST_F(GptProgram, EqualPathsAreRefused)
{
    fs::copy_file(path(".text"), path("text"));
    fs::create_hard_link(path("text"), path("same"));
    fs::create_symlink("new", path("link")); // to a file that is not there
    fs::create_directory(path("folder"));
    fs::copy_file(path("text"), path("folder/text"));
    expect_refused("$gpt --save new --json ./new", "--json was ./new, which is the file of --save, too");
    expect_refused("$gpt --save new --json link", "--json was link, which is the file of --save, too");
    expect_refused("$gpt --data text --save same", "--data was text, which is the file of --save, too");
    expect_refused("$gpt --resume new --json folder/../new", "--json was folder/../new, which is the file of --resume");
    expect_refused("$gpt --data folder --json folder/run.jsonl", "--json was folder/run.jsonl, which is in the folder");
    EXPECT_TRUE(contents(path("text")) == made_up_text());
    EXPECT_FALSE(fs::exists(path("new")) || fs::exists(path("folder/run.jsonl")));
}

TEST_F(GptProgram, WhatWouldFailAtTheEndIsRefusedAtTheBeginning)
{
    expect_refused("$gpt --sample 5 --attention reference --json run.jsonl",
                   "--sample was 5 with --attention reference");
    expect_refused("$gpt --attention standard --device 99 --json run.jsonl", "--device was 99");
    expect_refused("$gpt --save nowhere/model --json run.jsonl", "--save was nowhere/model, which cannot be written");
    expect_refused("$gpt --save . --json run.jsonl", "--save was ., which is no regular file");
    expect_refused("$gpt --save new --json run.jsonl >&-", "cannot be printed to standard output");
    EXPECT_EQ(contents(path("run.jsonl")), "");
    EXPECT_FALSE(fs::exists(path("new")));
}

TEST_F(GptProgram, ARunGoesOnWithItsTextInItsFile)
{
    ASSERT_EQ(shell("$gpt --save part.safetensors --stop-after 4"), 0) << err_;
    fs::copy_file(path("part.safetensors"), path("other.safetensors"));
    expect_refused("$gpt --resume part.safetensors --limit 30000", "--data has a training text with the hash ");
    // A text is not needed for sampling.
    EXPECT_EQ(shell("$gpt --resume part.safetensors --limit 30000 --steps 0 --sample 3"), 0) << err_;
    EXPECT_TRUE(contents(path("part.safetensors")) == contents(path("other.safetensors")));
    // Without --save it is the file that goes on.
    ASSERT_EQ(shell("$gpt --resume part.safetensors"), 0) << err_;
    EXPECT_NE(out_.find("steps 4 to 12, saved to part.safetensors"), std::string::npos) << out_;
    ASSERT_EQ(shell("$gpt --save whole.safetensors"), 0) << err_;
    EXPECT_TRUE(contents(path("part.safetensors")) == contents(path("whole.safetensors")));
    ASSERT_EQ(shell("$gpt --resume other.safetensors --save third.safetensors"), 0) << err_;
    EXPECT_TRUE(contents(path("third.safetensors")) == contents(path("whole.safetensors")));
    EXPECT_EQ(read_checkpoint(path("other.safetensors")).step, 4);
}

/// The model of a machine that has other backends and devices.
TEST_F(GptProgram, AttentionIsNotOfTheModel)
{
    ASSERT_EQ(shell("$gpt --save model.safetensors"), 0) << err_;
    Checkpoint checkpoint = read_checkpoint(path("model.safetensors"));
    checkpoint.options.attention = "elsewhere";
    checkpoint.options.device = "99";
    {
        DurableFile file("--save", path("model.safetensors"));
        write_checkpoint(file, checkpoint);
    }
    const std::string program = FLASHOMP_GPT_PATH;
    ASSERT_EQ(shell(program + " --resume model.safetensors --sample 5"), 0) << err_;
    EXPECT_NE(err_.find("--attention elsewhere is not in this build; flash is used"), std::string::npos) << err_;
    const std::string written = out_;
    ASSERT_EQ(shell(program + " --resume model.safetensors --sample 5 --attention openmp --device host"), 0) << err_;
    EXPECT_EQ(err_, "");
    EXPECT_EQ(out_, written);
    expect_refused(program + " --resume model.safetensors --sample 5 --attention flash --device 98", "--device was 98");
    // Checked against the model in the file, not against the defaults.
    expect_refused(program + " --resume model.safetensors --heads 3",
                   "--heads was 3, but the model in model.safetensors has 2");
}

TEST_F(GptProgram, BadCheckpointsAreRefused)
{
    ASSERT_EQ(shell("$gpt --save good.safetensors"), 0) << err_;
    const std::string good = contents(path("good.safetensors"));
    expect_refused("$gpt --resume nowhere.safetensors", "nowhere.safetensors");
    expect_refused("$gpt --resume good.safetensors --dim 64", "--dim was 64, but the model in good.safetensors has 32");
    expect_refused("$gpt --resume good.safetensors --layers 3", "--layers was 3");
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{5}, std::size_t{100}, good.size() / 2, good.size() - 1}) {
        write("cut.safetensors", good.substr(0, size));
        expect_refused("$gpt --resume cut.safetensors", "cut.safetensors: ");
    }
    std::string damaged = good;
    damaged[good.size() - 1000] = static_cast<char>(damaged[good.size() - 1000] ^ 4);
    write("damaged.safetensors", damaged);
    expect_refused("$gpt --resume damaged.safetensors", "damaged.safetensors: is damaged");
    std::string other = good; // a model of another width by its options, of the same length of text
    const std::size_t at = other.find("\\\"dim\\\":32");
    ASSERT_NE(at, std::string::npos);
    other.replace(at, 10, "\\\"dim\\\":64");
    write("other.safetensors", other);
    expect_refused(FLASHOMP_GPT_PATH " --resume other.safetensors", "other.safetensors: has ");
    write("text.safetensors", "a text and no checkpoint");
    expect_refused("$gpt --resume text.safetensors", "text.safetensors: ");
    EXPECT_TRUE(contents(path("good.safetensors")) == good);
}

TEST_F(GptProgram, AFullDiskLeavesTheLastCheckpoint)
{
    ASSERT_EQ(shell("$gpt --stop-after 4 --save model.safetensors"), 0) << err_;
    const std::string before = contents(path("model.safetensors"));
    ASSERT_GT(before.size(), 200000U);
    expect_failed("ulimit -f 100; $gpt --resume model.safetensors --save model.safetensors", "model.safetensors");
    EXPECT_TRUE(contents(path("model.safetensors")) == before);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 4); // the model, the text and the two streams
    expect_refused("$gpt --save nowhere/model.safetensors --steps 1", "nowhere/model.safetensors");
    if (fs::exists("/dev/full")) {
        expect_failed("$gpt --steps 1 --json /dev/full", "--json was /dev/full");
    }
}

} // namespace
} // namespace gpt
