// The tensor-core machine for rows of up to 576 elements, in the forward pass: multi-head latent attention has them,
// 576 in keys and 512 in values. An accumulator of 512 columns would take 256 of a lane's 255 registers. So a crew sums
// 256 columns of values at a time and goes over the keys once for each of these parts, with the scores computed
// anew: 1.5 times the products at 576 and 512. Rows of queries stay in team memory, whole, and so does one block of
// keys.
#pragma once

#include "nvidia/tensor_machine.hpp"

#pragma omp declare target

namespace flashomp::offload {

template <class Config>
class LatentMachine : public TensorMachine<Config> {
    using Machine = TensorMachine<Config>;
    using Tile = TensorTile<Config>;
    using typename Tile::Block, typename Tile::ValueBlock;

public:
    enum : int { depth_v = Config::depth_v, threads = 32 * Config::warps };

    using Machine::load;
    using typename Machine::Accumulator, typename Machine::Stage;

    struct StreamBlock : Machine::StreamBlock {
        bool is_values; ///< a constant once all is inlined
    };
    struct Stream {
        std::uint32_t address;
        bool is_values;
        FLASHOMP_INLINE StreamBlock operator[](Stage) const { return {{address}, is_values}; } // one place each
    };

    /// first_column: of the values and results that this run of a block is about, depth_v of them.
    FLASHOMP_INLINE LatentMachine(const void* team_memory, int first_column)
        : Machine(team_memory), first_column_(first_column)
    {
    }

    FLASHOMP_INLINE Stream stream(const Tensor&, int, StreamUse use)
    {
        const bool is_values = use == StreamUse::sums;
        return {this->take(is_values ? int{ValueBlock::bytes} : int{Block::bytes}), is_values};
    }

    /// AnyRows: Rows or PagedRows.
    template <class AnyRows>
    FLASHOMP_INLINE void load(StreamBlock block, const AnyRows& rows)
    {
        if (block.is_values) {
            copy_in<ValueBlock, threads>(block.address, columns_of(rows), this->thread());
        } else {
            copy_in<Block, threads>(block.address, rows, this->thread());
        }
    }

    template <class F>
    FLASHOMP_INLINE void store(const Accumulator& a, const Rows& rows, const F& f)
    {
        Machine::store(a, columns_of(rows), f);
    }

private:
    FLASHOMP_INLINE Rows columns_of(Rows rows) const
    {
        const int left = rows.depth - first_column_;
        rows.offset += first_column_;
        rows.depth = left < depth_v ? left : depth_v;
        return rows;
    }

    FLASHOMP_INLINE PagedRows columns_of(PagedRows rows) const
    {
        rows.page0 = columns_of(rows.page0);
        return rows;
    }

    int first_column_;
};

/// A block of the forward pass, for all columns of its values.
template <class Machine, bool modified, class Keys>
FLASHOMP_INLINE void latent_block(void* team_memory, const Params& p, const WorkItem& work)
{
    FLASHOMP_UNROLL(1)
    for (int first = 0; first < p.head_dim_v; first += Machine::depth_v) {
        Machine tile(team_memory, first);
        forward_block<modified, Keys>(tile, p, work);
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
