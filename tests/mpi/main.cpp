// GoogleTest under mpirun: every rank runs every test, and the program fails where one of them fails on any rank. Rank
// 0 prints; what fails elsewhere names its rank.
#include "fake_device.hpp"
#include "on_ranks.hpp"

#include "flashomp/device.hpp"

#include <cstdio>
#include <gtest/gtest.h>

namespace {

/// Prints failures alone, with the rank.
class OfRank : public testing::EmptyTestEventListener {
public:
    explicit OfRank(int rank) : rank_(rank) {}
    void OnTestStart(const testing::TestInfo& info) override { test_ = &info; }
    void OnTestPartResult(const testing::TestPartResult& result) override
    {
        if (result.failed()) {
            std::fprintf(stderr, "rank %d, %s.%s: %s\n", rank_, test_ != nullptr ? test_->test_suite_name() : "",
                         test_ != nullptr ? test_->name() : "", result.message());
        }
    }

private:
    int rank_;
    const testing::TestInfo* test_ = nullptr;
};

} // namespace

int main(int argc, char** argv)
{
    MPI_Init(&argc, &argv);
    using flashomp::testing::TestDevice;
    if (flashomp::testing::test_device() == TestDevice::fake) {
        flashomp::testing::install_fake_device();
    } else if (flashomp::testing::test_device() == TestDevice::gpu && flashomp::devices().empty()) {
        std::puts("skipped: no GPU on this machine");
        MPI_Finalize();
        return 0;
    }
    testing::InitGoogleTest(&argc, argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0) {
        testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new OfRank(rank));
    }
    int failed = RUN_ALL_TESTS();
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
    flashomp::testing::wait_for(request);
    MPI_Finalize();
    return failed;
}
