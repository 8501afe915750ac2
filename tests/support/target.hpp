// Where a test runs: every tile machine this build and this machine have, on the host and on a GPU.
#pragma once

#include "flashomp/attention.hpp"
#include "flashomp/device.hpp"
#include "flashomp/version.hpp"

#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

namespace flashomp::testing {

struct Target {
    std::string name; ///< as a test parameter: letters, digits and _
    Machine machine = Machine::automatic;
    bool is_device = false;
    std::string isa; ///< forced instruction set; empty leaves the choice (the best one)
    Backend backend = Backend::openmp;
};

inline void PrintTo(const Target& target, std::ostream* out)
{
    *out << target.name;
}

/// Whether the environment demands that device code runs on a device.
inline bool device_required()
{
    const char* policy = std::getenv("OMP_TARGET_OFFLOAD");
    return policy != nullptr && std::string(policy) == "MANDATORY";
}

/// Whether this build has the CUDA backend.
inline bool has_cuda()
{
    return std::string_view(build_info().backends).find("cuda") != std::string_view::npos;
}

/// Whether this build has GPU code for a backend.
inline bool is_built(Backend backend)
{
    return backend == Backend::cuda ? has_cuda() : std::string_view(build_info().offload) != "none";
}

inline std::vector<Target> targets()
{
    std::vector<Target> all = {
        {"host_amx", Machine::host, false, "amx"},
        {"host_avx512_bf16", Machine::host, false, "avx512_bf16"},
        {"host_avx512", Machine::host, false, "avx512"},
        {"host_avx2", Machine::host, false, "avx2"},
        {"host_baseline", Machine::host, false, "baseline"},
        {"plain_on_host", Machine::plain, false, ""},
        {"plain_on_device", Machine::plain, true, ""},
        {"device_sm_80", Machine::automatic, true, "sm_80"},
        {"device", Machine::automatic, true, ""},
    };
    if (has_cuda()) {
        all.push_back({"cuda_plain", Machine::plain, true, "", Backend::cuda});
        all.push_back({"cuda_sm_80", Machine::automatic, true, "sm_80", Backend::cuda});
        all.push_back({"cuda_device", Machine::automatic, true, "", Backend::cuda});
    }
    return all;
}

/// What somebody would run: the best instruction set of this host, and the GPU where there is one or must be.
inline std::vector<Target> fast_targets()
{
    std::vector<Target> all = {{"host", Machine::host, false, ""}};
    for (const Backend backend : {Backend::openmp, Backend::cuda}) {
        const bool is_there = !devices(backend).empty() || (device_required() && is_built(backend));
        if (is_there) {
            all.push_back({backend == Backend::cuda ? "cuda_device" : "device", Machine::automatic, true, "", backend});
        }
    }
    return all;
}

/// Skips the test when its target is not on this machine (fails it when a device was required), and afterwards
/// checks every report: a test that ran elsewhere than it says has failed.
class TargetTest : public ::testing::Test {
protected:
    void use(const Target& target)
    {
        target_ = target;
        if (target.is_device) {
            if (devices(target.backend).empty()) {
                ASSERT_FALSE(device_required() && is_built(target.backend))
                    << "OMP_TARGET_OFFLOAD=MANDATORY, but no device answered";
                GTEST_SKIP() << "no GPU on this machine";
            }
            setenv("FLASHOMP_DEVICE_ISA", target.isa.c_str(), 1);
            return;
        }
        setenv("FLASHOMP_HOST_ISA", target.isa.c_str(), 1);
        try {
            static_cast<void>(host_isa());
        } catch (const Error& error) {
            unsetenv("FLASHOMP_HOST_ISA");
            GTEST_SKIP() << error.what();
        }
    }

    void TearDown() override
    {
        unsetenv("FLASHOMP_HOST_ISA");
        unsetenv("FLASHOMP_DEVICE_ISA");
    }

    /// The options with this test's machine and device in them.
    [[nodiscard]] Options on_target(Options options) const
    {
        options.backend = target_.backend;
        options.machine = target_.machine;
        options.device.kind = target_.is_device ? Device::Kind::gpu : Device::Kind::host;
        return options;
    }

    void expect_ran_on_target(const Report& report, DType dtype) const
    {
        EXPECT_EQ(report.on_device, target_.is_device) << report.ran_on;
        EXPECT_EQ(report.backend, target_.backend == Backend::cuda ? "cuda" : "openmp");
        if (target_.is_device && target_.machine == Machine::automatic) { // by dtype, head dim and pass
            EXPECT_TRUE(report.machine.starts_with("hopper") || report.machine.starts_with("tensor") ||
                        report.machine == "plain")
                << report.machine;
            EXPECT_TRUE(target_.isa != "sm_80" || report.machine.find("hopper") == std::string::npos) << report.machine;
            return;
        }
        if (target_.machine == Machine::plain) {
            EXPECT_EQ(report.machine, "plain");
            return;
        }
        std::string isa = target_.isa.empty() ? host_isa(dtype) : target_.isa;
        if (isa == "avx512_bf16" && dtype != DType::bfloat16) { // it has nothing for these
            isa = host_isa(dtype);                              // avx512, or in builds without it the next
        }
        if (target_.isa.empty() && isa == "amx" && dtype == DType::float32) { // backward rather in one pass
            EXPECT_TRUE(report.machine == "host-amx" || report.machine == "host-avx512") << report.machine;
            return;
        }
        EXPECT_EQ(report.machine, "host-" + isa);
    }

    Target target_;
};

/// A test that runs on every target.
class EveryTargetTest : public TargetTest, public ::testing::WithParamInterface<Target> {
protected:
    void SetUp() override { use(GetParam()); }
};

/// A test of the CUDA backend alone; skipped in builds without.
class CudaTest : public TargetTest {
protected:
    void SetUp() override
    {
        if (!has_cuda()) {
            GTEST_SKIP() << "this build has no CUDA backend";
        }
        use({"cuda_device", Machine::automatic, true, "", Backend::cuda});
    }
};

/// Names the instances of a test that runs on every target.
inline std::string target_name(const ::testing::TestParamInfo<Target>& info)
{
    return info.param.name;
}

} // namespace flashomp::testing
