// FlashAttention-2's own correctness grid (pairs, head dims, masks, heads, dropout), by its tolerance rule.
//
// A normal run takes a fixed subset: every pair, head_dim, mask, modification and kind of heads, in three dtypes, on
// the best host machine and on the GPU if there is one. With FLASHOMP_FULL_GRID=1 this program runs the whole grid:
//
//   tools/full_grid                                                    # all of it, on all cores, with a table
//   FLASHOMP_FULL_GRID=1 GTEST_TOTAL_SHARDS=16 GTEST_SHARD_INDEX=3 OMP_NUM_THREADS=1 flashomp_test_grid  # one of 16
//   FLASHOMP_FULL_GRID=6 flashomp_test_grid                            # every sixth cell
//
// FLASHOMP_GRID_TABLE=FILE appends one line of JSON for each pair, head_dim, mask, kind of heads, dtype and target: the
// number of cells, and for every tensor the error and bound of the cell nearest to failing.
#include "grid.hpp"
#include "support/target.hpp"

#include "flashomp/version.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>

namespace flashomp::testing {
namespace {

/// The results of the cells that share a line of the table.
struct Line {
    int cells = 0;
    bool passed = true;
    std::string machine, ran_on;
    std::map<std::string, Comparison> worst; ///< by tensor

    void add(const Report& report, const std::vector<Comparison>& comparisons)
    {
        ++cells;
        machine = report.machine;
        ran_on = report.ran_on;
        for (const Comparison& c : comparisons) {
            passed = passed && c.passed();
            const auto [known, is_new] = worst.try_emplace(c.name, c);
            if (!is_new && c.error * known->second.bound > known->second.error * c.bound) {
                known->second = c;
            }
        }
    }

    [[nodiscard]] std::string json(const std::string& key) const
    {
        std::string tensors;
        for (const auto& [name, c] : worst) {
            // An infinity is no JSON number.
            tensors += fmt::format(R"(,"{}":[{:.3g},{:.3g}])", name, std::min(c.error, 1e300), c.bound);
        }
        return fmt::format(R"({{{},"machine":"{}","ran_on":"{}","cells":{}{},"pass":{}}})"
                           "\n",
                           key, machine, ran_on, cells, tensors, passed);
    }
};

/// The table of one test.
class Table {
public:
    Line& line(const GridTest& test, std::int64_t head_dim, const Cell& cell, DType dtype, const Target& target)
    {
        return lines_[fmt::format(R"("pair":[{},{}],"head_dim":{},"mask":"{}","heads":"{}","dtype":"{}","target":"{}")",
                                  test.pair.queries, test.pair.keys, head_dim, cell.mask_name(), cell.heads_name(),
                                  name_of(dtype), target.name)];
    }

