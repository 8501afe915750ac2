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
        for (std::size_t at = 0; (at = outcome.err.find("flashomp-mpi: ", at)) != std::string::npos; ++at) {
            ++sentences;
        }
        EXPECT_EQ(sentences, 1U) << outcome.err;
        EXPECT_EQ(snapshot(out()), before);
    }
    void expect_refused_by(int ranks, const Arguments& arguments, const std::string& words) const
    {
        expect_all_refused(ranks_of(ranks, arguments), words);
    }
    /// What a command prints that succeeds.
    [[nodiscard]] std::string text_of(int ranks, const Arguments& arguments) const
    {
        Outcome outcome = run_mpi(ranks, arguments);
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        return std::move(outcome.out);
    }
    static void expect_words(const std::string& text, const std::vector<std::string>& words)
    {
        for (const std::string& some : words) {
            EXPECT_NE(text.find(some), std::string::npos) << some << " in\n" << text;
        }
    }
    static void expect_no_words(const std::string& text, const std::vector<std::string>& words)
    {
        for (const std::string& some : words) {
            EXPECT_EQ(text.find(some), std::string::npos) << some << " in\n" << text;
        }
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
    const Outcome alone = succeed(one + Arguments{"--out", path("one"), "--device", "host", "--json"});
    const Json json = json_of(3, one + Arguments{"--out", path("three"), "--sharding", "zigzag", "--scheme", "ring"});
    expect_equal_files(path("three"), path("one"), {"o", "lse", "dq", "dk", "dv"}, 2e-6);
    const Json& shared = json["passes"]["backward"]["ranks"];
    EXPECT_EQ(shared["ranks"], 3);
    EXPECT_EQ(shared["layout"], "zigzag");
    EXPECT_EQ(shared["scheme"], "ring");
    EXPECT_EQ(shared["why"], "the caller chose it");
    EXPECT_GT(shared["bytes_sent"], 0);
    EXPECT_TRUE(shared.contains("seconds_waiting_most"));
    for (const char* const pass : {"forward", "backward"}) { // of the whole call, not of a part
        EXPECT_EQ(json["passes"][pass]["standard_bytes"], Json::parse(alone.out)["passes"][pass]["standard_bytes"]);
    }

    const Arguments forward = small_problem("forward") + masks;
    const std::string text = text_of(2, forward + Arguments{"--out", path("two")});
    expect_words(text, {"was shared by 2 ranks, contiguous shards, scheme ", "the model's fastest"});
    expect_no_words(text, {"all_gather"}); // neither as the scheme nor among those that are slower
    expect_equal_files(path("two"), path("one"), {"o", "lse"}, 2e-6);
    const Arguments gather{"--scheme", "all-gather"};
    expect_words(text_of(2, forward + gather + Arguments{"--out", path("two")}), {"scheme all-gather (the caller"});
    const Json named = json_of(2, forward + gather + Arguments{"--out", path("two")});
    EXPECT_EQ(named["passes"]["forward"]["ranks"]["scheme"], "all_gather");
}

TEST_F(CliMpi, SaysWhereItRanWhereRank0HasNoRows)
{
    const Arguments rows{"forward",
                         "--q",
                         tensor("q", {1, 3, 4, 8}),
                         "--k",
                         tensor("k", {1, 7, 2, 8}),
                         "--v",
                         tensor("v", {1, 7, 2, 8})};
    const std::string text = text_of(4, rows + Arguments{"--scheme", "ring", "--out", out()});
    expect_words(text, {" of rank 1 (rank 0 had no rows), "});
    expect_no_words(text, {", \n"});
}

