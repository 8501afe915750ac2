// Texts, tokens, batches and the n-gram model.
#include "corpus.hpp"
#include "ngram.hpp"
#include "text.hpp"
#include "tokens.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace gpt {
namespace {

namespace fs = std::filesystem;

/// A fresh folder for each test.
class GptText : public testing::Test {
protected:
    GptText() : folder_(fs::temp_directory_path() / ("gpt_text." + std::to_string(::getpid())))
    {
        fs::create_directories(folder_);
    }
    ~GptText() override { fs::remove_all(folder_); }

    fs::path write(const std::string& name, const std::string& text) const
    {
        std::ofstream(folder_ / name, std::ios::binary) << text;
        return folder_ / name;
    }

    fs::path folder_;
};

std::string lines(int first, int count)
{
    std::string text;
    for (int i = first; i < first + count; ++i) {
        text += "line " + std::to_string(i) + "\n";
    }
    return text;
}

TEST_F(GptText, LastTwentiethOfEachFileIsForValidation)
{
    write("a", lines(100, 100));
    write("b", lines(300, 40));
    fs::create_symlink("a", folder_ / "link");
    write("binary", std::string("x\0y", 3) + lines(0, 100));
    const Corpus corpus = read_corpus({folder_.string()}, 0);
    EXPECT_EQ(corpus.train, lines(100, 96) + lines(300, 39));
    EXPECT_EQ(corpus.validation, lines(196, 4) + lines(339, 1));
    EXPECT_EQ(read_corpus({folder_.string()}, 50).train, corpus.train.substr(0, 50));
}

TEST_F(GptText, WikiTextIsReadAsItIs)
{
    write("wiki.train.tokens", " = Title = \n one <unk> two \n");
    write("wiki.valid.tokens", " three \n");
    write("wiki.test.tokens", " four \n");
    const Corpus corpus = read_corpus({folder_.string()}, 0);
    EXPECT_EQ(corpus.train, " = Title = \n one <unk> two \n");
    EXPECT_EQ(corpus.validation, " three \n");
    EXPECT_EQ(corpus.test, " four \n");
}

TEST_F(GptText, EmptyAndShortTextsAreRefused)
{
    EXPECT_THROW(static_cast<void>(read_corpus({write("empty", "").string()}, 0)), flashomp::Error);
    const Tokens bytes;
    const Corpus corpus = read_corpus({write("short", lines(0, 30)).string()}, 0);
    const auto size = static_cast<Index>(corpus.train.size());
    EXPECT_NO_THROW(static_cast<void>(tokenised(corpus, bytes, size - 1)));
    EXPECT_THROW(static_cast<void>(tokenised(corpus, bytes, size)), flashomp::Error);
}

TEST(GptTokens, BytesAreThemselves)
{
    const Tokens tokens;
    const std::string text = "a\xff\n";
    EXPECT_EQ(tokens.encode(text), (std::vector<Tokens::Id>{97, 255, 10}));
    EXPECT_EQ(tokens.decode(tokens.encode(text)), text);
}

/// "aaab": the pair aa stands first at the smaller place. By hand: pairs of " low" ×5, " lower" ×2, " newest" ×6.
TEST(GptTokens, LearnsTheMostFrequentPairs)
{
    std::string text;
    for (const auto& [word, count] : {std::pair(" low", 5), std::pair(" lower", 2), std::pair(" newest", 6)}) {
        for (int i = 0; i < count; ++i) {
            text += word;
        }
    }
    // we: 8; then of (' ' l) (l o) (o w) with 7 each the smallest by bytes; (' ' l o) and so on.
    const Tokens tokens = Tokens::learn(text, 256 + 4);
    const std::vector<Tokens::Merge> expected = {{'w', 'e'}, {' ', 'l'}, {257, 'o'}, {' ', 'n'}};
    EXPECT_EQ(tokens.merges(), expected);
    EXPECT_EQ(tokens.encode(" lowest"), (std::vector<Tokens::Id>{258, 256, 's', 't'}));
}

/// The definition: in each round all pairs of all words are counted anew. Words of these texts are runs of letters.
std::vector<Tokens::Merge> merges_by_definition(const std::string& text, int vocabulary)
{
    std::vector<std::vector<Tokens::Id>> words;
    std::istringstream stream(text);
    for (std::string word; stream >> word;) {
        words.emplace_back(word.begin(), word.end());
        if (words.size() > 1) {
            words.back().insert(words.back().begin(), ' ');
        }
    }
    std::vector<Tokens::Merge> merges;
    while (Tokens::bytes + static_cast<int>(merges.size()) < vocabulary) {
        std::map<Tokens::Merge, int> counts;
        for (const auto& word : words) {
            for (std::size_t i = 0; i + 1 < word.size(); ++i) {
                ++counts[{word[i], word[i + 1]}];
            }
        }
        const auto best = std::max_element(counts.begin(), counts.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
        if (best == counts.end() || best->second < 2) {
            break;
        }
        for (auto& word : words) {
            for (std::size_t i = 0; i + 1 < word.size(); ++i) {
                if (Tokens::Merge(word[i], word[i + 1]) == best->first) {
                    word[i] = static_cast<Tokens::Id>(Tokens::bytes + merges.size());
                    word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
                }
            }
        }
        merges.push_back(best->first);
    }
    return merges;
}

TEST(GptTokens, LearnsWhatTheDefinitionSays)
{
    std::mt19937 random(11);
    for (const unsigned letters : {1U, 2U, 5U, 20U}) { // few: long runs of one letter, and many equal counts
        std::string text;
        for (int i = 0; i < 1500; ++i) {
            text +=
                random() % 6 == 0 && i > 0 && text.back() != ' ' ? ' ' : static_cast<char>('a' + random() % letters);
        }
        text += 'a';
        EXPECT_EQ(Tokens::learn(text, 700).merges(), merges_by_definition(text, 700)) << letters;
    }
}

TEST(GptTokens, EveryTextComesBack)
{
    std::mt19937 random(4);
    const Tokens tokens = Tokens::learn(lines(0, 400) + "  two  blanks\t\ttabs, ümläut 12:34\n", 290);
    EXPECT_EQ(tokens.vocabulary(), 290);
    for (int repeat = 0; repeat < 50; ++repeat) {
        std::string text(random() % 300, ' ');
        for (char& byte : text) {
            byte = random() % 2 == 0 ? static_cast<char>(random()) : "line 12\n"[random() % 8];
        }
        const std::vector<Tokens::Id> ids = tokens.encode(text);
        EXPECT_EQ(tokens.decode(ids), text);
        EXPECT_LE(ids.size(), text.size());
    }
}

TEST(GptTokens, MergesOfTokensThatAreNotThereAreRefused)
{
    EXPECT_THROW(Tokens({{'a', 'b'}, {257, 'c'}}), flashomp::Error);
}

/// Probabilities of all tokens add up to 1 after any context, seen or not.
TEST(GptNGram, IsADistribution)
{
    std::mt19937 random(1);
    std::vector<Tokens::Id> text(3000);
    for (Tokens::Id& token : text) {
        token = static_cast<Tokens::Id>(std::min(random() % 12, random() % 12));
    }
    const NGram model(text, 5, 14); // two tokens are never seen
    for (int repeat = 0; repeat < 60; ++repeat) {
        std::vector<Tokens::Id> context(random() % 6);
        for (Tokens::Id& token : context) {
            token = static_cast<Tokens::Id>(random() % 14);
        }
        double sum = 0;
        for (Tokens::Id token = 0; token < 14; ++token) {
            const double p = model.probability(context, token);
            EXPECT_GT(p, 0);
            sum += p;
        }
        EXPECT_NEAR(sum, 1, 1e-12);
    }
}

/// "abracadabra" with order 2, by hand. Bigrams and counts: ab 2, br 2, ra 2, ac 1, ca 1, ad 1, da 1, so n₁ = 4, n₂ =
/// 3, n₃ = n₄ = 0, Y = 4/10: D₁ = 1 − 2Y·3/4 = 0.4, D₂ = 2 − 3Y·0 = 2, which no count of 2 may lose whole: 0.5.
/// Unigrams by the tokens before them: a has {r, c, d} = 3, b, c, d {a} = 1 each, r {b} = 1: n₁ = 4, n₃ = 1, Y = 1,
/// D₁ = 1 − 2·0/4 = 1, not less than the count: 0.5; D₃ = 3 − 4·0 = 3, likewise 0.5.
TEST(GptNGram, KneserNeyByHand)
{
    const std::string word = "abracadabra";
    const std::vector<Tokens::Id> text(word.begin(), word.end());
    const NGram model(text, 2, 256);
    const double uniform = 1.0 / 256;
    const double gamma1 = (4 * 0.5 + 0.5) / 7;   // four counts of 1, one of 3, N = 7
    const double b = 0.5 / 7 + gamma1 * uniform; // P(b)
    const double z = gamma1 * uniform;           // P(z)
    EXPECT_NEAR(model.probability({}, 'b'), b, 1e-15);
    EXPECT_NEAR(model.probability({}, 'z'), z, 1e-15);
    const double gamma_a = (0.5 + 2 * 0.4) / 4; // after a: b 2, c 1, d 1
    const std::vector<Tokens::Id> a = {'a'};
    EXPECT_NEAR(model.probability(a, 'b'), (2 - 0.5) / 4 + gamma_a * b, 1e-15);
    EXPECT_NEAR(model.probability(a, 'z'), gamma_a * z, 1e-15);
    const std::vector<Tokens::Id> unseen = {'z'};
    EXPECT_NEAR(model.probability(unseen, 'b'), b, 1e-15);
}

TEST(GptBatches, DependOnSeedAndStep)
{
    Text text;
    text.train.resize(1000);
    std::iota(text.train.begin(), text.train.end(), Tokens::Id{0});
    const Sequences sequences = training_batch(text, 3, 20, 7, 5);
    ASSERT_EQ(sequences.tokens.size(), 60U);
    for (std::size_t i = 0; i < 60; ++i) {
        EXPECT_EQ(sequences.targets[i], sequences.tokens[i] + 1);
        EXPECT_LT(sequences.targets[i], 1000);
    }
    EXPECT_EQ(training_batch(text, 3, 20, 7, 5).tokens, sequences.tokens);
    EXPECT_NE(training_batch(text, 3, 20, 7, 6).tokens, sequences.tokens);
    EXPECT_NE(training_batch(text, 3, 20, 8, 5).tokens, sequences.tokens);
}

} // namespace
} // namespace gpt
