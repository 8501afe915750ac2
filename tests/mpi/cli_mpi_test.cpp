// flashomp-mpi, started by mpirun as a user would, beside flashomp.
#include "../cli/cli_support.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli_test {
namespace {

using Json = nlohmann::json;

class CliMpi : public CliTest {
protected:
    /// A part of mpirun's command line: so many ranks of the program with these arguments.
    static std::string ranks_of(int ranks, const Arguments& arguments)
    {
        return fmt::format("{} {} {} '{}'", FLASHOMP_NUMPROC_FLAG, ranks, FLASHOMP_CLI_MPI_PATH,
                           fmt::join(arguments, "' '"));
    }
    [[nodiscard]] Outcome run_ranks(const std::string& parts) const
    {
        return run_shell("OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 FLASHOMP_TUNING=off timeout 60 " +
                         std::string(FLASHOMP_MPIEXEC) + " " + parts);
    }
    [[nodiscard]] Outcome run_mpi(int ranks, const Arguments& arguments) const
    {
        return run_ranks(ranks_of(ranks, arguments));
    }
    [[nodiscard]] Json json_of(int ranks, const Arguments& arguments) const
    {
        const Outcome outcome = run_mpi(ranks, arguments + Arguments{"--json"});
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        return outcome.status == 0 ? Json::parse(outcome.out) : Json();
    }
    /// Status 2 and one sentence of the program's, with the output folder as it was; mpirun adds its own.
    void expect_all_refused(const std::string& parts, const std::string& words) const
    {
        SCOPED_TRACE(parts);
        const auto before = snapshot(out());
        const auto start = std::chrono::steady_clock::now();
        const Outcome outcome = run_ranks(parts);
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
        EXPECT_EQ(outcome.status, 2) << outcome.err;
        EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
        std::size_t sentences = 0;
        for (std::size_t at = 0; (at = outcome.err.find("flashomp: ", at)) != std::string::npos; ++at) {
            ++sentences;
        }
        EXPECT_EQ(sentences, 1U) << outcome.err;
        EXPECT_EQ(snapshot(out()), before);
    }
    void expect_equal_files(const fs::path& shared, const fs::path& alone, const std::vector<std::string>& names,
                            double bound) const
    {
        for (const std::string& name : names) {
            EXPECT_LE(difference(shared / (name + ".npy"), alone / (name + ".npy")), bound) << name;
        }
    }
};

TEST_F(CliMpi, ForwardAndBackwardWriteWhatOneProcessWrites)
{
    // One query head a rank has another key head than the next; rows do not divide.
    const Arguments masks{"--causal", "bottom-right", "--softcap", "5"};
    const Arguments one = small_problem("backward") + masks;
    succeed(one + Arguments{"--out", path("one"), "--device", "host"});
    const Json json = json_of(3, one + Arguments{"--out", path("three"), "--sharding", "zigzag", "--scheme", "ring"});
    expect_equal_files(path("three"), path("one"), {"o", "lse", "dq", "dk", "dv"}, 2e-6);
    const Json& shared = json["passes"]["backward"]["ranks"];
    EXPECT_EQ(shared["ranks"], 3);
    EXPECT_EQ(shared["layout"], "zigzag");
    EXPECT_EQ(shared["scheme"], "ring");
    EXPECT_EQ(shared["why"], "the caller chose it");
    EXPECT_GT(shared["bytes_sent"], 0);
    EXPECT_TRUE(shared.contains("seconds_waiting_most"));

    const Outcome forward = run_mpi(2, small_problem("forward") + masks + Arguments{"--out", path("two")});
    ASSERT_EQ(forward.status, 0) << forward.err;
    EXPECT_NE(forward.out.find("was shared by 2 ranks, contiguous shards, scheme "), std::string::npos) << forward.out;
    EXPECT_NE(forward.out.find("the model's fastest"), std::string::npos) << forward.out;
    expect_equal_files(path("two"), path("one"), {"o", "lse"}, 2e-6);
}

TEST_F(CliMpi, BackwardTakesSavedResultsAndEveryOptionOfACase)
{
    const Arguments options{"--scale", "0.3", "--softcap", "8", "--window", "40,-1"};
    const Arguments one = case_files("backward", "bias_full") + options;
    succeed(one + Arguments{"--out", path("one"), "--device", "host"});
    const Arguments saved{"--o", path("one") / "o.npy", "--lse", path("one") / "lse.npy", "--out", path("two")};
    const Json json = json_of(2, one + saved + Arguments{"--scheme", "ulysses"});
    EXPECT_FALSE(json["passes"].contains("forward"));
    EXPECT_EQ(json["passes"]["backward"]["ranks"]["heads_ranks"], 2);
    expect_equal_files(path("two"), path("one"), {"dq", "dk", "dv", "dbias"}, 3e-6);
    EXPECT_FALSE(fs::exists(path("two") / "o.npy"));
}

TEST_F(CliMpi, PlansForItsOwnRanksAndScheme)
{
    const Arguments asked{"plan",       "--shape", "b1_h4_n512_d16_causal", "--device", "host", "--interconnect", "1",
                          "--sharding", "zigzag"};
    const Json all = json_of(2, asked)["sharding"]["forward"];
    ASSERT_EQ(all.size(), 3U);
    for (const Json& call : all) {
        EXPECT_EQ(call["ranks"], 2);
    }
    const Json ring = json_of(2, asked + Arguments{"--scheme", "ring", "--ranks", "4,8"})["sharding"]["forward"];
    ASSERT_EQ(ring.size(), 2U);
    EXPECT_EQ(ring[1]["scheme"], "ring, zigzag");
    EXPECT_EQ(ring[1]["ranks"], 8);
    expect_all_refused(ranks_of(2, {"plan", "--shape", "b1_h4_n512_d16"}), "--interconnect was not given");
    expect_all_refused(ranks_of(2, asked + Arguments{"--scheme", "grid", "--heads-ranks", "3"}),
                       "--heads-ranks was 3 with 2 ranks");
}

TEST_F(CliMpi, BenchSendsWhatPlanPredictsAndChecksEveryRow)
{
    const Arguments quick{"bench", "--repetitions", "1", "--min-time", "0", "--device", "host"};
    // Lengths that do not divide, a window that sees more to the right, one key head, packed sequences.
    const Arguments shapes{"--shape", "b1_h4kv1_n50x71_d8v12_window3x20", "--shape", "b3_h2_n40_d8_causal_varlen"};
    const Json json = json_of(4, quick + shapes + Arguments{"--out", path("rows.json")});
    EXPECT_EQ(Json::parse(contents(path("rows.json"))), json);
    EXPECT_EQ(json["context"]["ranks"], 4);
    EXPECT_FALSE(json["context"]["mpi"].get<std::string>().empty());
    EXPECT_FALSE(json["context"]["flashomp_commit"].get<std::string>().empty());
    int alone = 0, heads = 0;
    for (const Json& row : json["benchmarks"]) {
        SCOPED_TRACE(row.dump());
        ASSERT_FALSE(row.contains("error_message"));
        EXPECT_TRUE(row["compared_after_timing"].get<bool>());
        EXPECT_GT(row["real_time"].get<double>(), 0);
        EXPECT_EQ(row["bytes_sent"].get<double>(), row["planned_bytes"].get<double>());
        if (row["ranks"] == 1) {
            EXPECT_EQ(row["share_of_ideal"], 1.0);
            ++alone;
            continue;
        }
        heads += row["heads_ranks"] > 1 ? 1 : 0;
        EXPECT_LE(row["devices"].get<double>(), 4);
        EXPECT_GT(row["planned_time"].get<double>(), 0);
        EXPECT_TRUE(row.contains("difference_lse"));
        EXPECT_EQ(row.contains("difference_dk"), row["direction"] == "backward");
        EXPECT_LE(row["computing_time"], row["most_time"]);
    }
    EXPECT_EQ(alone, 4);
    // Contiguous and zigzag ring, gather and grid; Ulysses where there are as many heads as ranks.
    EXPECT_EQ(json["benchmarks"].size(), 4U + 2 * (7 + 6));
    EXPECT_EQ(heads, 2 * (3 + 2));

    const Outcome text = run_mpi(2, quick + Arguments{"--shape", "b1_h2_n64_d8", "--dtype", "bfloat16", "--direction",
                                                      "backward", "--scheme", "all-gather", "--sharding", "zigzag"});
    EXPECT_EQ(text.status, 0) << text.err;
    for (const char* const words : {"2 ranks in bfloat16", "one rank", "zigzag all_gather", "of ideal", "overlap"}) {
        EXPECT_NE(text.out.find(words), std::string::npos) << words << " in\n" << text.out;
    }
}

TEST_F(CliMpi, WhatIsWrongOnOneRankEndsAll)
{
    const Arguments good = small_problem("forward");
    const Arguments to{"--out", out()};
    const auto with = [&](const Arguments& more) { return ranks_of(2, good + to + more); };
    expect_all_refused(with({"--scheme", "star"}), "--scheme was 'star'; allowed is one of auto, ring");
    expect_all_refused(with({"--heads-ranks", "2"}), "heads_ranks was 2 with scheme automatic");
    expect_all_refused(ranks_of(2, {"bench", "--shape", "b1_h1_n64_d8_page8"}), "allowed are shapes without _blocks");
    write_text(path("file"), "no folder");
    expect_all_refused(ranks_of(2, good + Arguments{"--out", path("file") / "below"}), "is not a folder");
    // Two parts: the ranks are told different things.
    Arguments missing = good + to;
    *std::find(missing.begin(), missing.end(), tensor("k", {1, 7, 2, 8})) = path("missing.npy");
    expect_all_refused(ranks_of(1, good + to) + " : " + ranks_of(1, missing), "rank 1: ");
    // Only rank 0 reaches the first step that both take.
    expect_all_refused(ranks_of(1, good + to) + " : " + ranks_of(1, {"forward", "--causal", "sideways"}),
                       "rank 1: --causal was 'sideways'");
}

} // namespace
} // namespace flashomp::cli_test
