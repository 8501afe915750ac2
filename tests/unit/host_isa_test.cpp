// The host machine's instruction sets: that the one asked for is the one that runs, and the lanes' own exp2.
#include "flashomp/device.hpp"
#include "flashomp/error.hpp"

#include "launch/launch.hpp"
#include "support/attention_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <omp.h>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::testing {
namespace {

/// FLASHOMP_HOST_ISA for as long as it lives.
class ForcedIsa {
public:
    explicit ForcedIsa(std::string_view name) { setenv("FLASHOMP_HOST_ISA", std::string(name).c_str(), 1); }
    ~ForcedIsa() { unsetenv("FLASHOMP_HOST_ISA"); }
    ForcedIsa(const ForcedIsa&) = delete;
    ForcedIsa& operator=(const ForcedIsa&) = delete;
};

bool has_isa(std::string_view name)
{
    return std::ranges::any_of(offload::host_isas(),
                               [&](const offload::HostIsa& isa) { return isa.name == name && isa.is_supported(); });
}

Options on_host(int threads)
{
    Options options;
    options.machine = Machine::host;
    options.device.kind = Device::Kind::host;
    options.threads = threads;
    return options;
}

TEST(HostIsa, TheOneNamedRunsWhereItHasTheElementType)
{
    int tried = 0;
    for (const offload::HostIsa& isa : offload::host_isas()) {
        if (!isa.is_supported()) {
            continue;
        }
        const ForcedIsa forced(isa.name);
        EXPECT_EQ(host_isa(), isa.name);
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
            AttentionCase attention({1, 2, 1, 40, 50, 24, 24}, dtype, 41);
            const bool falls_back = isa.name == "avx512_bf16" && dtype != DType::bfloat16;
            const std::string next = has_isa("avx512") ? "avx512" : "avx2";
            const std::string expected = falls_back ? next : std::string(isa.name);
            const auto [first, second] = attention.run(on_host(2));
            EXPECT_EQ(first.machine, "host-" + expected) << name_of(dtype);
            EXPECT_EQ(second.machine, "host-" + expected) << name_of(dtype);
            EXPECT_EQ(host_isa(dtype), expected);
            ++tried;
        }
    }
    EXPECT_GE(tried, 3);
}

TEST(HostIsa, ACpuThatHasOneHasThoseAfterIt)
{
    bool has_better = false;
    for (const offload::HostIsa& isa : offload::host_isas()) {
        EXPECT_TRUE(isa.is_supported() || !has_better) << isa.name;
        has_better = has_better || isa.is_supported();
    }
    EXPECT_TRUE(has_better);
    EXPECT_FALSE(offload::host_isas().back().only_bfloat16);
}

TEST(HostIsa, AnUnknownNameIsAnErrorThatListsThoseThere)
{
    const ForcedIsa forced("mmx");
    try {
        static_cast<void>(host_isa());
        FAIL() << "mmx was taken";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("FLASHOMP_HOST_ISA was 'mmx'"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(std::string(offload::host_isas().back().name)), std::string::npos)
            << error.what();
    }
}

TEST(HostIsa, LanesExp2StaysBelowItsErrorBoundOverItsWholeRange)
{
    for (const offload::HostIsa& isa : offload::host_isas()) {
        if (!isa.is_supported()) {
            continue;
        }
        SCOPED_TRACE(isa.name);
        double worst = 0.0;
        float at = 0.0F;
        std::array<float, 16> x{}, y{};
        const auto check = [&] {
            isa.exp2(x.data(), y.data());
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double exact = std::exp2(double{x[i]});
                const double error = std::abs(y[i] - exact) / exact;
                if (!(error <= worst)) { // a NaN is the worst
                    worst = error;
                    at = x[i];
                }
            }
        };
        // Odd steps in bits, so that the low ones take every value: -125 to -0, then 0 to 127.
        for (const auto& [first, last] : {std::pair{0x80000000U, 0xC2FA0000U}, std::pair{0U, 0x42FE0000U}}) {
            for (std::uint32_t bits = first; bits <= last;) {
                for (float& value : x) {
                    value = std::bit_cast<float>(std::min(bits, last));
                    bits += 379;
                }
                check();
            }
        }
        EXPECT_LT(worst, 2.5e-7) << "at " << at;
    }
}

