// What training must not depend on: the implementation of attention, what is run again, threads.
#include "small_model.hpp"

#include "attention_flash.hpp"
#include "attention_standard.hpp"
#include "generate.hpp"
#include "machine.hpp"
#include "ngram_rows.hpp"
#include "optimizer.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/mman.h>

namespace gpt {
namespace {

flashomp::Options on_host()
{
    flashomp::Options options;
    options.device.kind = flashomp::Device::Kind::host;
    return options;
}

/// Losses of some steps, and the weights after them.
struct Trained {
    std::vector<double> losses;
    Numbers<float> weights;
    std::int64_t kept = 0; ///< the most bytes that layers kept
    friend bool operator==(const Trained& a, const Trained& b)
    {
        return a.losses == b.losses && a.weights == b.weights;
    }
};

template <class S>
Trained train(Attention<S>& attention, const ModelShape& shape, Recompute recompute, double dropout, int steps,
              Index batch)
{
    Model<S> model(shape, 1, attention, recompute);
    OptimizerOptions rate;
    rate.warmup = 1;
    AdamW<float> optimizer(rate, model.layout());
    Trained run;
    for (int step = 0; step < steps; ++step) {
        const testing::RandomBatch sequences(shape, batch, static_cast<std::uint64_t>(step));
        const Drops drops{dropout, 1, static_cast<std::uint64_t>(step) * places_of_model(shape.layers)};
        run.losses.push_back(model.train(sequences.view(), drops));
        run.kept = std::max(run.kept, model.kept().peak());
        EXPECT_EQ(model.kept().now(), 0) << "something is kept beyond the step";
        optimizer.step(model.weights(), model.gradients(), step, steps, model.touched());
    }
    run.weights = model.weights();
    return run;
}

constexpr ModelShape small{61, 45, 3, 4, 2, 32, false, 3, 40};

template <class S>
void expect_recomputing_changes_no_bit(Attention<S>& attention)
{
    for (const double dropout : {0.0, 0.1}) {
        const Trained none = train(attention, small, Recompute::none, dropout, 4, 3);
        const Trained selective = train(attention, small, Recompute::attention, dropout, 4, 3);
        const Trained layer = train(attention, small, Recompute::layer, dropout, 4, 3);
        EXPECT_LT(none.losses.back(), none.losses.front());
        EXPECT_EQ(none, selective) << dropout;
        EXPECT_EQ(none, layer) << dropout;
        EXPECT_LT(selective.kept, none.kept);
        EXPECT_LT(layer.kept, selective.kept);
    }
}

TEST(GptModel, RecomputingChangesNoBit)
{
    FlashAttention<float> flash(on_host());
    expect_recomputing_changes_no_bit(flash);
    FlashAttention<bfloat16> flash16(on_host());
    expect_recomputing_changes_no_bit(flash16);
    StandardAttention<float> standard;
    expect_recomputing_changes_no_bit(standard);
    StandardAttention<bfloat16> standard16;
    expect_recomputing_changes_no_bit(standard16);
}

/// The gradients of one batch, by two implementations; the same dropout.
template <class S>
double largest_difference(Attention<S>& a, Attention<S>& b, double dropout)
{
    Model<S> first(small, 1, a, Recompute::none);
    Model<S> second(small, 1, b, Recompute::none);
    testing::shake(first, 3, 0.1);
    testing::shake(second, 3, 0.1);
    const testing::RandomBatch batch(small, 3, 9);
    const double loss = first.train(batch.view(), {dropout, 4, 0});
    EXPECT_NEAR(second.train(batch.view(), {dropout, 4, 0}) / loss, 1, sizeof(S) == 2 ? 1e-3 : 1e-6);
    double most = 0;
    double difference = 0;
    for (std::size_t i = 0; i < first.gradients().size(); ++i) {
        const auto x = static_cast<double>(first.gradients()[i]);
        most = std::max(most, std::abs(x));
        difference = std::max(difference, std::abs(x - static_cast<double>(second.gradients()[i])));
    }
    return difference / most;
}

TEST(GptModel, FlashAndStandardAttentionAgree)
{
    for (const double dropout : {0.0, 0.2}) {
        FlashAttention<float> flash(on_host());
        StandardAttention<float> standard;
        EXPECT_LT(largest_difference(flash, standard, dropout), 1e-5) << dropout;
        FlashAttention<bfloat16> flash16(on_host());
        StandardAttention<bfloat16> standard16;
        EXPECT_LT(largest_difference(flash16, standard16, dropout), 2e-2) << dropout;
    }
}

TEST(GptModel, ThreadsChangeNoBit)
{
    const int before = omp_get_max_threads();
    FlashAttention<float> attention(on_host());
    omp_set_num_threads(1);
    const Trained one = train(attention, small, Recompute::none, 0.1, 3, 5);
    omp_set_num_threads(3);
    const Trained three = train(attention, small, Recompute::none, 0.1, 3, 5);
    omp_set_num_threads(before);
    EXPECT_EQ(one, three);
}

/// In 16 bits with dropout, the layers keep what `flashomp plan --layers` says, for its four combinations.
TEST(GptModel, LayersKeepWhatThePlanPredicts)
{
    const ModelShape shape{32, 128, 6, 4, 4, 64};
    const nlohmann::json prediction = predicted(shape, 2);
    StandardAttention<bfloat16> standard;
    FlashAttention<bfloat16> flash(on_host());
    const auto expect = [&](const char* way, Attention<bfloat16>& attention, Recompute recompute) {
        const auto expected = prediction.at(way).at("peak_bytes").get<double>();
        const Trained run = train(attention, shape, recompute, 0.1, 1, 2);
        EXPECT_NEAR(static_cast<double>(run.kept) / expected, 1, 0.05) << way;
    };
    expect("none", standard, Recompute::none);
    expect("flash", flash, Recompute::none);
    expect("checkpoint", standard, Recompute::layer);
    expect("both", flash, Recompute::layer);
}

/// A token at a time by the cache, and all at once: the same scores.
TEST(GptModel, CacheGivesTheScoresOfTheWholeSequence)
{
    FlashAttention<float> attention(on_host());
    Model<float> model(small, 1, attention, Recompute::none);
    testing::shake(model, 3, 0.1);
    const testing::RandomBatch batch(small, 1, 2);
    const std::vector<double> losses = model.evaluate(batch.view());
    Generator<float> generator(model, on_host());
    std::size_t fed = 0;
    for (const std::size_t count : {4U, 1U, 1U, 17U, 1U, 21U}) { // in all the length of the sequence
        const Matrix<float> scores = generator.feed(std::span(batch.tokens).subspan(fed, count));
        fed += count;
        const Eigen::ArrayXd z = scores.row(0).transpose().cast<double>();
        const double expected = std::log((z - z.maxCoeff()).exp().sum()) + z.maxCoeff() - z(batch.targets[fed - 1]);
        EXPECT_NEAR(losses[fed - 1], expected, 1e-4) << fed;
    }
    EXPECT_EQ(generator.room(), 0);
}

TEST(GptModel, SamplingGoesOnWherePositionsEnd)
{
    FlashAttention<bfloat16> attention(on_host());
    Model<bfloat16> model(small, 1, attention, Recompute::none);
    const std::vector<Tokens::Id> prompt = {1, 2, 3};
    const auto text = sample(model, on_host(), prompt, 3 * small.seqlen, 1.0, 8);
    EXPECT_EQ(text.size(), static_cast<std::size_t>(3 * small.seqlen));
    EXPECT_EQ(text, sample(model, on_host(), prompt, 3 * small.seqlen, 1.0, 8));
    EXPECT_NE(text, sample(model, on_host(), prompt, 3 * small.seqlen, 1.0, 9));
}

/// A prompt is read as far as the positions reach: the most likely token after all of it, and not after its last half.
TEST(GptModel, APromptIsReadAsFarAsItFits)
{
    FlashAttention<float> attention(on_host());
    Model<float> model(small, 1, attention, Recompute::none);
    testing::shake(model, 3, 0.3);
    const auto most_likely = [&](std::span<const std::int32_t> tokens) {
        Generator<float> generator(model, on_host());
        Index token = 0;
        generator.feed(tokens).row(0).maxCoeff(&token);
        return static_cast<Tokens::Id>(token);
    };
    const auto whole = static_cast<std::size_t>(small.seqlen);
    int differ = 0;
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        const testing::RandomBatch batch(small, 2, seed);
        const auto all = std::span(batch.tokens);
        for (const std::size_t length : {whole / 2 + 3, whole, whole + 7}) { // of the last one the end is read
            const std::vector<Tokens::Id> prompt(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(length));
            const std::size_t first = length > whole ? length - whole : 0;
            const Tokens::Id expected = most_likely(all.subspan(first, length - first));
            EXPECT_EQ(sample(model, on_host(), prompt, 1, 0.01, 8).front(), expected) << length;
            differ += expected != most_likely(all.subspan(length - whole / 2, whole / 2)) ? 1 : 0;
        }
    }
    EXPECT_GT(differ, 0);
}

TEST(GptMachine, ThePeakBeginsAnewWhenAsked)
{
    constexpr std::size_t size = std::size_t{96} << 20;
    void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    std::memset(memory, 1, size);
    const std::int64_t with = peak_resident_bytes();
    ::munmap(memory, size);
    EXPECT_GT(peak_resident_bytes(), with - static_cast<std::int64_t>(size) / 8); // the system counts in lots of pages
    if (restart_peak_resident()) { // not every system allows it; then a record says so
        EXPECT_LT(peak_resident_bytes(), with - static_cast<std::int64_t>(size) / 2);
    }
}

/// Warm-up, the highest rate, half of the way and the end.
TEST(GptOptimizer, LearningRate)
{
    OptimizerOptions options;
    options.learning_rate = 1;
    options.last_rate = 0.1;
    options.warmup = 10;
    EXPECT_DOUBLE_EQ(learning_rate(options, 0, 110), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(options, 9, 110), 1);
    EXPECT_DOUBLE_EQ(learning_rate(options, 10, 110), 1);
    EXPECT_NEAR(learning_rate(options, 60, 110), 0.55, 1e-12);
    EXPECT_NEAR(learning_rate(options, 110, 110), 0.1, 1e-12);
}

/// The first step of AdamW goes by the rate against the sign of the gradient, whatever its size; with decay a matrix
/// shrinks, too.
TEST(GptOptimizer, FirstStep)
{
    const Layout layout({2, 2, 1, 1, 1, 2});
    OptimizerOptions options;
    options.warmup = 0;
    options.learning_rate = 0.5;
    options.weight_decay = 0.25;
    options.clip = 0;
    AdamW<double> optimizer(options, layout);
    Numbers<double> weights(static_cast<std::size_t>(layout.size()), 1.0);
    Numbers<double> gradients(weights.size(), -3.0);
    const double norm = optimizer.step(weights, gradients, 0, 1000);
    EXPECT_NEAR(norm, 3 * std::sqrt(static_cast<double>(layout.size())), 1e-9);
    EXPECT_NEAR(layout.tokens(weights)(1, 1), 1 + 0.5 - 0.5 * 0.25, 1e-6); // a matrix
    EXPECT_NEAR(layout.positions(weights)(1, 1), 1 + 0.5, 1e-6);           // no decay
}

/// Rows of n-grams that no token looked up have no gradient, whatever the batch before has left there.
TEST(GptModel, GradientsOfNGramsAreOfTheLastBatchAlone)
{
    StandardAttention<float> attention;
    const testing::RandomBatch before(small, 2, 1);
    const testing::RandomBatch batch(small, 1, 2);
    Model<float> used(small, 1, attention, Recompute::none);
    Model<float> fresh(small, 1, attention, Recompute::none);
    used.train(before.view(), {});
    used.train(batch.view(), {});
    fresh.train(batch.view(), {});
    EXPECT_EQ(used.gradients(), fresh.gradients());
    const std::vector<Index> touched(used.touched().begin(), used.touched().end());
    const Rows<float> rows = used.layout().ngrams(used.gradients());
    EXPECT_LT(touched.size(), static_cast<std::size_t>(rows.rows()));
    for (Index row = 0; row < rows.rows(); ++row) {
        EXPECT_EQ(rows.row(row).isZero(0), !std::binary_search(touched.begin(), touched.end(), row)) << row;
    }
}

/// A step leaves the others as they are, moments too; the norm is of those that it moves, too.
TEST(GptOptimizer, MovesTheNGramsThatWereLookedUp)
{
    const Layout layout({2, 2, 1, 1, 1, 2, false, 2, 4});
    OptimizerOptions options;
    options.warmup = 0;
    options.learning_rate = 0.5;
    options.clip = 0;
    AdamW<double> optimizer(options, layout);
    Numbers<double> weights(static_cast<std::size_t>(layout.size()), 1.0);
    Numbers<double> gradients(weights.size(), 0.0);
    for (const Index row : {1, 3}) {
        layout.ngrams(gradients).row(row).setConstant(-3);
    }
    const std::vector<Index> touched = {1, 3};
    EXPECT_NEAR(optimizer.step(weights, gradients, 0, 1000, touched), 6, 1e-12);
    gradients.assign(gradients.size(), 0.0);
    const std::vector<Index> none;
    optimizer.step(weights, gradients, 1, 1000, none);
    for (Index row = 0; row < 4; ++row) {
        const bool is_moved = row % 2 == 1;
        EXPECT_NEAR(layout.ngrams(weights)(row, 1), is_moved ? 1.5 : 1.0, 1e-6) << row; // no decay
        EXPECT_EQ(layout.ngrams(optimizer.m())(row, 1) != 0, is_moved) << row;
    }
}

/// The rows that a sequence looks up depend on its own tokens alone, and not on how they are fed.
TEST(GptNGrams, TheRowsOfASequenceAreItsOwn)
{
    const testing::RandomBatch batch(small, 2, 3);
    using Rows = std::vector<std::pair<Index, Index>>;
    const auto rows_of = [&](std::span<const std::int32_t> tokens, Index seqlen, std::span<const std::int32_t> before,
                             Index first) {
        Rows rows;
        for_each_ngram(small, tokens, seqlen, before,
                       [&](Index token, Index row) { rows.emplace_back(first + token, row); });
        return rows;
    };
    const std::span<const std::int32_t> all(batch.tokens);
    const auto length = static_cast<std::size_t>(small.seqlen);
    const Rows both = rows_of(all, small.seqlen, {}, 0);
    Rows one_by_one;
    for (const std::size_t start : {std::size_t{0}, length}) {
        for (std::size_t i = start; i < start + length; ++i) {
            const Rows rows = rows_of(all.subspan(i, 1), 1, all.subspan(start, i - start), static_cast<Index>(i));
            one_by_one.insert(one_by_one.end(), rows.begin(), rows.end());
        }
    }
    EXPECT_EQ(both, one_by_one);
    EXPECT_EQ(both.size(), 2 * (2 * length - 3)); // the first token has none, the second a pair
}

TEST(GptOptimizer, ClipsTheNorm)
{
    const Layout layout({2, 2, 1, 1, 1, 2});
    OptimizerOptions options;
    options.clip = 2;
    AdamW<double> optimizer(options, layout);
    Numbers<double> weights(static_cast<std::size_t>(layout.size()));
    Numbers<double> gradients(weights.size(), 3.0);
    optimizer.step(weights, gradients, 0, 10);
    double squares = 0;
    for (const double g : gradients) {
        squares += g * g;
    }
    EXPECT_NEAR(std::sqrt(squares), 2, 1e-12);
}

} // namespace
} // namespace gpt
