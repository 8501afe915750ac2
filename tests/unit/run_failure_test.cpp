// What throws RunFailure: the arguments are right, but the machine fails.
#include "support/sanitizers.hpp"
#include "workspace.hpp"

#include "flashomp/error.hpp"
#include "flashomp/version.hpp"

#include <string>
#include <type_traits>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace flashomp {
namespace {

static_assert(!std::is_base_of_v<Error, RunFailure>, "a handler of Error relies on untouched outputs");
static_assert(std::is_base_of_v<std::runtime_error, RunFailure>);

TEST(RunFailure, ScratchMemoryThatTheHostDoesNotHaveIsNoBadInput)
{
#if FLASHOMP_ADDRESS_SANITIZER
    GTEST_SKIP() << "AddressSanitizer ends a process that asks for so much memory";
#endif
    constexpr std::int64_t bytes = std::int64_t{1} << 60;
    try {
        const Workspace workspace(bytes, Space{});
        FAIL() << "the host has " << bytes << " bytes";
    } catch (const RunFailure& failure) {
        EXPECT_EQ(std::string(failure.what()),
                  fmt::format("the call needs {} bytes of scratch memory, but the host has no more.", bytes));
    }
    EXPECT_NO_THROW(Workspace(1000, Space{})); // the next call is as good as any
}

TEST(Version, IsTextAndNumbersThatAgree)
{
#if FLASHOMP_VERSION_MAJOR == 0 && FLASHOMP_VERSION_MINOR < 1
    FAIL() << "0.1.0 was the first version";
#endif
    EXPECT_EQ(fmt::format("{}.{}.{}", FLASHOMP_VERSION_MAJOR, FLASHOMP_VERSION_MINOR, FLASHOMP_VERSION_PATCH),
              FLASHOMP_VERSION);
    EXPECT_STREQ(build_info().version, FLASHOMP_VERSION);
}

} // namespace
} // namespace flashomp
