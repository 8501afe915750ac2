// The host machine of a program with a score of its own: on vectors of the instruction set that the program is compiled
// for (-march=native), for all element types.
#pragma once

#include "launch/host_passes.hpp"

namespace flashomp::offload {

/// Own: the program's type, whose functions are part of the passes.
template <class Own>
struct OwnIsa {
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
    static constexpr const char* name = "own-avx512";
    static constexpr int lanes = 16, register_rows = 8, register_vectors = 2;
#elif defined(__AVX2__) && defined(__FMA__)
    static constexpr const char* name = "own-avx2";
    static constexpr int lanes = 8, register_rows = 4, register_vectors = 3;
#else
    static constexpr const char* name = "own-baseline";
    static constexpr int lanes = 4, register_rows = 4, register_vectors = 2;
#endif
    using Modification = Own;
    struct Session {};

    template <class F>
    static auto for_machine(Element /*element*/, F f)
    {
        return f.template operator()<HostMachine<OwnIsa>>();
    }
};

/// As the library describes its own.
template <class Own>
HostIsa own_host()
{
    using Passes = HostPasses<OwnIsa<Own>>;
    HostIsa isa{};
    isa.name = OwnIsa<Own>::name;
    isa.lanes = OwnIsa<Own>::lanes;
    isa.most_rows = 256;
    isa.only_bfloat16 = false;
    isa.has_one_pass = true;
    isa.is_supported = [] { return true; };
    isa.run = Passes::run;
    isa.merge = Passes::merge;
    isa.floats = Passes::floats;
    isa.products = nullptr;
    isa.exp2 = Passes::exp2;
    return isa;
}

} // namespace flashomp::offload
