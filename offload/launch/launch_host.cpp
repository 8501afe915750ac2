// The passes on host threads. Compiled once for every instruction set, with FLASHOMP_ISA naming it, FLASHOMP_LANES,
// FLASHOMP_REGISTER_ROWS and FLASHOMP_REGISTER_VECTORS describing its registers, and FLASHOMP_PRODUCTS what multiplies.
#include "host/finite.hpp"
#include "launch/pass.hpp"

#define FLASHOMP_ON_VECTORS 0
#define FLASHOMP_ON_PAIRS 1 // AVX-512-BF16: bfloat16
#define FLASHOMP_ON_TILES 2 // AMX-BF16: all element types
#include "host/few_queries.hpp"
#if FLASHOMP_PRODUCTS == FLASHOMP_ON_PAIRS
#include "host/dpbf16.hpp"
#include "host/pairs.hpp"
#elif FLASHOMP_PRODUCTS == FLASHOMP_ON_TILES
#include "host/amx.hpp"
#include "host/pairs.hpp"
#endif

#include <atomic>
#include <omp.h>

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
    static void multiply(float* c, float*, std::ptrdiff_t c_strip, const PairBlock* a, std::ptrdiff_t,
                         const PairBlock* b, std::ptrdiff_t, int m, int n, int k)
    {
        static_assert(terms == 1);
        dpbf16_multiply<adds>(c, c_strip, a, b, m, n, k);
    }
#else
    using Session = AmxSession;
    template <int terms, bool adds>
    static void multiply(float* c, float* low, std::ptrdiff_t c_strip, const PairBlock* a, std::ptrdiff_t plane_a,
                         const PairBlock* b, std::ptrdiff_t plane_b, int m, int n, int k)
    {
        amx_multiply<terms, adds>(c, low, c_strip, a, plane_a, b, plane_b, m, n, k);
    }
#endif
};

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

/// A function of its own: inlined beside the products, it costs them registers.
template <Pass pass>
static __attribute__((noinline)) bool is_finite(const Params& params, const Launch& launch, const WorkItem& work)
{
    return has_finite_results<pass>(params, launch, work);
}

/// Whether all results are finite.
template <class Machine, Pass pass, bool modified, class Keys>
static bool run_pass(const Params& params, const Launch& launch)
{
    static_assert(SummingMachine<Machine> || !std::is_same_v<Keys, StridedKeys>);
    Launch items = launch;
    items.pass = pass == Pass::backward_once ? Pass::backward_key : pass;
    const Work work(params, items);
    std::atomic<std::int64_t> drawn = 0; // not `omp for`, which may hand out items in another order than theirs
    bool finite = true;
#pragma omp parallel num_threads(launch.crews) reduction(&& : finite)
    {
        const int crew = omp_get_thread_num();
        [[maybe_unused]] const Isa::Session session;
        Machine tile(launch.crew_memory + crew * launch.crew_floats, launch.resident_rows, launch.stream_rows);
        if constexpr (pass == Pass::backward_once) {
            tile.take_turns(launch.arrivals);
        }
        if constexpr (std::is_same_v<Machine, FewRowsMachine<Isa>> ||
                      std::is_same_v<Machine, FewRowsMachine<Isa, true>>) {
            tile.spread_over(launch.heads_in_block);
        }
        for (std::int64_t i = drawn++; i < work.items; i = drawn++) {
            run_item<pass, modified, Keys>(tile, params, work, i);
            if constexpr (has_blocks(pass)) {
                finite = is_finite<pass>(params, launch, work.item(i)) && finite;
            }
        }
        if constexpr (pass == Pass::backward_once) { // dQ is whole when all have added to it
#pragma omp barrier
#pragma omp for schedule(static)
            for (int head = 0; head < params.batch * params.heads_q; ++head) {
                finite =
                    has_finite_rows(params, params.dq, head / params.heads_q, head % params.heads_q, params.head_dim) &&
                    finite;
            }
        }
    }
    return finite;
}

/// Whether a block is one of few queries, for which plan() leaves the rows as they are. Others fill vectors.
static bool is_few(Pass pass, int resident_rows)
{
    return pass == Pass::forward && resident_rows % Isa::lanes != 0;
}

