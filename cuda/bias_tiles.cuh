// The tiles of dS that the gradient of a bias is made of (bias_hopper.cuh), in the order in which a thread block
// computes them.
#pragma once

#include "algorithm/backward_options.hpp"
#include "hopper_items.cuh"

namespace flashomp::cuda {

/// A tile of dS.
struct BiasTile {
    int batch = -1, head = 0, head_kv = 0, i0 = 0, j0 = 0;
    int q_start = 0, k_start = 0; ///< first rows of the sequence when packed
    offload::Band band{};
    bool has_new_queries = true; ///< other than the tile before
};

/// The tiles that a thread block computes, for the thread that brings them and for those that compute. Items are blocks
/// of the bias; neighbouring ones, which differ in their keys, are mostly one thread block's, so that queries stay.
template <class Shape>
class BiasTiles {
public:
    __device__ __forceinline__ explicit BiasTiles(const Params& p) : p_(p), blocks_(p, Shape::block_m, Shape::block_n)
    {
    }

    /// Calls tile(tile) for all tiles of an item that have a pair that the band keeps, and then end().
    template <class Tile, class End>
    __device__ __forceinline__ void for_each(const Tile& tile, const End& end)
    {
        // Fewer than 2^31: an item has 2^13 pairs of the bias, or all of an axis.
        const auto items = static_cast<int>(blocks_.items());
        const int crews = static_cast<int>(gridDim.x);
        const int run = max(1, min(8, items / (4 * crews)));
        // Another place in each round: under a causal mask the same keys of each query block would be a thread block's,
        // and some see twice as many queries.
        for (int round = 0; round * crews * run < items; ++round) {
            const int first = (round * crews + (static_cast<int>(blockIdx.x) + round) % crews) * run;
            place(first);
            for (int item = first; item < min(first + run, items); ++item) {
                for_tiles(tile);
                end();
                advance();
            }
        }
    }

    /// Of the bias, 0 along axes that it lacks.
    [[nodiscard]] __device__ __forceinline__ int batch() const { return batch_; }
    [[nodiscard]] __device__ __forceinline__ int head() const { return head_; }
    [[nodiscard]] __device__ __forceinline__ int first_query() const { return query_block_ * Shape::block_m; }
    [[nodiscard]] __device__ __forceinline__ int first_key() const { return key_block_ * Shape::block_n; }
    [[nodiscard]] __device__ __forceinline__ bool over_query() const { return blocks_.over_query; }
    [[nodiscard]] __device__ __forceinline__ bool over_key() const { return blocks_.over_key; }

private:
    __device__ __forceinline__ void place(int index)
    {
        key_block_ = index % blocks_.key_blocks;
        index /= blocks_.key_blocks;
        query_block_ = index % blocks_.query_blocks;
        index /= blocks_.query_blocks;
        head_ = index % blocks_.heads;
        batch_ = index / blocks_.heads;
    }

    __device__ __forceinline__ void advance()
    {
        if (++key_block_ < blocks_.key_blocks) {
            return;
        }
        key_block_ = 0;
        if (++query_block_ < blocks_.query_blocks) {
            return;
        }
        query_block_ = 0;
        if (++head_ == blocks_.heads) {
            head_ = 0;
            ++batch_;
        }
    }

    template <class Tile>
    __device__ __forceinline__ void for_tiles(const Tile& f)
    {
        constexpr int block_m = Shape::block_m, block_n = Shape::block_n;
        const int last_batch = blocks_.over_batch ? p_.batch : batch_ + 1;
        const int last_head = blocks_.over_head ? p_.heads_q : head_ + 1;
        for (int batch = batch_; batch < last_batch; ++batch) {
            set_batch(batch);
            const int q_len = tile_.band.q_len;
            const int last_row = blocks_.over_query ? q_len : min(first_query() + block_m, q_len);
            for (int head = head_; head < last_head; ++head) {
                for (int row = first_query(); row < last_row; row += block_m) {
                    const Range seen = tile_.band.keys(row, min(row + block_m, q_len));
                    const int first = blocks_.over_key ? seen.begin / block_n * block_n : first_key();
                    const int last = blocks_.over_key ? seen.end : min(first + block_n, seen.end);
                    if (first + block_n <= seen.begin) {
                        continue;
                    }
                    for (int key = first; key < last; key += block_n) {
                        set_rows(head, row);
                        tile_.j0 = key;
                        f(tile_);
                        tile_.has_new_queries = false;
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void set_batch(int batch)
    {
        if (batch != tile_.batch) {
            const offload::Sequence sequence = offload::sequence(p_, batch);
            tile_.batch = batch;
            tile_.q_start = static_cast<int>(sequence.q_start);
            tile_.k_start = static_cast<int>(sequence.k_start);
            tile_.band = offload::band_of(p_, sequence);
            tile_.has_new_queries = true;
        }
    }
    __device__ __forceinline__ void set_rows(int head, int row)
    {
        tile_.has_new_queries |= head != tile_.head || row != tile_.i0;
        if (tile_.has_new_queries) {
            tile_.head = head;
            tile_.head_kv = head / (p_.heads_q / p_.heads_kv);
            tile_.i0 = row;
        }
    }

    const Params& p_;
    const offload::BiasBlocks blocks_;
    int batch_ = 0, head_ = 0, query_block_ = 0, key_block_ = 0;
    BiasTile tile_;
};

} // namespace flashomp::cuda
