// Backward makes up for what LSE lost when it was rounded to float32: the dQ pass sees that the probabilities of a row
// do not sum to 1, and tells the passes after it. So an error of LSE, here a large one, changes no gradient.
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include <algorithm>
#include <cmath>

namespace flashomp::testing {
namespace {

class SavedLse : public EveryTargetTest {
protected:
    /// Two sequences, of which the second has logits, and so LSE, around `logit`: float32 takes its pass without
    /// corrections, where it has one, only while LSE is small in both. A sink is where it does not outweigh the logits.
    [[nodiscard]] static AttentionCase make(DType dtype, float logit)
    {
        AttentionCase attention({2, 4, 2, 70, 90, 32, 24}, dtype, 45);
        attention.add_bias({false, true, true, false}, DType::float32);
        if (logit > 0.0F) {
            attention.add_sink();
        }
        auto* const bias = static_cast<float*>(attention.bias.data());
        const std::int64_t half = attention.bias.elements() / 2;
        std::for_each(bias + half, bias + 2 * half, [&](float& x) { x += logit; });
        return attention;
    }

    static void expect_close(const char* name, const HostTensor& actual, const std::vector<double>& expected,
                             double relative)
    {
        const std::vector<double> a = doubles(actual);
        double largest = 0.0, difference = 0.0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            largest = std::max(largest, std::abs(expected[i]));
            difference = std::max(difference, std::abs(a[i] - expected[i]));
        }
        EXPECT_LE(difference, relative * largest) << name;
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, SavedLse, ::testing::ValuesIn(targets()), target_name);

TEST_P(SavedLse, AnErrorOfItChangesNoGradient)
{
    if (GetParam().backend == Backend::cuda && GetParam().machine == Machine::automatic) {
        GTEST_SKIP() << "CUDA's Hopper kernels compute all gradients in one pass, which corrects nothing";
    }
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        for (const float logit : {-100.0F, 100.0F}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " logits around " << logit);
            AttentionCase attention = make(dtype, logit);
            static_cast<void>(attention.run(on_target(attention.options)));
            const std::vector<double> dq = doubles(attention.dq);
            const std::vector<double> dk = doubles(attention.dk);
            const std::vector<double> dv = doubles(attention.dv);
            const std::vector<double> dbias = doubles(attention.dbias);
            const bool has_sink = attention.sink.rank() > 0;
            const std::vector<double> dsink = has_sink ? doubles(attention.dsink) : std::vector<double>();
            auto* const lse = static_cast<float*>(attention.lse.data());
            std::for_each(lse, lse + attention.lse.elements(), [](float& x) { x += 0.1F; });
            static_cast<void>(backward(attention.backward_args(), on_target(attention.options)));
            const double relative = dtype == DType::float32 ? 2e-4 : 2e-2; // without corrections it is 0.1
            expect_close("dq", attention.dq, dq, relative);
            expect_close("dk", attention.dk, dk, relative);
            expect_close("dv", attention.dv, dv, relative);
            expect_close("dbias", attention.dbias, dbias, relative);
            if (has_sink) {
                expect_close("dsink", attention.dsink, dsink, relative);
            }
        }
    }
}

} // namespace
} // namespace flashomp::testing
