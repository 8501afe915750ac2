// The tensor-core machine with masks of any shape. A machine of its own, so that the kernels of calls without a mask
// have no code and no registers for it. What a tile keeps is a bit a pair in team memory, which the crew's threads make
// together, 32 keys of a query each: a lane's scores belong to many rows or many columns, and it would read the mask
// once for each of them.
#pragma once

#include "algorithm/kept_bits.hpp"
#include "nvidia/tensor_machine.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// A mask has so many parameters that each block fetches them anew: kept in registers, they cost 64 columns of keys 300
/// bytes of spills more.
template <class Config>
struct MaskedConfig : Config {
    enum : int { refetch = 1 };
};

template <class Config>
class MaskedTensorMachine : public TensorMachine<MaskedConfig<Config>> {
    using Machine = TensorMachine<MaskedConfig<Config>>;
    enum : int {
        columns = Config::stream_rows,
        threads = 32 * Config::warps,
        rows_in_warp = 16 * Config::fragments,
        rows_in_crew = Config::warps * rows_in_warp,
        row_slots = 2 * Config::fragments,
    };
    static_assert(columns % 16 == 0 && rows_in_crew % 32 == 0 && 32 % rows_in_warp == 0);
    static_assert(kept_bytes(rows_in_crew, columns) % 128 == 0); // rows of what lies behind are swizzled by address

public:
    enum : int { takes_masks = 1 };

    using typename Machine::Scores;

    FLASHOMP_INLINE explicit MaskedTensorMachine(const void* team_memory)
        : Machine(static_cast<const char*>(team_memory) + kept_bytes(rows_in_crew, columns)),
          kept_(ptx::shared_address(team_memory))
    {
    }

    /// Hides what the mask of a head hides in the tile of queries from i0 on and keys from j0 on. All of the crew.
    template <bool keys_are_rows>
    FLASHOMP_INLINE void hide(Scores& s, const PairMask& mask, int i0, int j0, int q_len, int k_len)
    {
        constexpr int queries = keys_are_rows ? int{columns} : int{rows_in_crew};
        constexpr int keys = keys_are_rows ? int{rows_in_crew} : int{columns};
        constexpr int words = keys / 32; ///< of a query
        static_assert(keys % 32 == 0);
        FLASHOMP_UNROLL(1)
        for (unsigned number = this->thread(); number < unsigned{queries * words}; number += threads) {
            const int i = i0 + static_cast<int>(number / unsigned{words});
            const int j = j0 + static_cast<int>(number % unsigned{words}) * 32;
            const int there = k_len - j < 32 ? k_len - j : 32;
            ptx::store_shared_32(kept_ + 4 * number, i < q_len && there > 0 ? kept_bits(mask, i, j, there) : 0U);
        }
        ptx::barrier<threads>(); // that of the next block comes before anybody makes the next tile's bits
        keys_are_rows ? hide_columns<words>(s) : hide_rows<words>(s);
    }

private:
    /// Of rows that are queries.
    template <int words>
    FLASHOMP_INLINE void hide_rows(Scores& s) const
    {
        const unsigned first = 2 * (this->lane() % 4); // column of a piece
        FLASHOMP_UNROLL(8)
        for (int slot = 0; slot < row_slots; ++slot) {
            const std::uint32_t row = kept_ + 4 * words * static_cast<unsigned>(this->row_index(slot));
            FLASHOMP_UNROLL(4)
            for (int word = 0; word < words; ++word) {
                const std::uint32_t kept = bits_of(ptx::load_shared(row + 4 * word)) >> first;
                FLASHOMP_UNROLL(4)
                for (int n = 0; n < 4; ++n) {
                    float* const pair = &s.s[slot / 2][4 * word + n][slot % 2 * 2];
                    pair[0] = (kept >> (8 * n) & 1U) != 0 ? pair[0] : -infinity;
                    pair[1] = (kept >> (8 * n + 1) & 1U) != 0 ? pair[1] : -infinity;
                }
            }
        }
    }

    /// Of columns that are queries: a word has all rows of a warp.
    template <int words>
    FLASHOMP_INLINE void hide_columns(Scores& s) const
    {
        const unsigned first_row = this->warp() * rows_in_warp;
        const std::uint32_t word = kept_ + 4 * (first_row / 32);
        const unsigned first = first_row % 32 + this->lane() / 4;
        FLASHOMP_UNROLL(64)
        for (int n = 0; n < columns / 8; ++n) {
            FLASHOMP_UNROLL(2)
            for (int e = 0; e < 2; ++e) {
                const unsigned query = 8 * static_cast<unsigned>(n) + 2 * (this->lane() % 4) + static_cast<unsigned>(e);
                const std::uint32_t kept = bits_of(ptx::load_shared(word + 4 * words * query)) >> first;
                FLASHOMP_UNROLL(8)
                for (int slot = 0; slot < row_slots; ++slot) {
                    float& x = s.s[slot / 2][n][slot % 2 * 2 + e];
                    x = (kept >> (8 * slot) & 1U) != 0 ? x : -infinity;
                }
            }
        }
    }

    std::uint32_t kept_; ///< [query][32 keys], in front of what the tensor machine has in team memory
};

} // namespace flashomp::offload

#pragma omp end declare target