TEST(HostIsa, LanesExp2OfSpecialValues)
{
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const offload::HostIsa& isa : offload::host_isas()) {
        if (!isa.is_supported()) {
            continue;
        }
        SCOPED_TRACE(isa.name);
        std::array<float, 16> x{-infinity,
                                -1e30F,
                                -125.5F,
                                -std::numeric_limits<float>::quiet_NaN(),
                                0.0F,
                                -0.0F,
                                1.0F,
                                std::bit_cast<float>(0x7FFFFFFFU),
                                std::bit_cast<float>(0xFFC00001U)};
        std::array<float, 16> y{};
        isa.exp2(x.data(), y.data());
        EXPECT_EQ(y[0], 0.0F);
        EXPECT_EQ(y[1], 0.0F);
        EXPECT_EQ(y[2], 0.0F) << "no denormals";
        EXPECT_TRUE(std::isnan(y[3]));
        EXPECT_EQ(y[4], 1.0F);
        EXPECT_EQ(y[5], 1.0F);
        EXPECT_EQ(y[6], 2.0F);
        EXPECT_TRUE(std::isnan(y[7])) << "a GPU's NaN";
        EXPECT_TRUE(std::isnan(y[8]));
        for (int n = -125; n <= 127; ++n) {
            x.fill(static_cast<float>(n));
            isa.exp2(x.data(), y.data());
            EXPECT_EQ(y[15], std::ldexp(1.0F, n));
        }
    }
}

TEST(HostIsa, TilesHoldFloat32ScoresToMoreBitsThanAFloatHas)
{
    if (!has_isa("amx")) {
        GTEST_SKIP() << "this CPU has no AMX tiles";
    }
    const ForcedIsa forced("amx");
    std::map<std::string, std::pair<double, double>> errors; // of all cases: ours, standard attention's
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        AttentionCase attention({1, 2, 1, 100, 90, 48, 40}, DType::float32, seed);
        attention.options.scale = 200.0; // logits of thousands, which a float rounds by up to 2.4e-4
        Options options = on_host(2);
        options.scale = attention.options.scale;
        static_cast<void>(attention.run(options));
        for (const Comparison& result : attention.compare(attention.expected())) {
            EXPECT_TRUE(result.passed()) << result.name << ": " << result.error << " > " << result.bound;
            errors[result.name].first += result.error;
            errors[result.name].second += result.naive_error;
        }
    }
    for (const char* name : {"o", "dq", "dk", "dv"}) { // LSE is a float itself
        EXPECT_LT(errors.at(name).first, 0.5 * errors.at(name).second) << name;
    }
}

TEST(HostThreads, ACallInsideAParallelRegionKeepsToItsThread)
{
    AttentionCase alone({1, 2, 2, 100, 90, 32, 32}, DType::float32, 42);
    static_cast<void>(alone.run(on_host(2)));
    const Results expected = alone.take_results();
    std::array<std::string, 2> ran_on;
    std::array<Results, 2> results;
#pragma omp parallel num_threads(2)
    {
        const auto thread = static_cast<std::size_t>(omp_get_thread_num());
        AttentionCase attention({1, 2, 2, 100, 90, 32, 32}, DType::float32, 42);
        ran_on.at(thread) = attention.run(on_host(0)).first.ran_on;
        results.at(thread) = attention.take_results();
    }
    for (std::size_t thread = 0; thread < 2; ++thread) {
        EXPECT_EQ(ran_on.at(thread), "host (1 thread)");
        expect_same_bits(expected, results.at(thread));
    }
}

} // namespace
} // namespace flashomp::testing
