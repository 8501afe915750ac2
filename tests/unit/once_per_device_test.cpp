// What each device needs once, with a count in the place of CUDA's call.
#include "cuda/once_per_device.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace flashomp::cuda {
namespace {

enum Status { success = 0, failure = 1 };

TEST(OncePerDevice, EveryDeviceIsSetOnce)
{
    OncePerDevice once;
    std::vector<int> set;
    for (const int device : {0, 1, 0, 1, 63, 63}) {
        EXPECT_EQ(once(device,
                       [&] {
                           set.push_back(device);
                           return success;
                       }),
                  success);
    }
    EXPECT_EQ(set, (std::vector<int>{0, 1, 63}));
}

TEST(OncePerDevice, AFailureIsReturnedAndTriedAgain)
{
    OncePerDevice once;
    int calls = 0;
    const auto fail_first = [&] { return ++calls == 1 ? failure : success; };
    EXPECT_EQ(once(1, fail_first), failure);
    EXPECT_EQ(once(1, fail_first), success);
    EXPECT_EQ(once(1, fail_first), success);
    EXPECT_EQ(calls, 2);
}

TEST(OncePerDevice, ADeviceBeyondTheWordIsSetEachTime)
{
    OncePerDevice once;
    int calls = 0;
    for (int time = 0; time < 3; ++time) {
        once(64, [&] {
            ++calls;
            return success;
        });
    }
    EXPECT_EQ(calls, 3);
}

TEST(OncePerDevice, NoThreadGoesOnBeforeItsDeviceIsSet)
{
    constexpr int devices = 2, threads = 8, rounds = 50;
    for (int round = 0; round < rounds; ++round) {
        OncePerDevice once;
        std::array<std::atomic<int>, devices> begun{}, ended{};
        std::atomic<int> early = 0, waiting = 0;
        std::vector<std::thread> callers;
        for (int thread = 0; thread < threads; ++thread) {
            callers.emplace_back([&, device = thread % devices, at = static_cast<std::size_t>(thread % devices)] {
                ++waiting;
                while (waiting < threads) { // all at the same time
                    std::this_thread::yield();
                }
                once(device, [&] {
                    ++begun.at(at);
                    std::this_thread::yield();
                    ++ended.at(at);
                    return success;
                });
                early += ended.at(at) == 0 ? 1 : 0;
            });
        }
        for (std::thread& caller : callers) {
            caller.join();
        }
        for (const std::atomic<int>& count : begun) {
            EXPECT_EQ(count, 1);
        }
        EXPECT_EQ(early, 0);
    }
}

} // namespace
} // namespace flashomp::cuda