TEST_F(CliMpi, ABiasOfOneRowHasOneGradientWhereEveryRankHasOneRow)
{
    const Arguments one{"backward",
                        "--q",
                        tensor("q", {1, 3, 4, 8}),
                        "--k",
                        tensor("k", {1, 7, 2, 8}),
                        "--v",
                        tensor("v", {1, 7, 2, 8}),
                        "--do",
                        tensor("do", {1, 3, 4, 8}),
                        "--bias",
                        tensor("bias", {1, 4, 1, 7})};
    succeed(one + Arguments{"--out", path("one"), "--device", "host"});
    const auto share = [&](const Arguments& sharing, double bound) {
        const Outcome shared = run_mpi(3, one + sharing + Arguments{"--out", path("three")});
        ASSERT_EQ(shared.status, 0) << shared.err;
        expect_equal_files(path("three"), path("one"), {"dq", "dk", "dv", "dbias"}, bound);
    };
    share({"--scheme", "ring"}, 3e-6);
    share({"--scheme", "all-gather", "--sharding", "zigzag"}, 3e-6);
    share({"--scheme", "ulysses"}, 3e-6);
    share({"--scheme", "ring", "--dtype", "bfloat16"}, 0.1); // rounded inputs, and sums that lack no row
}

TEST_F(CliMpi, CheckSaysHowRanksSharedItsCasesAndSkipsThoseOfTooFewHeads)
{
    const Arguments check{"check", cases(), "--scheme", "ulysses", "--case", "mqa", "--case", "d80"};
    const Json json = json_of(2, check);
    EXPECT_EQ(json["cases"][0]["backward"]["ranks"]["heads_ranks"], 2);
    const Json more = json_of(3, check);
    std::size_t skipped = 0;
    for (const Json& item : more["cases"]) {
        if (item["result"] == "skip") {
            ++skipped;
            EXPECT_NE(item["reason"].get<std::string>().find("at most as many ranks as heads"), std::string::npos);
        }
    }
    EXPECT_GT(skipped, 0U);
    EXPECT_EQ(more["skipped"], skipped);
    EXPECT_EQ(more["passed"], 2 - skipped);

    const std::string text =
        text_of(3, {"check", cases(), "--scheme", "ring", "--sharding", "zigzag", "--case", "d80"});
    expect_words(text, {"1 passed, 0 failed, 0 skipped; over 3 ranks, zigzag, scheme ring, ran on "});
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
    expect_refused_by(2, {"plan", "--shape", "b1_h4_n512_d16"}, "--interconnect was not given for 2 ranks");
    expect_refused_by(2, {"plan", "--shape", "zzz"}, "shape was 'zzz'");
    expect_refused_by(2, asked + Arguments{"--scheme", "grid", "--heads-ranks", "3"},
                      "--heads-ranks was 3 with 2 ranks");
    expect_refused_by(2, asked + Arguments{"--heads-ranks", "2"}, "--heads-ranks was 2 with --scheme auto");
    expect_refused_by(1, {"plan", "--shape", "b1_h4_n512_d16", "--heads-ranks", "2"}, "--heads-ranks was 2 with");
    EXPECT_FALSE(json_of(1, {"plan", "--shape", "b1_h4_n512_d16", "--device", "host"}).contains("sharding"));
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

    const Arguments small = quick + Arguments{"--shape", "b1_h2_n64_d8", "--direction", "backward"};
    const Arguments gather{"--dtype", "bfloat16", "--scheme", "all-gather", "--sharding", "zigzag"};
    expect_words(text_of(2, small + gather), {"2 ranks in bfloat16", "one rank", "zigzag all-gather", "of ideal",
                                              "overlap", "planned sent", "planned time"});
    const std::string heads_alone = text_of(2, small + Arguments{"--scheme", "ulysses"});
    expect_words(heads_alone, {" ulysses "});
    expect_no_words(heads_alone, {"contiguous"});
}

