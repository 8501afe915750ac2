// The fixture of tests that compare the OpenMP backend with the reference on every target and in every dtype.
#pragma once

#include "attention_case.hpp"
#include "option_list.hpp"
#include "target.hpp"

#include <array>
#include <string>
#include <tuple>
#include <vector>

namespace flashomp::testing {

class ParityTest : public TargetTest, public ::testing::WithParamInterface<std::tuple<Target, DType>> {
protected:
    void SetUp() override { use(std::get<Target>(GetParam())); }

    [[nodiscard]] static DType dtype() { return std::get<DType>(GetParam()); }

    /// Runs the case on this test's target and expects every result within the tolerance rule.
    void check(AttentionCase& attention)
    {
        const auto [first, second] = attention.run(on_target(attention.options));
        expect_ran_on_target(first, dtype());
        expect_ran_on_target(second, dtype());
        if (target_.backend == Backend::cuda &&
            target_.machine == Machine::automatic) {                       // has a kernel for nearly everything
            const bool is_wide = attention.problem().kernel_depth() > 256; // forward in 16 bits alone
            // A mask takes the tensor cores in 16 bits, in tiles of at most 128 columns, of scores that nothing
            // modifies.
            const bool is_plain =
                has_pair_mask(attention.options) && (dtype() == DType::float32 || modifies_scores(attention.options) ||
                                                     attention.problem().kernel_depth() > 128);
            EXPECT_EQ(first.machine == "plain", is_plain || (is_wide && dtype() == DType::float32));
            const bool repairs_lse_there =
                dtype() == DType::float32 && attention.options.bias; // and so all of backward
            EXPECT_EQ(second.machine == "plain", is_plain || is_wide || repairs_lse_there);
        }
        if (dtype() != DType::float16) { // whose results may overflow
            // The second computation is right whatever the kernels did.
            EXPECT_FALSE(first.computed_twice || second.computed_twice);
        }
        attention.expect_close();
    }
};

/// Every target in every dtype that it has kernels of its own for: AVX-512-BF16 leaves the others to AVX-512.
inline auto parity_params()
{
    std::vector<std::tuple<Target, DType>> params;
    for (const Target& target : targets()) {
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
            if (target.isa != "avx512_bf16" || dtype == DType::bfloat16) {
                params.emplace_back(target, dtype);
            }
        }
    }
    return ::testing::ValuesIn(params);
}

/// Names the instances of such a test: "host_avx2_bfloat16".
inline std::string parity_name(const ::testing::TestParamInfo<std::tuple<Target, DType>>& info)
{
    return std::get<Target>(info.param).name + "_" + std::string(name_of(std::get<DType>(info.param)));
}

} // namespace flashomp::testing
