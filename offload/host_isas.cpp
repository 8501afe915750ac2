#include "launch.hpp"

namespace flashomp::offload {

#define FLASHOMP_DECLARE(isa)                                                                                          \
    namespace isa {                                                                                                    \
    Ran run(const Params& params, const Launch& launch);                                                               \
    std::int64_t floats(Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v);                  \
    }
FLASHOMP_DECLARE(baseline)
#if defined(__x86_64__)
FLASHOMP_DECLARE(avx2)
FLASHOMP_DECLARE(avx512)
#endif
#undef FLASHOMP_DECLARE

const std::vector<HostIsa>& host_isas()
{
    static const std::vector<HostIsa> all = {
#if defined(__x86_64__)
        {"avx512", 16,
         [] {
             return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                    __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                    __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
         },
         avx512::run, avx512::floats},
        {"avx2", 8, [] { return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0; }, avx2::run,
         avx2::floats},
#endif
        {"baseline", 4, [] { return true; }, baseline::run, baseline::floats},
    };
    return all;
}

} // namespace flashomp::offload
