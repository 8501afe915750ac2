// examples/gpt as a user runs it, in a folder of its own, on a text of its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace gpt::testing {

namespace fs = std::filesystem;

inline std::string contents(const fs::path& file)
{
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/// 50 KB of sentences, the same on every machine and in every commit: bounds on losses hold for one text only, which a
/// page of docs/ is not.
inline std::string made_up_text()
{
    constexpr std::array words = {"tile",   "query",  "key",    "value",  "a",      "team",    "loads", "keeps",
                                  "sum",    "and",    "each",   "row",    "of",     "softmax", "waits", "for",
                                  "memory", "kernel", "writes", "column", "before", "the",     "block", "1024",
                                  "head",   "scores", "until",  "while",  "exact",  "no",      "max",   "Q"};
    std::mt19937 random; // NOLINT: the default seed, so the same numbers everywhere
    std::string text;
    while (text.size() < 50000) {
        for (auto left = 3 + random() % 12; left > 0; --left) {
            text += words.at(random() % words.size());
            text += left > 1 ? " " : ".\n";
        }
    }
    return text;
}

class GptProgram : public ::testing::Test {
protected:
    GptProgram()
    {
        std::string name = (fs::temp_directory_path() / "flashomp-gpt-XXXXXX").string();
        folder_ = ::mkdtemp(name.data());
        write(".text", made_up_text());
    }
    ~GptProgram() override { fs::remove_all(folder_); }

    [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

    /// A line of shell in which "$gpt" is the program with a small model and a short run; its exit status.
    int shell(const std::string& line)
    {
        const std::string setup = "gpt='" FLASHOMP_GPT_PATH " --data " + path(".text") +
                                  " --seqlen 32 --layers 2 --heads 2 --dim 32 --hashed-ngrams 3 --hash-rows 50 "
                                  "--batch 2 --steps 12 --warmup 2 --ngram 0 "
                                  "--eval-every 0 --device host --threads 1 --limit 60000'; cd " +
                                  folder_.string() + "; ";
        const std::string command = "{ " + setup + line + "; } > " + path(".out") + " 2> " + path(".err");
        const int status = std::system(command.c_str()); // NOLINT: a shell is what this is about
        out_ = contents(path(".out"));
        err_ = contents(path(".err"));
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    /// Status 2 and one sentence that holds `words`, before anything is done.
    void expect_refused(const std::string& line, const std::string& words)
    {
        expect_failed(line, words);
        EXPECT_EQ(out_, "") << line;
    }

    /// The same of a run that may have begun.
    void expect_failed(const std::string& line, const std::string& words)
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

    void write(const std::string& name, const std::string& bytes) const
    {
        std::ofstream(path(name), std::ios::binary) << bytes;
    }

    fs::path folder_;
    std::string out_, err_;
};

} // namespace gpt::testing