/// The rows of so many neighbouring heads as those of one, whose key head is the first of theirs. plan() has seen to it
/// that they lie at one stride, and that each row sees all keys.
static Params with_heads_as_rows(Params p, int heads)
{
    if (p.seqlen_q == 1) {
        p.q.row = p.q.head;
        p.o.row = p.o.head;
    }
    p.heads_q /= heads;
    p.heads_kv /= heads;
    p.seqlen_q *= heads;
    for (Tensor* tensor : {&p.q, &p.k, &p.v, &p.o}) {
        tensor->head *= heads;
    }
    p.lse.head *= heads;
    p.partial_lse.head *= heads;
    p.cache.scale_head *= heads;
    p.causal = Alignment::none;
    return p;
}

static Ran run_few_queries(const Params& params, const Launch& launch)
{
    const bool has_pages = params.cache.pages != nullptr;
    const auto run_on = [&]<class Machine, class Keys>(const Params& p, const Launch& items) {
        return Ran{false, p.is_modified ? run_pass<Machine, Pass::forward, true, Keys>(p, items)
                                        : run_pass<Machine, Pass::forward, false, Keys>(p, items)};
    };
    const auto run = [&](const Params& p, const Launch& items) {
        if (p.cache.is_quantised()) {
            return run_on.template operator()<FewRowsMachine<Isa, true>, QuantisedKeys>(p, items);
        }
        return has_pages ? run_on.template operator()<FewRowsMachine<Isa>, PagedKeys>(p, items)
                         : run_on.template operator()<FewRowsMachine<Isa>, CachedKeys>(p, items);
    };
    if (launch.heads_in_block == 1) {
        return run(params, launch);
    }
    Launch items = launch;
    items.resident_rows *= launch.heads_in_block;
    return run(with_heads_as_rows(params, launch.heads_in_block), items);
}

Ran run(const Params& params, const Launch& launch)
{
    if (is_few(launch.pass, launch.resident_rows)) {
        return run_few_queries(params, launch);
    }
    Ran ran;
    const auto run_on = [&]<class Machine, Pass pass, bool modified, class Keys = StridedKeys>()
    {
        ran.all_is_finite = run_pass<Machine, pass, modified, Keys>(params, launch);
    };
    const auto run_forward = [&]<class Machine, class Keys>() {
        params.is_modified ? run_on.template operator()<Machine, Pass::forward, true, Keys>()
                           : run_on.template operator()<Machine, Pass::forward, false, Keys>();
    };
    const bool has_pages = params.cache.pages != nullptr; // else CachedKeys, whether or not there are lengths
    for_machine(params.element, [&]<class Machine>() {
        if (params.cache.is_quantised()) { // in forward alone
            return run_forward.template operator()<Machine, QuantisedKeys>();
        }
        if (launch.pass == Pass::forward) {
            return has_pages ? run_forward.template operator()<Machine, PagedKeys>()
                             : run_forward.template operator()<Machine, CachedKeys>();
        }
        const auto run_here = [&]<Pass pass, bool modified>() {
            if constexpr (pass != Pass::forward) { // which has run
                run_on.template operator()<Machine, pass, modified>();
            }
        };
        if constexpr (OnePassMachine<Machine>) {
            if (launch.pass == Pass::backward_start || launch.pass == Pass::backward_once) {
                return for_one_pass(launch.pass, params.is_modified, run_here);
            }
        }
        for_pass(launch.pass, params.is_modified, run_here);
    });
    return ran;
}

Ran merge(const MergeParams& params, int threads)
{
    const std::int64_t units = merge_units(params);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t unit = 0; unit < units; ++unit) {
        HostTile<Isa> tile(nullptr, merge_unit_rows(params), 0); // needs no memory of its own
        merge_rows(tile, params, unit);
    }
    return {};
}

std::int64_t floats(Element element, Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v)
{
    if (is_few(pass, resident_rows)) {
        return crew_floats<FewRowsMachine<Isa>>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
    }
    return for_machine(element, [&]<class Machine>() {
        return crew_floats<Machine>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
    });
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
    using Vector = Lanes<Isa>::Vector;
    for (int i = 0; i < 16; i += Isa::lanes) {
        Vector value;
        __builtin_memcpy(&value, x + i, sizeof value);
        value = Lanes<Isa>::exp2(value);
        __builtin_memcpy(y + i, &value, sizeof value);
    }
}

} // namespace flashomp::offload::FLASHOMP_ISA
