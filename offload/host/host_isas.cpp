#include "launch/launch.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace flashomp::offload {

#define FLASHOMP_DECLARE(isa)                                                                                          \
    namespace isa {                                                                                                    \
    Ran run(const Params& params, const Launch& launch);                                                               \
    Ran merge(const MergeParams& params, int threads);                                                                 \
    std::int64_t floats(Element element, bool is_quantised, Pass pass, int resident_rows, int stream_rows,             \
                        int head_dim, int head_dim_v);                                                                 \
    double products(Element element, std::int64_t rounds);                                                             \
    void exp2(const float* x, float* y);                                                                               \
    }
FLASHOMP_DECLARE(baseline)
#if defined(__x86_64__)
FLASHOMP_DECLARE(avx2)
FLASHOMP_DECLARE(avx512)
FLASHOMP_DECLARE(avx512_bf16)
FLASHOMP_DECLARE(amx)
#endif
#undef FLASHOMP_DECLARE

#if defined(__x86_64__)
namespace {

[[maybe_unused]] bool has_avx2()
{
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

[[maybe_unused]] bool has_avx512()
{
    return has_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
           __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0;
}

[[maybe_unused]] bool has_avx512_bf16()
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16") != 0;
}

[[maybe_unused]] bool has_amx()
{
    static const bool granted = [] {
        unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
        constexpr unsigned amx_bf16 = 1U << 22, amx_tile = 1U << 24; // of leaf 7's EDX
        if (!has_avx512_bf16() || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
            (edx & (amx_bf16 | amx_tile)) != (amx_bf16 | amx_tile)) {
            return false;
        }
        // Linux saves the tiles' registers only of processes that ask for them (arch_prctl(2)).
        constexpr int arch_request_permission = 0x1023, tile_data = 18;
        return syscall(SYS_arch_prctl, arch_request_permission, tile_data) == 0;
    }();
    return granted;
}

} // namespace
#endif

namespace {

std::vector<HostIsa> all_isas()
{
    std::vector<HostIsa> all;
#if FLASHOMP_HAS_ISA_amx
    all.push_back({"amx", 16, 256, false, false, has_amx, amx::run, amx::merge, amx::floats, amx::products, amx::exp2});
#endif
#if FLASHOMP_HAS_ISA_avx512_bf16
    all.push_back({"avx512_bf16", 16, 256, true, false, has_avx512_bf16, avx512_bf16::run, avx512_bf16::merge,
                   avx512_bf16::floats, avx512_bf16::products, avx512_bf16::exp2});
#endif
#if FLASHOMP_HAS_ISA_avx512
    all.push_back({"avx512", 16, 256, false, true, has_avx512, avx512::run, avx512::merge, avx512::floats, nullptr,
                   avx512::exp2});
#endif
#if FLASHOMP_HAS_ISA_avx2
    all.push_back({"avx2", 8, 256, false, true, has_avx2, avx2::run, avx2::merge, avx2::floats, nullptr, avx2::exp2});
#endif
#if FLASHOMP_HAS_ISA_baseline
    const auto everywhere = [] { return true; };
    all.push_back({"baseline", 4, 256, false, true, everywhere, baseline::run, baseline::merge, baseline::floats,
                   nullptr, baseline::exp2});
#endif
    return all;
}

} // namespace

const std::vector<HostIsa>& host_isas()
{
    // Never destroyed: a call in an atexit handler asks for them, too.
    static const auto& all = *new std::vector<HostIsa>(all_isas());
    return all;
}

const HostIsa& isa_for(const HostIsa& best, Element element)
{
    const HostIsa* isa = &best;
    while (isa->only_bfloat16 && element != Element::bfloat16) {
        ++isa; // in host_isas(), whose last one has all types
    }
    return *isa;
}

} // namespace flashomp::offload
