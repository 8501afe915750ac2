// A target region that falls back to the host: it says so, and its caller refuses what it has not computed.
#include "launch/region.hpp"
#include "place.hpp"

#include "flashomp/error.hpp"

#include <gtest/gtest.h>

namespace flashomp::offload {
namespace {

TEST(Region, ThatWasSentToADeviceAndIsOnTheHostSaysSo)
{
    FellBack fell_back;
    EXPECT_TRUE(is_where_sent(fell_back.flag(), false)); // this is the host
    EXPECT_TRUE(fell_back);                              // of a call for the host nobody asks
    FellBack again;
    EXPECT_FALSE(is_where_sent(again.flag(), true));
    EXPECT_TRUE(again);
}

TEST(Region, ResultsOfKernelsThatFellBackAreRefused)
{
    Place gpu;
    gpu.hardware.is_device = true;
    gpu.name = "NVIDIA X (device 0)";
    EXPECT_NO_THROW(expect_where_sent(gpu, true));
    try {
        expect_where_sent(gpu, false);
        FAIL() << "they were taken";
    } catch (const RunFailure& failure) {
        EXPECT_STREQ(failure.what(),
                     "the call was sent to NVIDIA X (device 0), but its kernels report that they ran on the host.");
    }
    EXPECT_NO_THROW(expect_where_sent(Place{}, false)); // a call for the host
}

} // namespace
} // namespace flashomp::offload