    ~Table()
    {
        const char* path = std::getenv("FLASHOMP_GRID_TABLE");
        if (path == nullptr) {
            return;
        }
        std::string text;
        for (const auto& [key, line] : lines_) {
            text += line.json(key);
        }
        std::ofstream(path, std::ios::app) << text;
    }

private:
    std::map<std::string, Line> lines_;
};

class Grid : public TargetTest, public ::testing::WithParamInterface<GridTest> {
protected:
    /// One cell, in every dtype of the test: with common inputs they share the oracle's answer.
    void check(std::int64_t head_dim, const Cell& cell, Table& table)
    {
        const GridTest& test = GetParam();
        const auto make = [&](DType dtype) {
            const Inputs inputs = test.dtypes().size() > 1 ? Inputs::common : Inputs::own;
            AttentionCase attention = cell.make(test.pair, head_dim, dtype, test.seed(head_dim, cell), inputs);
            attention.poison_outputs();
            return attention;
        };
        Expected expected;
        for (const DType dtype : test.dtypes()) {
            AttentionCase attention = make(dtype);
            const Problem problem = attention.problem();
            reference::Evaluation naive = reference::evaluate(problem, reference::rounding_of(dtype));
            if (expected.exact.o.empty()) {
                reference::Evaluation exact = reference::evaluate(problem);
                expected.exact = std::move(exact.outputs);
                expected.gradients = std::move(exact.gradients);
                expected.naive_lse = dtype == DType::float32
                                         ? naive.outputs.lse
                                         : reference::forward(problem, reference::Rounding::float32).lse;
            }
            expected.few_keys = reference::rows_of_few_keys(problem);
            expected.naive = std::move(naive.outputs);
            expected.naive_gradients = std::move(naive.gradients);
            run(attention, head_dim, cell, expected, table);
            if (const std::optional<Cell> group = test.shared(cell); group && !HasFatalFailure()) {
                AttentionCase part = attention.first_group();
                run(part, head_dim, *group, attention.expected_of_first_group(expected), table);
            }
            if (HasFatalFailure()) {
                return;
            }
        }
    }

private:
    void run(AttentionCase& attention, std::int64_t head_dim, const Cell& cell, const Expected& expected, Table& table)
    {
        const GridTest& test = GetParam();
        const DType dtype = attention.dtype();
        for (const Target& target : fast_targets()) {
            SCOPED_TRACE(::testing::Message() << "head_dim " << head_dim << " " << cell.name() << " " << name_of(dtype)
                                              << " on " << target.name);
            use(target);
            if (HasFatalFailure()) {
                return;
            }
            const auto [first, second] = attention.run(on_target(attention.options));
            expect_ran_on_target(first, dtype);
            expect_ran_on_target(second, dtype);
            std::vector<Comparison> comparisons = attention.compare(expected);
            if (!cell.can_judge_dq(test.pair, dtype)) {
                std::erase_if(comparisons, [](const Comparison& c) { return std::string(c.name) == "dq"; });
            }
            expect_passed(comparisons);
            table.line(test, head_dim, cell, dtype, target).add(second, comparisons);
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Pairs, Grid, ::testing::ValuesIn(grid_tests()),
                         [](const auto& param) { return param.param.name(); });

TEST_P(Grid, WithinTheToleranceRule)
{
    Table table;
    for (std::size_t index = 0; index < grid_head_dims.size(); ++index) {
        const std::int64_t head_dim = grid_head_dims.at(index);
        if (!GetParam().is_quick() && GetParam().head_dim != head_dim) {
            continue;
        }
        for (const Cell& cell : GetParam().cells(static_cast<int>(index))) {
            check(head_dim, cell, table);
        }
    }
}

class GridRuns : public TargetTest, public ::testing::WithParamInterface<Target> {
protected:
    void SetUp() override { use(GetParam()); }

    /// Runs `rounds` times and expects the bits of the first run every time.
    void repeat(AttentionCase& attention, int rounds)
    {
        const Options options = on_target(attention.options);
        expect_ran_on_target(attention.run(options).second, attention.dtype());
        const Results first = attention.take_results();
        for (int round = 1; round < rounds && !HasFailure(); ++round) {
            static_cast<void>(attention.run(options));
            expect_same_bits(first, attention.take_results());
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, GridRuns,
                         ::testing::Values(Target{"host", Machine::host, false, ""},
                                           Target{"plain_on_device", Machine::plain, true, ""},
                                           Target{"device", Machine::automatic, true, ""}),
                         [](const auto& param) { return param.param.name; });

TEST_P(GridRuns, FiftyBackwardRunsGiveTheSameBits)
{
    const std::int64_t n = full_grid() == 1 ? 1024 : 256;
    for (const DType dtype : grid_dtypes) {
        AttentionCase attention({2, 4, 2, n, n - 1, 64, 64}, dtype, 801);
        attention.options.causal = Causal::bottom_right;
        attention.add_alibi();
        attention.add_bias({true, false, false, false}); // dbias sums over the batch
        attention.add_sink();
        attention.add_dropout(0.17);
        static_cast<void>(attention.run(on_target(attention.options)));
        const Results first = attention.take_results();
        attention.poison_outputs();
        static_cast<void>(forward(attention.forward_args(), on_target(attention.options)));
        for (int round = 0; round < 50 && !HasFailure(); ++round) {
            const BackwardArgs args = attention.backward_args();
            expect_ran_on_target(backward(args, on_target(attention.options)), dtype);
            EXPECT_TRUE(same_bits(attention.dq, first.dq)) << "dq";
            EXPECT_TRUE(same_bits(attention.dk, first.dk)) << "dk";
            EXPECT_TRUE(same_bits(attention.dv, first.dv)) << "dv";
            EXPECT_TRUE(same_bits(attention.dbias, first.dbias)) << "dbias";
            EXPECT_TRUE(same_bits(attention.dsink, first.dsink)) << "dsink";
        }
    }
}

TEST_P(GridRuns, TwoHundredAndFiftyRepetitionsAtBatch60ShowNoRace)
{
    std::vector<Pair> pairs{{37, 53}};
    if (full_grid() == 1) {
        pairs = {{1, 239}, {3, 799}, {127, 513}, {113, 203}, {128, 217}, {108, 256}, {256, 512}, {1023, 1024}};
    }
    for (const Pair& pair : pairs) {
        SCOPED_TRACE(::testing::Message() << pair.queries << "x" << pair.keys);
        const int rounds = pair.scores() < 200000 ? 250 : 50;
        AttentionCase attention({60, 2, 1, pair.queries, pair.keys, 32, 32}, DType::bfloat16, 802);
        attention.options.causal = Causal::bottom_right;
        attention.add_dropout(0.17);
        repeat(attention, rounds);
        static_cast<void>(attention.run(on_target(attention.options)));
        if (pair.scores() < 30000) { // the oracle keeps N x N matrices
            attention.expect_close();
        }
    }
}

/// On a Hopper GPU a crew of these passes is two teams that send each other parts of their tiles.
TEST_P(GridRuns, RepetitionsBeyondDepth128ShowNoRace)
{
    std::vector<Pair> pairs{{37, 153}};
    if (full_grid() == 1) {
        pairs = {{1, 239}, {37, 153}, {256, 512}, {799, 3}, {1023, 1024}};
    }
    for (const Pair& pair : pairs) {
        for (const std::int64_t head_dim : {256, 168}) { // brought by the copy engine, and by the warps
            SCOPED_TRACE(::testing::Message() << pair.queries << "x" << pair.keys << " head_dim " << head_dim);
            AttentionCase attention({9, 4, 2, pair.queries, pair.keys, head_dim, head_dim}, DType::bfloat16, 804);
            attention.options.causal = Causal::bottom_right;
            repeat(attention, GetParam().is_device ? 250 : 10);
            static_cast<void>(attention.run(on_target(attention.options)));
            if (pair.scores() < 30000) {
                attention.expect_close();
            }
        }
    }
}

TEST_P(GridRuns, InputsTimesFiveDoNotOverflow)
{
    for (const DType dtype : grid_dtypes) {
        for (const std::int64_t head_dim : {59, 128, 256}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " head_dim " << head_dim);
            AttentionCase attention({1, 2, 1, 256, 217, head_dim, head_dim}, dtype, 803, 5.0F);
            attention.options.causal = Causal::top_left;
            expect_ran_on_target(attention.run(on_target(attention.options)).second, dtype);
            for (const HostTensor* result : {&attention.o, &attention.dq, &attention.dk, &attention.dv}) {
                const std::vector<double> values = doubles(*result);
                EXPECT_TRUE(std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }));
            }
            attention.expect_close();
        }
    }
}

/// Cells of the grid at head dims beyond it: one each by turns, every seventh in the full grid.
TEST_P(GridRuns, HeadDimsBeyond256)
{
    constexpr std::array<Pair, 4> pairs{{{113, 203}, {1, 239}, {127, 65}, {3, 799}}};
    int turn = 0;
    for (const auto& [head_dim, head_dim_v] : wide_head_dims) {
        for (const Pair& pair : pairs) {
            for (const DType dtype : grid_dtypes) {
                const int step = full_grid() == 1 ? 7 : Cell::count;
                for (int number = 37 * turn++ % step; number < Cell::count; number += step) {
                    const Cell cell(number);
                    SCOPED_TRACE(::testing::Message()
                                 << "head_dim " << head_dim << "/" << head_dim_v << " " << pair.queries << "x"
                                 << pair.keys << " " << cell.name() << " " << name_of(dtype));
                    const auto seed = static_cast<std::uint64_t>(805 + 100 * number + head_dim);
                    AttentionCase attention = cell.make(pair, head_dim, dtype, seed, Inputs::own, head_dim_v);
                    expect_ran_on_target(attention.run(on_target(attention.options)).second, dtype);
                    std::vector<Comparison> comparisons = attention.compare(attention.expected());
                    if (!cell.can_judge_dq(pair, dtype)) {
                        std::erase_if(comparisons, [](const Comparison& c) { return std::string(c.name) == "dq"; });
                    }
                    expect_passed(comparisons);
                }
            }
        }
    }
}

/// Multi-head latent attention's 128 heads on one.
TEST_P(GridRuns, OneKeyHeadFor128)
{
    for (const DType dtype : grid_dtypes) {
        for (const Pair& pair : {Pair{1, 239}, Pair{3, 147}, Pair{40, 53}}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << pair.queries << "x" << pair.keys);
            AttentionCase attention({2, 128, 1, pair.queries, pair.keys, 576, 512}, dtype, 806);
            attention.options.causal = Causal::bottom_right;
            expect_ran_on_target(attention.run(on_target(attention.options)).second, dtype);
            attention.expect_close();
        }
    }
}

/// FLASHOMP_GRID_METADATA=FILE asks for a line of JSON there, for tools/full_grid.
TEST(GridBuild, SaysWhatItIs)
{
    const BuildInfo& build = build_info();
    EXPECT_STREQ(build.version, FLASHOMP_VERSION);
    if (const char* path = std::getenv("FLASHOMP_GRID_METADATA"); path != nullptr) {
        const std::vector<DeviceInfo> gpus = devices();
        std::ofstream(path) << fmt::format(
            R"({{"commit":"{}","compiler":"{}","flags":"{}","offload":"{}","host_isa":"{}","gpu":"{}"}})"
            "\n",
            build.commit, build.compiler, build.flags, build.offload, host_isa(),
            gpus.empty() ? "none" : gpus.front().name);
    }
}

TEST(GridDropout, DrawsTheFractionThatWasAskedFor)
{
    HostTensor mask(DType::boolean, {2, 4, 300, 500}, Fill::poison);
    for (const double probability : {0.0, 0.1, 0.17, 0.5, 0.83}) {
        dropout_mask({probability, 804, 805}, mask.view());
        const auto* kept = static_cast<const std::uint8_t*>(mask.data());
        const auto dropped = static_cast<double>(std::count(kept, kept + mask.elements(), std::uint8_t{0}));
        EXPECT_NEAR(dropped / static_cast<double>(mask.elements()), probability, 0.01);
    }
}

} // namespace
} // namespace flashomp::testing
