// Chosen rows and keys of the reference are those of the whole.
#include "accuracy.hpp"
#include "chosen.hpp"
#include "reference_case.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace flashomp {
namespace {

using reference::Chosen;
using reference::ChosenValues;
using reference::Evaluation;
using reference::Rounding;
using reference::Span;
using testing::ReferenceCase;

/// Views of a whole evaluation as results of the problem, so that results_of() can take them apart.
struct AsResults {
    AsResults(const ReferenceCase& c, const Evaluation& of) : values(of), problem(c.problem)
    {
        const auto view = [](std::vector<double>& data, const ConstTensorView& like, std::int64_t width) {
            TensorView result = TensorView::contiguous(data.data(), DType::float64, {0, 0, 0, 0});
            const int rank = like.rank;
            result.rank = rank;
            std::int64_t stride = 1;
            for (auto axis = static_cast<std::size_t>(rank); axis-- > 0;) {
                result.shape[axis] = axis + 1 == static_cast<std::size_t>(rank) ? width : like.shape[axis];
                result.strides[axis] = stride;
                stride *= result.shape[axis];
            }
            return result;
        };
        const std::int64_t depth = problem.head_dim;
        problem.o = view(values.outputs.o, problem.q, problem.head_dim_v);
        problem.dq = view(values.gradients.dq, problem.q, depth);
        problem.dk = view(values.gradients.dk, problem.k, depth);
        problem.dv = view(values.gradients.dv, problem.v, problem.head_dim_v);
        problem.lse = problem.q.rank == 4 ? TensorView::contiguous(values.outputs.lse.data(), DType::float64,
                                                                   {problem.batch, problem.heads_q, problem.seqlen_q})
                                          : TensorView::contiguous(values.outputs.lse.data(), DType::float64,
                                                                   {problem.heads_q, problem.q.shape[0]});
    }

    Evaluation values;
    Problem problem;
};

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double most, const char* what)
{
    EXPECT_FALSE(a.empty()) << what;
    EXPECT_LE(reference::max_error(a, b), most) << what;
}

void expect_chosen_is_part_of_whole(const ReferenceCase& c, const Chosen& chosen)
{
    for (const auto& [rounding, most] :
         {std::pair{Rounding::none, 1e-13}, std::pair{Rounding::float32, 2e-6}, std::pair{Rounding::bfloat16, 4e-2}}) {
        SCOPED_TRACE(static_cast<int>(rounding));
        const AsResults whole(c, reference::evaluate(c.problem, rounding));
        const ChosenValues expected = reference::results_of(whole.problem, chosen);
        const ChosenValues actual = reference::evaluate(c.problem, chosen, rounding);
        ASSERT_EQ(actual.rows.size(), chosen.rows.size());
        ASSERT_EQ(actual.keys.size(), chosen.keys.size());
        for (std::size_t i = 0; i < chosen.rows.size(); ++i) {
            expect_near(actual.rows[i].o, expected.rows[i].o, most, "o");
            expect_near(actual.rows[i].lse, expected.rows[i].lse, most, "lse");
            expect_near(actual.rows[i].dq, expected.rows[i].dq, most, "dq");
        }
        for (std::size_t i = 0; i < chosen.keys.size(); ++i) {
            expect_near(actual.keys[i].dk, expected.keys[i].dk, most, "dk");
            expect_near(actual.keys[i].dv, expected.keys[i].dv, most, "dv");
        }
    }
}

TEST(ReferenceChosen, IsPartOfTheWholeForEveryMask)
{
    for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
        for (const Window window : {Window{-1, -1}, Window{9, 3}}) {
            ReferenceCase c({2, 4, 2, 53, 47, 8, 6});
            c.problem.options.causal = causal;
            c.problem.options.window = window;
            expect_chosen_is_part_of_whole(c, {1, 1, {{0, 7}, {20, 9}, {46, 7}}, {{0, 5}, {22, 8}, {42, 5}}});
        }
    }
}

TEST(ReferenceChosen, IsPartOfTheWholeWithEveryOption)
{
    ReferenceCase c({2, 4, 2, 33, 47, 24, 16});
    c.add_alibi(false);
    c.add_bias({true, false, true, false});
    c.add_sink();
    c.add_key_padding();
    c.problem.options.softcap = 5.0;
    c.problem.options.dropout = {0.2, 1, 2};
    c.problem.options.causal = Causal::bottom_right;
    expect_chosen_is_part_of_whole(c, {0, 1, {{0, 33}}, {{0, 47}}});
    expect_chosen_is_part_of_whole(c, {1, 0, {{3, 2}, {31, 1}}, {{46, 1}}});
}

TEST(ReferenceChosen, HiddenKeysThatAreNotFiniteHaveNoInfluenceEither)
{
    ReferenceCase c({1, 2, 1, 30, 40, 8, 8});
    c.add_key_padding();
    for (std::size_t j = 0; j < 40; ++j) {
        if (c.key_padding_mask[j] == 0) {
            c.k[8 * j] = c.v[8 * j] = std::numeric_limits<double>::quiet_NaN();
        }
    }
    expect_chosen_is_part_of_whole(c, {0, 0, {{0, 30}}, {{0, 40}}});
}

TEST(ReferenceChosen, IsPartOfTheWholeOfPackedSequences)
{
    ReferenceCase c({1, 2, 1, 1, 1, 8, 8}, {5, 20, 31}, {9, 20, 40});
    c.problem.options.causal = Causal::bottom_right;
    expect_chosen_is_part_of_whole(c, {1, 0, {{0, 4}, {16, 4}}, {{0, 4}, {16, 4}}});
    expect_chosen_is_part_of_whole(c, {2, 0, {{15, 16}}, {{30, 10}}});
}

TEST(ReferenceChosen, SameBitsOnAnyNumberOfThreadsAndForwardHasNoGradients)
{
    ReferenceCase c({1, 2, 1, 700, 900, 8, 8});
    const Chosen chosen{0, 0, {{0, 64}}, {{0, 64}, {836, 64}}};
    c.problem.options.threads = 1;
    const ChosenValues once = reference::evaluate(c.problem, chosen, Rounding::float32);
    c.problem.options.threads = 3;
    const ChosenValues again = reference::evaluate(c.problem, chosen, Rounding::float32);
    EXPECT_EQ(once.rows[0].dq, again.rows[0].dq);
    EXPECT_EQ(once.keys[0].dk, again.keys[0].dk);
    EXPECT_EQ(once.keys[1].dv, again.keys[1].dv);
    c.problem.is_backward = false;
    const ChosenValues forward = reference::evaluate(c.problem, chosen);
    EXPECT_TRUE(forward.rows[0].dq.empty());
    EXPECT_TRUE(forward.keys.empty());
}

} // namespace
} // namespace flashomp
