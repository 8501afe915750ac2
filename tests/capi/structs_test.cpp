// Structs of the C interface: DLPack's layout, sizes of other versions, and defaults.
#include "c_call.hpp"
#include "sized.hpp"
#include "status.hpp"

#include "support/attention_case.hpp"

#include "flashomp/error.hpp"

#include <array>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace flashomp::testing {
namespace {

// dlpack.h 1.0, as far as a DLTensor goes.
struct DLDevice {
    std::int32_t device_type; // an enum with this type
    std::int32_t device_id;
};
struct DLDataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};
struct DLTensor {
    void* data;
    DLDevice device;
    std::int32_t ndim;
    DLDataType dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
};

static_assert(sizeof(DLTensor) == sizeof(flashomp_tensor) && alignof(DLTensor) == alignof(flashomp_tensor));
static_assert(offsetof(DLTensor, data) == offsetof(flashomp_tensor, data));
static_assert(offsetof(DLTensor, device) == offsetof(flashomp_tensor, device));
static_assert(offsetof(DLDevice, device_id) == offsetof(flashomp_device, device_id));
static_assert(offsetof(DLTensor, ndim) == offsetof(flashomp_tensor, ndim));
static_assert(offsetof(DLTensor, dtype) == offsetof(flashomp_tensor, dtype));
static_assert(offsetof(DLDataType, bits) == offsetof(flashomp_dtype, bits));
static_assert(offsetof(DLDataType, lanes) == offsetof(flashomp_dtype, lanes));
static_assert(offsetof(DLTensor, shape) == offsetof(flashomp_tensor, shape));
static_assert(offsetof(DLTensor, strides) == offsetof(flashomp_tensor, strides));
static_assert(offsetof(DLTensor, byte_offset) == offsetof(flashomp_tensor, byte_offset));

TEST(CApiStructs, DefaultsAreThoseOfCpp)
{
    flashomp_options options;
    std::memset(&options, 0xff, sizeof options);
    flashomp_options_init(&options, sizeof options);
    EXPECT_EQ(options.size, sizeof options);
    CCall expected(Options{});
    expected.options.scale = 0.0; // of no account
    EXPECT_EQ(std::memcmp(&options, &expected.options, sizeof options), 0);
    EXPECT_EQ(options.window_left, -1);
    EXPECT_EQ(options.window_right, -1);
}

TEST(CApiStructs, InitKeepsWithinTheCallersStruct)
{
    struct Larger {
        flashomp_options options;
        std::array<unsigned char, 16> later, guard;
    } larger;
    std::memset(&larger, 0xff, sizeof larger);
    flashomp_options_init(&larger.options, offsetof(Larger, guard));
    EXPECT_EQ(larger.options.size, offsetof(Larger, guard));
    EXPECT_EQ(larger.later, (std::array<unsigned char, 16>{}));
    EXPECT_EQ(larger.guard[0], 0xff);
    std::memset(&larger, 0xff, sizeof larger);
    flashomp_options_init(&larger.options, offsetof(flashomp_options, causal));
    EXPECT_EQ(larger.options.size, offsetof(flashomp_options, causal));
    EXPECT_EQ(larger.options.has_scale, 0);
    EXPECT_EQ(larger.options.causal, -1) << "not of this caller's struct";
    std::size_t none = 7;
    flashomp_options_init(reinterpret_cast<flashomp_options*>(&none), 4);
    EXPECT_EQ(none, 7U);
}

TEST(CApiStructs, OfALaterVersionAreTakenWhereTheirMembersAreNotGiven)
{
    struct Later {
        flashomp_options options;
        std::int64_t unknown;
    } later{};
    AttentionCase made({1, 1, 1, 3, 3, 8, 8}, DType::float32, 1);
    made.poison_outputs();
    CCall call(made.forward_args(), {});
    later.options = call.options;
    later.options.size = sizeof later;
    EXPECT_EQ(flashomp_forward(&call.forward, &later.options, nullptr), FLASHOMP_OK) << flashomp_last_error();
    later.unknown = 1;
    EXPECT_EQ(flashomp_forward(&call.forward, &later.options, nullptr), FLASHOMP_BAD_ARGUMENT);
    EXPECT_NE(std::string(flashomp_last_error()).find("options->size was 384 with members beyond byte 376"),
              std::string::npos)
        << flashomp_last_error();

    struct LaterReport {
        flashomp_report report;
        std::int64_t unknown;
    } report{};
    flashomp_report_init(&report.report, sizeof report);
    report.unknown = 5; // an output: whatever it holds
    EXPECT_EQ(flashomp_forward(&call.forward, nullptr, &report.report), FLASHOMP_OK) << flashomp_last_error();
    EXPECT_EQ(report.report.size, sizeof report);
    EXPECT_EQ(report.unknown, 5);
    EXPECT_STRNE(report.report.machine, "");
}

/// A struct that has grown twice.
struct Grown {
    std::size_t size;
    std::int64_t first, second, third;
};
constexpr std::array<std::size_t, 3> sizes_of_grown{16, 24, 32};
constexpr capi::Versions<Grown> versions_of_grown{"grown", sizes_of_grown};

TEST(CApiStructs, OfAnEarlierVersionHaveDefaultsForLaterMembers)
{
    const Grown defaults{sizeof(Grown), -1, -2, -3};
    Grown given{sizeof(Grown), 1, 2, 3};
    for (const auto& [size, second, third] : {std::array{16, -2, -3}, std::array{24, 2, -3}, std::array{32, 2, 3}}) {
        given.size = static_cast<std::size_t>(size);
        const Grown read = capi::read_struct("grown", &given, versions_of_grown, defaults);
        EXPECT_EQ(read.first, 1);
        EXPECT_EQ(read.second, second);
        EXPECT_EQ(read.third, third);
    }
    for (const std::size_t size : std::array<std::size_t, 6>{0, 8, 15, 17, 20, 31}) {
        given.size = size;
        EXPECT_THROW(static_cast<void>(capi::read_struct("grown", &given, versions_of_grown, defaults)), Error) << size;
    }
}

TEST(CApiStatus, TellsWhatWasThrown)
{
    const auto status_of = [](auto thrown) { return capi::guarded([&] { throw thrown; }); };
    EXPECT_EQ(status_of(Error("a.")), FLASHOMP_BAD_ARGUMENT);
    EXPECT_STREQ(flashomp_last_error(), "a.");
    EXPECT_EQ(status_of(NotBuilt("b.")), FLASHOMP_BAD_ARGUMENT);
    EXPECT_EQ(status_of(RunFailure("c.")), FLASHOMP_RUN_FAILURE);
    EXPECT_STREQ(flashomp_last_error(), "c.");
    EXPECT_EQ(status_of(std::bad_alloc()), FLASHOMP_OUT_OF_MEMORY);
    EXPECT_EQ(status_of(std::logic_error("d")), FLASHOMP_UNEXPECTED);
    EXPECT_NE(std::string(flashomp_last_error()).find(": d"), std::string::npos);
    EXPECT_EQ(status_of(42), FLASHOMP_UNEXPECTED);
    EXPECT_EQ(status_of(Error(std::string(5000, 'x'))), FLASHOMP_BAD_ARGUMENT);
    EXPECT_EQ(std::strlen(flashomp_last_error()), 1023U);
}

} // namespace
} // namespace flashomp::testing