TEST_F(CliMpi, BenchRefusesBeforeItRunsWhatNoCallCanHave)
{
    const Arguments bench{"bench", "--shape", "b1_h2_n64_d16"};
    expect_refused_by(2, bench + Arguments{"--scheme", "grid"}, "--scheme was grid without --heads-ranks");
    expect_refused_by(2, bench + Arguments{"--scheme", "ring", "--heads-ranks", "2"},
                      "--heads-ranks was 2 with --scheme ring");
    expect_refused_by(2, bench + Arguments{"--sharding", "zigzag"}, "--sharding was given without --scheme");
    expect_refused_by(3, bench + Arguments{"--scheme", "ulysses"}, "2 heads of b1_h2_n64_d16 over 3 ranks");
    expect_refused_by(2, {"bench", "mla"}, "SUITE was 'mla'; allowed over ranks is one of fa2");
    expect_refused_by(2, {"bench", "--shape", "b1_h1_n64_d8_page8"}, "allowed are shapes without _blocks");
}

TEST_F(CliMpi, HelpIsAboutRanks)
{
    for (const char* const command : {"check", "forward", "backward", "plan", "bench"}) {
        const std::string help = text_of(1, {command, "--help"});
        expect_words(help, {fmt::format("  mpirun -n 4 flashomp-mpi {} ", command), "--heads-ranks"});
        expect_no_words(help, {fmt::format("  flashomp {}", command)});
    }
    expect_words(text_of(1, {"forward", "--help"}), {"are for one rank alone.", "for forward on one rank alone:"});
    const std::string bench = text_of(1, {"bench", "--help"});
    expect_words(bench, {"spread: ", "nearest limit ", "b1_h8_n4096_d64_causal and b1_h8_n4096_d64."});
    expect_no_words(bench, {"mla"});
}

TEST_F(CliMpi, WhatIsWrongOnOneRankEndsAll)
{
    const Arguments good = small_problem("forward");
    const Arguments to{"--out", out()};
    const auto with = [&](const Arguments& more) { return ranks_of(2, good + to + more); };
    expect_all_refused(with({"--scheme", "star"}), "--scheme was 'star'; allowed is one of auto, ring");
    expect_all_refused(with({"--heads-ranks", "2"}), "--heads-ranks was 2 with --scheme auto");
    expect_all_refused(with({"--scheme", "grid"}), "--scheme was grid without --heads-ranks");
    write_text(path("file"), "no folder");
    expect_all_refused(ranks_of(2, good + Arguments{"--out", path("file") / "below"}), "is not a folder");
    // Two parts: the ranks are told different things.
    Arguments missing = good + to;
    *std::find(missing.begin(), missing.end(), tensor("k", {1, 7, 2, 8})) = path("missing.npy");
    expect_all_refused(ranks_of(1, good + to) + " : " + ranks_of(1, missing), "rank 1: ");
    expect_all_refused(ranks_of(1, good + to) + " : " + ranks_of(1, {"forward", "--causal", "sideways"}),
                       "rank 1: --causal was 'sideways'");
    // Only rank 0 reaches the step that both take next.
    expect_all_refused(ranks_of(1, good + to) + " : " + ranks_of(1, good + to + Arguments{"--softcap", "-1"}),
                       "rank 1: softcap was -1");
}

TEST_F(CliMpi, RanksAreToldTheSame)
{
    const Arguments good = small_problem("forward") + Arguments{"--out", out()};
    const auto told = [&](const Arguments& first, const Arguments& second) {
        return ranks_of(1, first) + " : " + ranks_of(1, second);
    };
    expect_all_refused(told(good, {"--help"}), "rank 1 was told `--help`, but rank 0 `forward`");
    expect_all_refused(told({"--version"}, good), "rank 1 was told `forward`, but rank 0 `--version`");
    expect_all_refused(told(good, {"plan", "--shape", "b1_h1_n8_d8"}), "rank 1 was told `plan --shape b1_h1_n8_d8`");
    const Arguments bench{"bench", "--shape", "b1_h1_n8_d8"};
    expect_all_refused(told(bench, bench + Arguments{"--list"}), "rank 1 was told `bench --shape b1_h1_n8_d8 --list`");
    // Where it runs and what it is told to print are each rank's own.
    const Outcome own = run_ranks(told(good + Arguments{"--threads", "1"}, good + Arguments{"--json"}));
    EXPECT_EQ(own.status, 0) << own.err;
}

} // namespace
} // namespace flashomp::cli_test
