// Every bad option of the C++ API: one sentence that names it, and outputs left as they were. validate_test.cpp has the
// bad tensors, bad_calls_test.cpp gradients, merge() and dropout_mask().
#include "refusal.hpp"

#include <cmath>

namespace flashomp::testing {
namespace {

struct BadOption {
    const char* name;
    const char* says;
    std::function<void(AttentionCase&)> spoil; ///< changes options, or the tensors that they view
};

void PrintTo(const BadOption& bad, std::ostream* out)
{
    *out << bad.name;
}

/// A view of memory that nobody may read: options are refused for what they say they are.
ConstTensorView shaped(const AttentionCase& attention, DType dtype, std::initializer_list<std::int64_t> shape)
{
    return ConstTensorView::contiguous(attention.q.data(), dtype, shape);
}

constexpr DType f32 = DType::float32;

// The problem has batch 2, heads 4/2, seqlens 20x30, head_dim 16.
std::vector<BadOption> bad_options()
{
    return {
        {"SoftcapNegative", "softcap was -1", [](AttentionCase& c) { c.options.softcap = -1.0; }},
        {"SoftcapNan", "softcap was nan", [](AttentionCase& c) { c.options.softcap = std::nan(""); }},
        {"SoftcapInfinite", "softcap was inf", [](AttentionCase& c) { c.options.softcap = HUGE_VAL; }},
        {"SoftcapBeyondFloat", "softcap was 1e+39", [](AttentionCase& c) { c.options.softcap = 1e39; }},
        {"SoftcapBelowFloat", "softcap was 1e-39", [](AttentionCase& c) { c.options.softcap = 1e-39; }},
        {"DropoutOne", "dropout was 1", [](AttentionCase& c) { c.options.dropout.probability = 1.0; }},
        {"DropoutNegative", "dropout was -0.1", [](AttentionCase& c) { c.options.dropout.probability = -0.1; }},
        {"DropoutNan", "dropout was nan", [](AttentionCase& c) { c.options.dropout.probability = std::nan(""); }},
        {"WindowLeft", "window left was -2", [](AttentionCase& c) { c.options.window.left = -2; }},
        {"ScaleNan", "scale was nan", [](AttentionCase& c) { c.options.scale = std::nan(""); }},
        {"ScaleBeyondFloat", "scale was 1e+39", [](AttentionCase& c) { c.options.scale = 1e39; }},
        {"ScaleNegativeBeyondFloat", "scale was -1e+39", [](AttentionCase& c) { c.options.scale = -1e39; }},
        {"ScaleBelowFloat", "scale was 1e-46", [](AttentionCase& c) { c.options.scale = 1e-46; }},
        {"PositionsOfOtherRows", "positions_q has 19 rows but q has 20",
         [](AttentionCase& c) {
             c.options.positions_q = {40, {{{0, 10}, {11, 9}}}};
         }},
        {"PositionsOfOtherKeys", "positions_k has 40 rows but k has 30",
         [](AttentionCase& c) {
             c.options.positions_k = {40, {{{0, 40}, {}}}};
         }},
        {"PositionsBeyondTheWhole", "positions_k has a stretch of 10 rows from 31 on",
         [](AttentionCase& c) {
             c.options.positions_k = {40, {{{0, 20}, {31, 10}}}};
         }},
        {"PositionsBeforeTheWhole", "positions_q has a stretch of 20 rows from -1 on",
         [](AttentionCase& c) {
             c.options.positions_q = {40, {{{-1, 20}, {}}}};
         }},
        {"PositionsThatOverlap", "positions_q has a second stretch that begins at 9",
         [](AttentionCase& c) {
             c.options.positions_q = {40, {{{0, 10}, {9, 10}}}};
         }},
        {"PositionsBackwards", "positions_q has a second stretch that begins at 0",
         [](AttentionCase& c) {
             c.options.positions_q = {40, {{{20, 10}, {0, 10}}}};
         }},
        {"PositionsWithoutAWhole", "positions_q has a whole of 0 rows",
         [](AttentionCase& c) {
             c.options.positions_q = {0, {{{0, 20}, {}}}};
         }},
        {"PositionsOfTooManyRows", "positions_q has a whole of 1073741825 rows",
         [](AttentionCase& c) {
             c.options.positions_q = {(std::int64_t{1} << 30) + 1, {{{0, 20}, {}}}};
         }},
        {"SequencesBeforeTheFirst", "first_sequence was -1 with 2 sequences of q; it must be 0 to 1073741822.",
         [](AttentionCase& c) { c.options.first_sequence = -1; }},
        {"SequencesBeyondTheLast", "first_sequence was 1073741823",
         [](AttentionCase& c) { c.options.first_sequence = (std::int64_t{1} << 30) - 1; }},
        {"HeadsBeforeTheFirst", "first_head was -1", [](AttentionCase& c) { c.options.first_head = -1; }},
        {"HeadsBeyondTheLast", "first_head was 9223372036854775807 with 4 heads of q; it must be 0 to 1048572.",
         [](AttentionCase& c) { c.options.first_head = std::numeric_limits<std::int64_t>::max(); }},
        {"SlopesOfOtherHeads", "alibi_slopes is float32 [2]",
         [](AttentionCase& c) { c.options.alibi_slopes = shaped(c, f32, {2}); }},
        {"SlopesOfAnotherBatch", "alibi_slopes is float32 [3, 4]",
         [](AttentionCase& c) {
             c.options.alibi_slopes = shaped(c, f32, {3, 4});
         }},
        {"SlopesTransposed", "alibi_slopes is float32 [4, 2]",
         [](AttentionCase& c) {
             c.options.alibi_slopes = shaped(c, f32, {4, 2});
         }},
        {"SlopesOfThreeAxes", "alibi_slopes is float32 [2, 4, 1]",
         [](AttentionCase& c) {
             c.options.alibi_slopes = shaped(c, f32, {2, 4, 1});
         }},
        {"SlopesInSixteenBits", "alibi_slopes is bfloat16 [4]",
         [](AttentionCase& c) { c.options.alibi_slopes = shaped(c, DType::bfloat16, {4}); }},
        {"BiasOfThreeAxes", "bias has shape [4, 20, 30]",
         [](AttentionCase& c) {
             c.options.bias = shaped(c, f32, {4, 20, 30});
         }},
        {"BiasOfOtherHeads", "bias has shape [2, 2, 20, 30]",
         [](AttentionCase& c) {
             c.options.bias = shaped(c, f32, {2, 2, 20, 30});
         }},
        {"BiasOfOtherLengths", "bias has shape [1, 1, 30, 20]",
         [](AttentionCase& c) {
             c.options.bias = shaped(c, f32, {1, 1, 30, 20});
         }},
        {"BiasWithAnEmptyAxis", "bias has shape [0, 1, 1, 1]",
         [](AttentionCase& c) {
             c.options.bias = shaped(c, f32, {0, 1, 1, 1});
         }},
        {"BiasInOtherSixteenBits", "bias is float16",
         [](AttentionCase& c) {
             c.options.bias = shaped(c, DType::float16, {1, 1, 20, 30});
         }},
        {"BiasOfIntegers", "bias is int32",
         [](AttentionCase& c) {
             c.options.bias = shaped(c, DType::int32, {1, 1, 20, 30});
         }},
        {"BiasNull", "bias has shape [1, 1, 20, 30] but its data is null",
         [](AttentionCase& c) {
             c.options.bias = ConstTensorView::contiguous(nullptr, f32, {1, 1, 20, 30});
         }},
        {"BiasTransposed", "bias has stride 20 on its last axis",
         [](AttentionCase& c) {
             c.options.bias = shaped(c, f32, {1, 1, 30, 20}).transposed(2, 3);
         }},
        {"MaskOfFloats", "key_padding_mask is float32",
         [](AttentionCase& c) {
             c.options.key_padding_mask = shaped(c, f32, {2, 30});
         }},
        {"MaskOfIntegers", "key_padding_mask is int32",
         [](AttentionCase& c) {
             c.options.key_padding_mask = shaped(c, DType::int32, {2, 30});
         }},
        {"MaskOfQueries", "key_padding_mask is boolean [2, 20]",
         [](AttentionCase& c) {
             c.options.key_padding_mask = shaped(c, DType::boolean, {2, 20});
         }},
        {"MaskOfOneAxis", "key_padding_mask is boolean [30]",
         [](AttentionCase& c) { c.options.key_padding_mask = shaped(c, DType::boolean, {30}); }},
        {"SinkOfKeyHeads", "sink is float32 [2]", [](AttentionCase& c) { c.options.sink = shaped(c, f32, {2}); }},
        {"SinkOfTwoAxes", "sink is float32 [2, 4]",
         [](AttentionCase& c) {
             c.options.sink = shaped(c, f32, {2, 4});
         }},
        {"SinkInSixteenBits", "sink is float16 [4]",
         [](AttentionCase& c) { c.options.sink = shaped(c, DType::float16, {4}); }},
        {"PackedOptionsOnABatch", "q has 4 axes",
         [](AttentionCase& c) { c.options.cu_seqlens_q = c.options.cu_seqlens_k = shaped(c, DType::int32, {3}); }},
    };
}

class BadOptions : public ::testing::TestWithParam<BadOption> {};

INSTANTIATE_TEST_SUITE_P(All, BadOptions, ::testing::ValuesIn(bad_options()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(BadOptions, OneSentenceAndNothingWritten)
{
    for (const Backend backend : {Backend::automatic, Backend::openmp, Backend::reference}) {
        AttentionCase attention({2, 4, 2, 20, 30, 16, 16}, f32, 61);
        attention.poison_outputs();
        GetParam().spoil(attention);
        attention.options.backend = backend;
        expect_refused(GetParam().says, [&] { forward(attention.forward_args(), attention.options); });
        expect_refused(GetParam().says, [&] { backward(attention.backward_args(), attention.options); });
        for (const HostTensor* output : {&attention.o, &attention.lse, &attention.dq, &attention.dk, &attention.dv}) {
            EXPECT_TRUE(is_poison(*output));
        }
    }
}

AttentionCase packed_case()
{
    return {{0, 4, 2, 0, 0, 16, 16}, {{5, 7, 8}, {10, 9, 11}}, f32, 62};
}

void expect_packed_refused(AttentionCase& attention, const std::string& says)
{
    attention.poison_outputs();
    expect_refused(says, [&] { forward(attention.forward_args(), attention.options); });
    EXPECT_TRUE(is_poison(attention.o));
}

TEST(BadPacking, OffsetsThatAreNotOffsets)
{
    const std::vector<std::pair<std::vector<std::int32_t>, std::string>> offsets{
        {{0, 12, 5, 20}, "cu_seqlens_q decreases"},
        {{0, 5, 12, 19}, "cu_seqlens_q ends at 19"},
        {{0, 5, 12, 21}, "cu_seqlens_q ends at 21"},
        {{1, 5, 12, 20}, "cu_seqlens_q starts at 1"},
        {{-1, 5, 12, 20}, "cu_seqlens_q starts at -1"},
        {{0, -5, 12, 20}, "cu_seqlens_q decreases"},
        {{0, INT32_MIN, INT32_MAX, 20}, "cu_seqlens_q decreases"}};
    for (const auto& [values, says] : offsets) {
        AttentionCase attention = packed_case();
        std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(attention.cu_seqlens_q.data()));
        expect_packed_refused(attention, says);
    }
    AttentionCase attention = packed_case();
    static_cast<std::int32_t*>(attention.cu_seqlens_k.data())[3] = 31;
    expect_packed_refused(attention, "cu_seqlens_k ends at 31");
}

TEST(BadPacking, OffsetsOfAnotherShapeOrDtype)
{
    AttentionCase attention = packed_case();
    const ConstTensorView good_q = attention.options.cu_seqlens_q;
    const ConstTensorView good_k = attention.options.cu_seqlens_k;
    attention.options.cu_seqlens_q = {};
    expect_packed_refused(attention, "cu_seqlens_q was not given");
    attention.options.cu_seqlens_q = good_q;
    attention.options.cu_seqlens_k = {};
    expect_packed_refused(attention, "cu_seqlens_k was not given");
    const HostTensor two = cumulative({10, 20});
    attention.options.cu_seqlens_k = two.view();
    expect_packed_refused(attention, "sequences");
    attention.options.cu_seqlens_k = good_k;
    attention.options.cu_seqlens_k.dtype = DType::int64;
    expect_packed_refused(attention, "cu_seqlens_k is int64 [4]");
    attention.options.cu_seqlens_k = ConstTensorView::contiguous(good_k.data, DType::int32, {1, 4});
    expect_packed_refused(attention, "cu_seqlens_k is int32 [1, 4]");
    attention.options.cu_seqlens_k = ConstTensorView::contiguous(good_k.data, DType::int32, {0});
    expect_packed_refused(attention, "cu_seqlens_k is int32 [0]");
    attention.options.cu_seqlens_k = ConstTensorView::contiguous(nullptr, DType::int32, {4});
    expect_packed_refused(attention, "data is null");
}

TEST(BadPacking, HasNoPositions)
{
    AttentionCase attention = packed_case();
    attention.options.positions_k = {40, {{{0, 30}, {}}}};
    expect_packed_refused(attention, "positions_k was given with cu_seqlens_q");
}

TEST(BadPacking, OptionsThatDoNotFitThePackedShape)
{
    AttentionCase attention = packed_case(); // 3 sequences, at most 8 and 11 rows
    attention.options.key_padding_mask = shaped(attention, DType::boolean, {3, 30});
    expect_packed_refused(attention, "key_padding_mask is boolean [3, 30]");
    attention.options.key_padding_mask = {};
    attention.options.bias = shaped(attention, f32, {3, 4, 20, 30});
    expect_packed_refused(attention, "bias has shape [3, 4, 20, 30]");
    attention.options.bias = {};
    attention.options.alibi_slopes = shaped(attention, f32, {2, 4});
    expect_packed_refused(attention, "alibi_slopes is float32 [2, 4]");
    attention.options.alibi_slopes = {};
    attention.poison_outputs();
    ForwardArgs args = attention.forward_args();
    args.lse.shape = {20, 4};
    expect_refused("lse is float32 [20, 4]", [&] { forward(args, attention.options); });
}

} // namespace
} // namespace flashomp::testing
