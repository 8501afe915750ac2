// Block masks of the C interface: the same results as of C++, and one sentence for bad ones.
#include "c_call.hpp"

#include "support/masked.hpp"

#include <string>
#include <vector>

namespace flashomp::testing {
namespace {

void expect_same_results(AttentionCase& attention, const flashomp_block_mask* block_mask, const Options& expected)
{
    attention.poison_outputs();
    forward(attention.forward_args(), expected);
    const HostTensor o = std::move(attention.o);
    attention.poison_outputs();
    Options without = expected;
    without.block_mask = {};
    CCall call(attention.forward_args(), without);
    call.options.block_mask = block_mask;
    ASSERT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_OK) << flashomp_last_error();
    EXPECT_TRUE(same_bits(attention.o, o));
}

TEST(CApiBlockMask, GivesTheResultsOfCpp)
{
    AttentionCase attention({2, 4, 2, 100, 130, 16, 16}, DType::float32, 91);
    const HostTensor mask = random_mask(attention.random(), {2, 4, 100, 130}, 32, 0.4, 0.3, 0.5);
    Options options;
    options.threads = 1;
    options.block_mask = BlockMask::from_mask(mask.view(), 32, 48);
    flashomp_block_mask* made = nullptr;
    CTensor tensor(mask.view());
    ASSERT_EQ(flashomp_block_mask_from_mask(&tensor.get(), 32, 48, &made), FLASHOMP_OK) << flashomp_last_error();
    expect_same_results(attention, made, options);
    flashomp_block_mask_free(made);
    const BlockRows& rows = options.block_mask.by_query();
    const auto size = [](const auto& values) { return static_cast<std::int64_t>(values.size()); };
    ASSERT_EQ(flashomp_block_mask_from_blocks(2, 4, 100, 130, 32, 48, rows.starts.data(), size(rows.starts),
                                              rows.blocks.data(), rows.bits.data(), size(rows.blocks),
                                              options.block_mask.bits().data(), size(options.block_mask.bits()), &made),
              FLASHOMP_OK)
        << flashomp_last_error();
    expect_same_results(attention, made, options);
    flashomp_block_mask_free(made);

    AttentionCase square({2, 2, 1, 70, 70, 16, 16}, DType::float32, 92);
    HostTensor ids(DType::int32, {2, 70});
    auto* const values = static_cast<std::int32_t*>(ids.data());
    for (int t = 0; t < 140; ++t) {
        values[t] = t % 70 / (t < 70 ? 20 : 33);
    }
    options.block_mask = BlockMask::from_documents({values, 140}, 2, true, 16, 16);
    CTensor documents(std::as_const(ids).view());
    ASSERT_EQ(flashomp_block_mask_from_documents(&documents.get(), 1, 16, 16, &made), FLASHOMP_OK)
        << flashomp_last_error();
    expect_same_results(square, made, options);
    flashomp_block_mask_free(made);
    flashomp_block_mask_free(nullptr);
}

TEST(CApiBlockMask, SaysWhatIsWrong)
{
    const auto refused = [](flashomp_status status, const char* words) {
        EXPECT_EQ(status, FLASHOMP_BAD_ARGUMENT);
        EXPECT_NE(std::string(flashomp_last_error()).find(words), std::string::npos) << flashomp_last_error();
    };
    flashomp_block_mask* made = reinterpret_cast<flashomp_block_mask*>(8);
    const HostTensor floats(DType::float32, {1, 1, 4, 4});
    CTensor tensor(floats.view());
    refused(flashomp_block_mask_from_mask(&tensor.get(), 16, 16, &made), "the dense mask is float32");
    EXPECT_EQ(made, nullptr);
    refused(flashomp_block_mask_from_mask(nullptr, 16, 16, &made), "it must be boolean");
    refused(flashomp_block_mask_from_mask(&tensor.get(), 16, 16, nullptr), "block_mask was null");
    refused(flashomp_block_mask_from_documents(&tensor.get(), 1, 16, 16, &made), "ids is float32");
    refused(flashomp_block_mask_from_blocks(1, 1, 64, 64, 32, 32, nullptr, 3, nullptr, nullptr, 0, nullptr, 0, &made),
            "starts was null; it must point to 3 numbers");
    const std::int64_t starts[] = {0, 1, 1};
    const std::int32_t blocks[] = {5};
    const std::int32_t bits[] = {-1};
    refused(flashomp_block_mask_from_blocks(1, 1, 64, 64, 32, 32, starts, 3, blocks, bits, 1, nullptr, 0, &made),
            "block 0 of row 0 was 5");
    refused(flashomp_block_mask_from_blocks(1, 1, 64, 64, 32, 32, starts, 3, blocks, bits, -1, nullptr, 0, &made),
            "was -1; it must be 0 or more");
}

} // namespace
} // namespace flashomp::testing
