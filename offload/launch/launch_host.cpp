// The passes on host threads. Compiled once for every instruction set, with FLASHOMP_ISA naming it, FLASHOMP_LANES,
// FLASHOMP_REGISTER_ROWS and FLASHOMP_REGISTER_VECTORS describing its registers, and FLASHOMP_PRODUCTS what multiplies.
#include "launch/host_passes.hpp"

#define FLASHOMP_ON_VECTORS 0
#define FLASHOMP_ON_PAIRS 1 // AVX-512-BF16: bfloat16
#define FLASHOMP_ON_TILES 2 // AMX-BF16: all element types
#if FLASHOMP_PRODUCTS == FLASHOMP_ON_PAIRS
#include "host/dpbf16.hpp"
#include "host/pairs.hpp"
#elif FLASHOMP_PRODUCTS == FLASHOMP_ON_TILES
#include "host/amx.hpp"
#include "host/pairs.hpp"
#endif

namespace flashomp::offload::FLASHOMP_ISA {

// Its own type, so that no two instruction sets share an instantiation the linker could merge.
struct Isa {
    static constexpr int lanes = FLASHOMP_LANES;
    static constexpr int register_rows = FLASHOMP_REGISTER_ROWS;
    static constexpr int register_vectors = FLASHOMP_REGISTER_VECTORS;
#if FLASHOMP_PRODUCTS == FLASHOMP_ON_VECTORS
    struct Session {};
#elif FLASHOMP_PRODUCTS == FLASHOMP_ON_PAIRS
    struct Session {};
    template <int terms, bool adds>
    static FLASHOMP_OUT_OF_LINE void multiply(float* c, float*, std::ptrdiff_t c_strip, const PairBlock* a,
                                              std::ptrdiff_t, const PairBlock* b, std::ptrdiff_t, int m, int n, int k)
    {
        static_assert(terms == 1);
        dpbf16_multiply<adds>(c, c_strip, a, b, m, n, k);
    }
#else
    using Session = AmxSession;
    template <int terms, bool adds>
    static FLASHOMP_OUT_OF_LINE void multiply(float* c, float* low, std::ptrdiff_t c_strip, const PairBlock* a,
                                              std::ptrdiff_t plane_a, const PairBlock* b, std::ptrdiff_t plane_b, int m,
                                              int n, int k)
    {
        amx_multiply<terms, adds>(c, low, c_strip, a, plane_a, b, plane_b, m, n, k);
    }
#endif

    /// Calls f<Machine>() for the machine of an element type.
    template <class F>
    static auto for_machine([[maybe_unused]] Element element, F f)
    {
#if FLASHOMP_PRODUCTS == FLASHOMP_ON_VECTORS
        return f.template operator()<HostMachine<Isa>>();
#else
#if FLASHOMP_PRODUCTS == FLASHOMP_ON_TILES
        if (element == Element::float32) {
            return f.template operator()<PairsMachine<Isa, Element::float32>>();
        }
        if (element == Element::float16) {
            return f.template operator()<PairsMachine<Isa, Element::float16>>();
        }
#endif
        return f.template operator()<PairsMachine<Isa, Element::bfloat16>>();
#endif
    }
};

using Passes = HostPasses<Isa>;

Ran run(const Params& params, const Launch& launch)
{
    return Passes::run(params, launch);
}

Ran merge(const MergeParams& params, int threads)
{
    return Passes::merge(params, threads);
}

std::int64_t floats(Element element, Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v)
{
    return Passes::floats(element, pass, resident_rows, stream_rows, head_dim, head_dim_v);
}

#if FLASHOMP_PRODUCTS != FLASHOMP_ON_VECTORS
double products([[maybe_unused]] Element element, std::int64_t rounds)
{
#if FLASHOMP_PRODUCTS == FLASHOMP_ON_TILES
    const AmxSession session;
    return amx_products(rounds) / (element == Element::float32 ? 6 : (element == Element::float16 ? 3.5 : 1));
#else
    return dpbf16_products(rounds);
#endif
}
#endif

void exp2(const float* x, float* y)
{
    Passes::exp2(x, y);
}

} // namespace flashomp::offload::FLASHOMP_ISA
