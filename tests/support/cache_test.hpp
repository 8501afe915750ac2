// forward() on a cache, on every target, and what it is compared with.
#pragma once

#include "cache_case.hpp"
#include "target.hpp"

#include <utility>

namespace flashomp::testing {

/// Calls on every target whose keys are in a cache.
class CacheTest : public EveryTargetTest {
protected:
    struct Outputs {
        HostTensor o, lse;
    };

    [[nodiscard]] Options options_of(const CacheCase& cached, CacheForm form) const
    {
        Options options = on_target(cached.options(form));
        options.threads = 2;
        return options;
    }

    [[nodiscard]] Outputs run(CacheCase& cached, CacheForm form) const
    {
        return run(cached, form, options_of(cached, form));
    }

    [[nodiscard]] Outputs run_plain(CacheCase& cached, CacheForm form) const
    {
        Options options = options_of(cached, form);
        options.machine = Machine::plain;
        return run(cached, form, options);
    }

    [[nodiscard]] Outputs run(CacheCase& cached, CacheForm form, const Options& options) const
    {
        const Report report = forward(cached.args(form), options);
        EXPECT_EQ(report.on_device, target_.is_device);
        EXPECT_FALSE(report.computed_twice) << "a row of nobody's was read";
        return {std::move(cached.attention.o), std::move(cached.attention.lse)};
    }

    static void expect_same(const Outputs& a, const Outputs& b)
    {
        EXPECT_TRUE(same_bits(a.o, b.o)) << "o";
        EXPECT_TRUE(same_bits(a.lse, b.lse)) << "lse";
    }

    /// Against float64.
    static void expect_close(CacheCase& cached, CacheForm form, const Outputs& outputs)
    {
        Problem problem = validate_forward(cached.args(form), cached.options(form));
        problem.options.threads = 1;
        const Expected expected = expected_of_forward(problem);
        const double largest_lse = reference::largest_of(expected.exact.lse);
        const auto judged = [&](reference::Result result, const HostTensor& tensor) {
            return reference::judged_as(result, tensor.dtype(), tensor.shape(), expected.few_keys, largest_lse);
        };
        expect_passed({compared("o", judged(reference::Result::o, outputs.o), doubles(outputs.o), expected.exact.o,
                                expected.naive.o),
                       compared("lse", judged(reference::Result::lse, outputs.lse), doubles(outputs.lse),
                                expected.exact.lse, expected.naive_lse)});
    }

private:
    static Expected expected_of_forward(const Problem& problem)
    {
        Expected expected;
        expected.exact = reference::forward(problem);
        expected.naive = reference::forward(problem, reference::rounding_of(problem.dtype));
        expected.naive_lse = reference::forward(problem, reference::Rounding::float32).lse;
        expected.few_keys = reference::rows_of_few_keys(problem);
        return expected;
    }
};

} // namespace flashomp::testing
