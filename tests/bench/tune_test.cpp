// What `flashomp tune` tries, and what it makes of that.
#include "candidates.hpp"
#include "tune.hpp"

#include "host_isa.hpp"
#include "place.hpp"

#include <algorithm>

#include <gtest/gtest.h>

namespace flashomp::bench {
namespace {

using tuning::Choice;

Options on_host()
{
    Options options;
    options.device.kind = Device::Kind::host;
    options.threads = 2;
    return options;
}

TEST(TuneCandidates, OnTheHostAreBlocksThatFitACoreAndLeaveThreadsTheirRows)
{
    const Hardware hardware = choose_place(on_host()).hardware;
    for (const bool backward : {false, true}) {
        const Problem problem =
            cost::problem_of(cost::parse_shape("b1_h4_n1024_d64"), DType::bfloat16, backward, on_host());
        const std::vector<Choice> all = candidates(problem, hardware);
        ASSERT_GT(all.size(), 2U);
        EXPECT_EQ(all.front(), Choice{});
        for (const Choice& choice : all) {
            EXPECT_EQ(choice.machine, Machine::automatic);
            EXPECT_EQ(choice.tiling.resident_rows % hardware.isa->lanes, 0);
            EXPECT_TRUE(backward || choice.tiling.resident_rows == 0);
            EXPECT_EQ(std::count(all.begin(), all.end(), choice), 1);
            Problem chosen = problem;
            chosen.options.tiling = choice.tiling;
            for (const PassPlan& pass : plan(chosen, hardware).passes) {
                EXPECT_TRUE(hardware.core_cache_bytes <= 0 || 4 * pass.launch.crew_floats <= hardware.core_cache_bytes);
            }
        }
    }
}

TEST(TuneCandidates, OnAGpuAreMachinesTeamsAndPlainBlocks)
{
    Hardware hardware = choose_place(on_host()).hardware;
    hardware.is_device = true;
    hardware.device = 0;
    hardware.gpu.multiprocessors = 132;
    const Problem problem = cost::problem_of(cost::parse_shape("b1_h4_n1024_d256"), DType::float32, false, {});
    const auto has = [](const std::vector<Choice>& all, const Choice& choice) {
        return std::find(all.begin(), all.end(), choice) != all.end();
    };
    const std::vector<Choice> openmp = candidates(problem, hardware);
    EXPECT_EQ(openmp.front(), Choice{});
    for (const Machine machine : {Machine::hopper, Machine::tensor, Machine::plain}) {
        EXPECT_TRUE(has(openmp, {machine, {}}));
    }
    EXPECT_TRUE(has(openmp, {Machine::automatic, {.teams = 264}}));
    EXPECT_TRUE(has(openmp, {Machine::plain, {.global_memory = true}}));

    hardware.backend = Backend::cuda;
    const std::vector<Choice> cuda = candidates(problem, hardware); // float32 is the tensor machine's there
    EXPECT_TRUE(has(cuda, {Machine::tensor, {}}));
    EXPECT_FALSE(has(cuda, {Machine::hopper, {}})); // what automatic is
    for (const Choice& choice : cuda) {
        EXPECT_EQ(choice.tiling, Tiling{});
    }
}

TEST(Tune, EveryCandidateIsCheckedAndTheBestIsNamed)
{
    TuneSettings settings;
    settings.options = on_host();
    settings.timing.least_seconds = 0;
    settings.timing.repetitions = 3;
    for (const char* const name : {"b1_h2_n200_d32_causal", "b2_h2kv1_n70_d16_varlen"}) {
        for (const bool backward : {false, true}) {
            const Tuned tuned = tune(cost::parse_shape(name), backward, settings, [](const std::string&) {});
            EXPECT_EQ(tuned.failure, "");
            EXPECT_FALSE(tuned.has_wrong());
            for (const Trial& trial : tuned.trials) {
                EXPECT_EQ(trial.failure, "");
                EXPECT_EQ(trial.accuracy.has_gradients, backward);
                EXPECT_GT(trial.accuracy.bound_o, 0);
                EXPECT_GT(trial.seconds, 0);
            }
            ASSERT_TRUE(tuned.entry().has_value());
            EXPECT_EQ(tuned.entry()->shape, name);
            EXPECT_EQ(tuned.entry()->choice, tuned.trials[tuned.best].choice);
            EXPECT_LE(tuned.entry()->seconds, tuned.entry()->automatic_seconds);
        }
    }
}

TEST(Tune, NothingBeatsTheAutomaticPlanByMoreThanItsTime)
{
    TuneSettings settings;
    settings.options = on_host();
    settings.timing.least_seconds = 0;
    settings.least_gain = 1e9;
    const Tuned tuned = tune(cost::parse_shape("b1_h2_n200_d32"), false, settings, [](const std::string&) {});
    EXPECT_EQ(tuned.best, 0U);
    EXPECT_FALSE(tuned.again.has_value());
    EXPECT_EQ(tuned.entry()->choice, Choice{});
}

TEST(Tune, WithoutARightAutomaticPlanThereIsNoEntry)
{
    Tuned tuned;
    EXPECT_FALSE(tuned.entry().has_value());
    tuned.trials.resize(2);
    EXPECT_TRUE(tuned.entry().has_value());
    tuned.trials[1].is_wrong = true;
    EXPECT_TRUE(tuned.has_wrong());
    tuned.trials[0].failure = "errors";
    EXPECT_FALSE(tuned.entry().has_value());
}

TEST(Tune, WhatCannotRunSaysWhy)
{
    TuneSettings settings;
    settings.options = on_host();
    settings.dtype = DType::float8_e4m3;
    const Tuned tuned = tune(cost::parse_shape("b1_h1_n64_d16"), false, settings, [](const std::string&) {});
    EXPECT_NE(tuned.failure.find("float8_e4m3"), std::string::npos) << tuned.failure;
    EXPECT_FALSE(tuned.entry().has_value());
}

} // namespace
} // namespace flashomp::bench
