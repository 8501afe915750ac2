// In which order key blocks add to the dQ of a query block: each of those that it sees once, whoever comes first.
#include "algorithm/turns.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

namespace flashomp::offload {
namespace {

constexpr int block_m = 4, block_n = 8;

/// The turns of all key blocks at one query block: follows the numbers that are left there, from 0 to 0.
std::vector<int> order_at(int query_block, const std::vector<Turns>& turns)
{
    const auto is_in = [=](const Range& range) { return query_block >= range.begin && query_block < range.end; };
    std::vector<int> order;
    unsigned number = 0;
    while (order.size() <= turns.size()) {
        std::vector<int> next; // whom this number lets go
        for (std::size_t key_block = 0; key_block < turns.size(); ++key_block) {
            const Turns& own = turns[key_block];
            if (own.own > 0 && number == (is_in(own.first) ? 0 : own.before)) {
                next.push_back(static_cast<int>(key_block));
            }
        }
        if (next.size() != 1) {
            ADD_FAILURE() << next.size() << " key blocks have their turn after number " << number;
            break;
        }
        order.push_back(next.front());
        const Turns& own = turns[static_cast<std::size_t>(next.front())];
        if (is_in(own.last)) {
            return order;
        }
        number = own.own;
    }
    return {};
}

/// Those of the band, at every query block; `own` is 0 of a key block that has nothing for it.
void expect_every_key_block_once(const Band& band, KeyOrder order)
{
    Params p;
    p.seqlen_q = band.q_len;
    p.heads_q = 3;
    const int key_blocks = (band.k_len + block_n - 1) / block_n;
    const int query_blocks = (band.q_len + block_m - 1) / block_m;
    for (int query_block = 0; query_block < query_blocks; ++query_block) {
        SCOPED_TRACE(::testing::Message()
                     << band.q_len << "x" << band.k_len << ", band " << band.low << " to " << band.high << ", order "
                     << static_cast<int>(order) << ", query block " << query_block);
        std::vector<Turns> turns;
        std::vector<int> seen;
        for (int key_block = 0; key_block < key_blocks; ++key_block) {
            WorkItem work;
            work.batch = 1;
            work.block = key_block;
            work.order = order;
            turns.push_back(turns_of(p, work, band, 2, block_m, block_n));
            EXPECT_EQ(turns.back().block, (1 * 3 + 2) * query_blocks);
            bool sees = false;
            for (int i = query_block * block_m; i < (query_block + 1) * block_m; ++i) {
                for (int j = key_block * block_n; j < (key_block + 1) * block_n; ++j) {
                    sees = sees || band.keeps(i, j);
                }
            }
            if (sees) {
                seen.push_back(key_block);
            } else {
                turns.back().own = 0;
            }
        }
        if (seen.empty()) {
            continue;
        }
        std::vector<int> found = order_at(query_block, turns);
        if (order != KeyOrder::ascending && !found.empty()) { // downwards, from somewhere on
            std::reverse(found.begin(), found.end());
        }
        if (order == KeyOrder::rotating && !found.empty()) { // where all begin at the same time, this one is here first
            EXPECT_LE(first_query_block(found.back(), key_blocks, query_blocks), query_block);
            std::rotate(found.begin(), std::min_element(found.begin(), found.end()), found.end());
        }
        EXPECT_EQ(found, seen);
    }
}

TEST(Turns, EveryKeyBlockOnceInItsOrder)
{
    for (const int q_len : {1, 4, 31, 40, 77}) {
        for (const int k_len : {1, 8, 31, 64, 77}) {
            expect_every_key_block_once({-q_len, k_len, q_len, k_len}, KeyOrder::rotating);
            for (const KeyOrder order : {KeyOrder::ascending, KeyOrder::descending}) {
                expect_every_key_block_once({-q_len, k_len, q_len, k_len}, order);
                for (const int high : {-5, 0, 3, k_len - q_len, 50}) { // causal masks among them
                    for (const int width : {0, 2, 9, 30, 200}) {
                        const auto clamped = [&](int x) { return std::clamp(x, -q_len, k_len); };
                        expect_every_key_block_once({clamped(high - width), clamped(high), q_len, k_len}, order);
                    }
                }
            }
        }
    }
}

} // namespace
} // namespace flashomp::offload
