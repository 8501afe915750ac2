// Pages as a second key source: the forward pass computes the same bits from keys in pages as from keys in one tensor.
#include "algorithm/forward.hpp"
#include "algorithm/page_source.hpp"
#include "host/few_queries.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace flashomp {
namespace {

using offload::Element;
using offload::PagedKeys;
using offload::Params;
using offload::StridedKeys;
using offload::Tensor;

constexpr int batches = 2, heads_q = 4, heads_kv = 2, seqlen_q = 11, depth = 24, depth_v = 20;
constexpr int lengths[batches] = {75, 43}; ///< keys of each sequence
constexpr int all_keys = lengths[0] + lengths[1];
constexpr int block_n = 16;

/// The parameters of a call whose k and v are caches [page, row, head, depth].
struct PagedParams : Params {
    std::vector<int> table; ///< [batch, pages_of_one]
    int pages_of_one = 0;
};

struct FourLanes {
    static constexpr int lanes = 4;
    static constexpr int register_rows = 4;
    static constexpr int register_vectors = 2;
};
using HostMachine = offload::HostMachine<FourLanes>;
using FewRowsMachine = offload::FewRowsMachine<FourLanes>;

struct Case {
    const char* name;
    Element element;
    int page_rows;
    bool is_causal, is_modified;
};

class KeySource : public ::testing::TestWithParam<Case> {
protected:
    struct Result {
        /// Bytes of NaNs at first.
        std::vector<unsigned char> o = std::vector<unsigned char>(elements * sizeof(float), 0xFF);
        std::vector<float> lse = std::vector<float>(batches * heads_q * seqlen_q, std::nanf(""));
        bool operator==(const Result&) const = default;

        [[nodiscard]] bool is_finite()
        {
            bool all = std::all_of(lse.begin(), lse.end(), [](float x) { return std::isfinite(x); });
            for (std::int64_t i = 0; i < elements; ++i) {
                all = all && std::isfinite(offload::read_element(o.data(), GetParam().element, i));
            }
            return all;
        }
        static constexpr int elements = batches * seqlen_q * heads_q * depth_v;
    };

    /// Packed keys and values, and the same in pages. What no key has in the pages is NaN.
    void SetUp() override
    {
        std::mt19937 random(7);
        std::uniform_real_distribution<float> numbers(-1.0F, 1.0F);
        for (std::size_t i = 0; i < q_.size(); ++i) {
            write_element(q_.data(), GetParam().element, static_cast<std::int64_t>(i), numbers(random));
        }
        paged_.cache.page_rows = GetParam().page_rows;
        paged_.pages_of_one = (lengths[0] + paged_.cache.page_rows - 1) / paged_.cache.page_rows;
        for (int page = batches * paged_.pages_of_one; page > 0; --page) { // the last page comes first
            paged_.table.push_back(page - 1);
        }
        paged_.cache.pages = paged_.table.data();
        paged_.cache.stride = paged_.pages_of_one;
        paged_.cache.lengths = lengths;
        fill(k_, k_cache_, depth, [&] { return numbers(random); });
        fill(v_, v_cache_, depth_v, [&] { return numbers(random); });

        strided_.k = {k_.data(), 0, std::int64_t{heads_kv} * depth, depth, true, all_keys};
        strided_.v = {v_.data(), 0, std::int64_t{heads_kv} * depth_v, depth_v, true, all_keys};
        const auto cache = [&](std::vector<float>& data, std::int64_t width) {
            return Tensor{
                data.data(),           paged_.cache.page_rows * heads_kv * width, heads_kv * width, width, false,
                paged_.cache.page_rows};
        };
        paged_.k = cache(k_cache_, depth);
        paged_.v = cache(v_cache_, depth_v);
        complete(strided_);
        strided_.cu_seqlens_k = starts_;
        complete(paged_);
    }

