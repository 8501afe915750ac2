// A program's own score is asked about the sequences, heads, queries and keys of the whole, on whatever rank.
#include "on_ranks.hpp"
#include "score/own_scores.hpp"

namespace flashomp::testing {
namespace {

constexpr Shape shape{2, 8, 4, 61, 83, 24, 16};

void expect_results_of_the_whole(AttentionCase& attention)
{
    attention.poison_outputs();
    Expected expected;
    if (rank() == 0) {
        expected = attention.expected();
    }
    for (const auto& [name, sharding] : shardings(shape.heads_q)) {
        SCOPED_TRACE(::testing::Message() << name_of(attention.dtype()) << " " << name);
        OnRanks on_ranks(attention, sharding);
        on_ranks.o = HostTensor(DType::float32, on_ranks.o.shape(), Fill::poison); // D of backward is exact then
        static_cast<void>(on_ranks.run());
        on_ranks.o = io::converted(on_ranks.o, attention.dtype());
        on_ranks.give_back();
        if (rank() == 0) {
            expect_passed(attention.compare(expected));
        }
    }
}

TEST(ShardedScores, HaveTheResultsOfASingleCall)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        AttentionCase attention(shape, dtype, 40);
        attention.options.score_mod = everything(0.2F);
        attention.options.causal = Causal::bottom_right;
        attention.options.first_sequence = 3;
        attention.options.first_head = 2;
        expect_results_of_the_whole(attention);
        attention.add_dropout(0.2);
        expect_results_of_the_whole(attention);
    }
}

TEST(ShardedScores, OfPackedSequences)
{
    const Lengths lengths{{23, 0, 1, 40, 9, 17, 0, 5}, {23, 4, 1, 31, 0, 30, 0, 12}};
    AttentionCase attention({0, shape.heads_q, shape.heads_kv, 0, 0, 16, 24}, lengths, DType::float32, 41);
    attention.options.score_mod = everything(-0.1F);
    expect_results_of_the_whole(attention);
}

} // namespace
} // namespace flashomp::testing
