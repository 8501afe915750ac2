// The passes on host threads, for one instruction set: launch_host.cpp compiles them for the library's, a program with
// a score of its own for the one that it is compiled for (host/own_isa.hpp).
#pragma once

#include "host/few_queries.hpp"
#include "host/finite.hpp"
#include "host/merge_on_host.hpp"
#include "launch/pass.hpp"

#include <atomic>
#include <omp.h>

namespace flashomp::offload {

/// Isa: what HostTile and MatrixProduct need, and
/// - Session, which each thread has during a pass;
/// - for_machine(element, f), which calls f<Machine>() for the machine of an element type;
/// - where Modification is not Unmodified, a program's own score.
/// Each instruction set has an Isa of its own, so that no two share an instantiation which the linker could merge.
template <class Isa>
class HostPasses {
public:
    static Ran run(const Params& params, const Launch& launch)
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
            with_modified(params.is_modified, [&]<bool modified>() {
                run_on.template operator()<Machine, Pass::forward, modified, Keys>();
            });
        };
        const bool has_pages = params.cache.pages != nullptr; // else CachedKeys, whether or not there are lengths
        Isa::for_machine(params.element, [&]<class Machine>() {
            if (params.cache.is_quantised()) { // in forward alone
                return run_forward.template operator()<Machine, QuantisedKeys>();
            }
            if (launch.pass == Pass::forward) {
                return has_pages ? run_forward.template operator()<Machine, PagedKeys>()
                                 : run_forward.template operator()<Machine, CachedKeys>();
            }
            const auto run_here = [&]<Pass pass, bool modified>() {
                constexpr bool has_scores = pass != Pass::backward_start && pass != Pass::backward_sink;
                if constexpr (pass != Pass::forward && (modified || !is_own || !has_scores)) { // forward has run
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

    static Ran merge(const MergeParams& params, int threads)
    {
        const std::int64_t units = merge_units(params);
#pragma omp parallel for num_threads(threads) schedule(static)
        for (std::int64_t unit = 0; unit < units; ++unit) {
            merge_rows_on_host(params, unit);
        }
        return {};
    }

    static std::int64_t floats(Element element, Pass pass, int resident_rows, int stream_rows, int head_dim,
                               int head_dim_v)
    {
        if (is_few(pass, resident_rows)) {
            return crew_floats<FewRowsMachine<Isa>>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
        }
        return Isa::for_machine(element, [&]<class Machine>() {
            return crew_floats<Machine>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
        });
    }

    /// 2^x of 16 floats.
    static void exp2(const float* x, float* y)
    {
        using Vector = typename Lanes<Isa>::Vector;
        for (int i = 0; i < 16; i += Isa::lanes) {
            Vector value;
            __builtin_memcpy(&value, x + i, sizeof value);
            value = Lanes<Isa>::exp2(value);
            __builtin_memcpy(y + i, &value, sizeof value);
        }
    }

private:
    /// A program's own score: it is in the modified passes alone.
    static constexpr bool is_own = !std::is_same_v<ModificationOf<Isa>, Unmodified>;

    template <class F>
    static auto with_modified(bool modified, F f)
    {
        if constexpr (!is_own) {
            if (!modified) {
                return f.template operator()<false>();
            }
        }
        return f.template operator()<true>();
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
            [[maybe_unused]] const typename Isa::Session session;
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
                    finite = has_finite_rows(params, params.dq, head / params.heads_q, head % params.heads_q,
                                             params.head_dim) &&
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

    /// The rows of so many neighbouring heads as those of one, whose key head is the first of theirs. plan() has seen
    /// to it that they lie at one stride, and that each row sees all keys.
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
        p.sink.head *= heads;
        p.lse.head *= heads;
        p.partial_lse.head *= heads;
        p.cache.scale_head *= heads;
        p.causal = Alignment::none;
        return p;
    }

    static Ran run_few_queries(const Params& params, const Launch& launch)
    {
        using Machine = FewRowsMachine<Isa>;
        const auto run_on = [&]<class AnyMachine, class Keys>(const Params& p, const Launch& items) {
            return with_modified(p.is_modified, [&]<bool modified>() {
                return Ran{false, run_pass<AnyMachine, Pass::forward, modified, Keys>(p, items)};
            });
        };
        const auto run = [&](const Params& p, const Launch& items) {
            if (p.cache.is_quantised()) {
                return run_on.template operator()<FewRowsMachine<Isa, true>, QuantisedKeys>(p, items);
            }
            return params.cache.pages != nullptr ? run_on.template operator()<Machine, PagedKeys>(p, items)
                                                 : run_on.template operator()<Machine, CachedKeys>(p, items);
        };
        if (launch.heads_in_block == 1) {
            return run(params, launch);
        }
        Launch items = launch;
        items.resident_rows *= launch.heads_in_block;
        return run(with_heads_as_rows(params, launch.heads_in_block), items);
    }
};

} // namespace flashomp::offload