    /// The whole forward pass.
    template <class Machine, class Keys>
    Result run(Params& p, int block_m)
    {
        Result result;
        p.o = {result.o.data(), seqlen_q * heads_q * depth_v, heads_q * depth_v, depth_v};
        p.o.element = p.element;
        p.lse = {result.lse.data(), heads_q * seqlen_q, seqlen_q};
        std::vector<float> memory(
            static_cast<std::size_t>(offload::forward_floats<Machine>(block_m, block_n, depth, depth_v)) + 16);
        const auto past_line = reinterpret_cast<std::uintptr_t>(memory.data()) % 64 / sizeof(float);
        for (int item = 0; item < batches * heads_q * ((seqlen_q + block_m - 1) / block_m); ++item) {
            const offload::WorkItem work{item % batches, item / batches % heads_q, item / batches / heads_q};
            Machine tile(memory.data() + (16 - past_line) % 16, block_m, block_n);
            if (GetParam().is_modified) {
                offload::forward_block<true, Keys>(tile, p, work);
            } else {
                offload::forward_block<false, Keys>(tile, p, work);
            }
        }
        return result;
    }

    Params strided_;
    PagedParams paged_;

private:
    template <class Next>
    void fill(std::vector<float>& packed, std::vector<float>& cache, int width, Next next)
    {
        const int in_row = heads_kv * width;
        const auto rows = static_cast<int>(paged_.table.size()) * paged_.cache.page_rows;
        packed.resize(std::size_t{all_keys} * heads_kv * static_cast<std::size_t>(width));
        cache.resize(static_cast<std::size_t>(rows) * heads_kv * static_cast<std::size_t>(width));
        for (int i = 0; i < rows * in_row; ++i) {
            write_element(cache.data(), GetParam().element, i, std::nanf(""));
        }
        for (int batch = 0; batch < batches; ++batch) {
            for (int j = 0; j < lengths[batch]; ++j) {
                const int entry = batch * paged_.pages_of_one + j / paged_.cache.page_rows;
                const int page = paged_.table.at(static_cast<std::size_t>(entry));
                for (int x = 0; x < in_row; ++x) {
                    const float number = next();
                    write_element(packed.data(), GetParam().element, (batch * lengths[0] + j) * in_row + x, number);
                    write_element(cache.data(), GetParam().element,
                                  (page * paged_.cache.page_rows + j % paged_.cache.page_rows) * in_row + x, number);
                }
            }
        }
    }

    /// What both calls have.
    void complete(Params& p)
    {
        p.batch = batches;
        p.heads_q = heads_q;
        p.heads_kv = heads_kv;
        p.seqlen_q = seqlen_q;
        p.seqlen_k = lengths[0];
        p.head_dim = depth;
        p.head_dim_v = depth_v;
        p.element = GetParam().element;
        p.scale = 0.25F;
        p.q = {q_.data(), seqlen_q * heads_q * depth, heads_q * depth, depth};
        p.causal = GetParam().is_causal ? offload::Alignment::bottom_right : offload::Alignment::none;
        p.is_modified = GetParam().is_modified;
        p.softcap = p.is_modified ? 2.0F : 0.0F;
    }

    std::vector<float> q_ = std::vector<float>(batches * seqlen_q * heads_q * depth);
    std::vector<float> k_, v_, k_cache_, v_cache_;
    std::int32_t starts_[batches + 1] = {0, lengths[0], all_keys};
};

TEST_P(KeySource, PagesGiveTheSameBits)
{
    constexpr int many = 8, few = 3; // resident rows
    Result strided = run<HostMachine, StridedKeys>(strided_, many);
    EXPECT_TRUE(strided.is_finite());
    const auto paged = [&] { return run<HostMachine, PagedKeys>(paged_, many); };
    EXPECT_TRUE(paged() == strided);
    const Result in_place = run<FewRowsMachine, StridedKeys>(strided_, few); // reads a block's rows where they are
    EXPECT_TRUE((run<FewRowsMachine, PagedKeys>(paged_, few)) == in_place);
    std::swap(paged_.table.front(), paged_.table[static_cast<std::size_t>(paged_.pages_of_one)]);
    EXPECT_FALSE(paged() == strided) << "each sequence has the first keys of the other, and the same results";
}

INSTANTIATE_TEST_SUITE_P(Pages, KeySource,
                         ::testing::Values(Case{"one_block", Element::float32, block_n, false, false},
                                           Case{"two_blocks", Element::float32, 2 * block_n, true, false},
                                           Case{"two_blocks_modified", Element::bfloat16, 2 * block_n, true, true},
                                           Case{"half_a_block", Element::float32, block_n / 2, true, false},
                                           Case{"five_rows", Element::float16, 5, false, true},
                                           Case{"five_rows_causal", Element::bfloat16, 5, true, false}),
                         [](const auto& one) { return std::string(one.param.name); });

} // namespace
} // namespace flashomp
