// A row or a trial without a time keeps what was thrown, and the command line throws the same kind again.
#include "failure.hpp"

#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace flashomp::bench {
namespace {

template <class Thrown>
Failure failure_from(const Thrown& thrown)
{
    Failure failure;
    try {
        throw thrown;
    } catch (...) {
        failure.take_thrown("out of memory.");
    }
    return failure;
}

TEST(Failure, KeepsTheKindOfWhatWasThrown)
{
    const Failure input = failure_from(NotBuilt("not there."));
    EXPECT_EQ(input.failure, "not there.");
    EXPECT_THROW(input.throw_again(), Error);
    const Failure run = failure_from(RunFailure("no launch."));
    EXPECT_EQ(run.failure, "no launch.");
    EXPECT_THROW(run.throw_again(), RunFailure);
    const Failure memory = failure_from(std::bad_alloc());
    EXPECT_EQ(memory.failure, "out of memory.");
    EXPECT_THROW(memory.throw_again(), RunFailure);
    EXPECT_THROW(static_cast<void>(failure_from(std::logic_error("a mistake"))), std::logic_error);
}

} // namespace
} // namespace flashomp::bench
