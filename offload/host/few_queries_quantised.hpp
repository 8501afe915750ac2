// The host machine for few queries on a cache of 8 bits: a block of rows becomes floats in the crew's memory, which is
// in a core's cache, and from there on is as one that lies in a tensor. So a row is converted once for all queries.
#pragma once

#include "host/few_queries.hpp"

namespace flashomp::offload {

template <class Isa>
class FewQuantisedRowsMachine : public FewRowsMachine<Isa> {
    using Base = FewRowsMachine<Isa>;
    using Blocks = HostMachine<Isa>; ///< whose blocks of streamed rows are floats

public:
    using Base::load;
    using typename Base::Stage;

    struct Stream : Base::Stream {
        typename Blocks::Stream floats;
        FLASHOMP_INLINE Stream& operator[](Stage) { return *this; }
    };

    using Base::Base;

    static constexpr std::int64_t stream_floats(int rows, int depth) { return Blocks::stream_floats(rows, depth); }

    FLASHOMP_INLINE Stream stream(const Tensor& tensor, int depth, StreamUse use)
    {
        Stream block;
        block.floats = Blocks::stream(tensor, depth, use);
        return block;
    }

    void load(Stream& block, const QuantisedRows& rows)
    {
        Blocks::load(block.floats, rows);
        Rows floats;
        floats.data = block.floats.data;
        floats.stride = block.floats.padded;
        floats.count = block.floats.count;
        floats.depth = block.floats.depth;
        Base::load(block, floats);
    }
};

} // namespace flashomp::offload
