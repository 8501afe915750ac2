// Arguments that no caller means: enumerators that are none, views of a hundred axes, strides beyond any memory. Each
// is one sentence and leaves the outputs as they were.
#include "refusal.hpp"

#include <cmath>
#include <limits>

namespace flashomp::testing {
namespace {

constexpr DType f32 = DType::float32;

struct Call {
    BackwardArgs args; ///< o and lse are outputs of forward(), too
    Options options;
    TensorView o, lse;
};

struct Misuse {
    const char* name;
    const char* says;
    std::function<void(Call&)> spoil;
    bool of_backward = false; ///< spoils what forward() does not have
};

void PrintTo(const Misuse& misuse, std::ostream* out)
{
    *out << misuse.name;
}

template <class View>
void move_by(View& view, int bytes)
{
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char, char>;
    view.data = static_cast<Byte*>(view.data) + bytes;
}

// The problem has batch 2, heads 4/2, seqlens 20x30, head_dim 16, a bias, a sink and a key padding mask.
std::vector<Misuse> misuses()
{
    constexpr std::int64_t far = std::int64_t{1} << 61;
    return {
        {"BackendUnknown", "backend was 9", [](Call& c) { c.options.backend = Backend{9}; }},
        {"MachineUnknown", "machine was 9", [](Call& c) { c.options.machine = Machine{9}; }},
        {"DeviceKindUnknown", "device.kind was 9", [](Call& c) { c.options.device.kind = Device::Kind{9}; }},
        {"CausalUnknown", "causal was 3", [](Call& c) { c.options.causal = Causal{3}; }},
        {"DtypeUnknown", "q has dtype 77", [](Call& c) { c.args.q.dtype = DType{77}; }},
        {"DtypeOfOutputUnknown", "o has dtype 255", [](Call& c) { c.args.o.dtype = c.o.dtype = DType{255}; }},
        {"MemoryUnknown", "v has memory 2", [](Call& c) { c.args.v.memory = Memory{2}; }},
        {"MemoryOfOptionUnknown", "sink has memory 7", [](Call& c) { c.options.sink.memory = Memory{7}; }},
        {"AxesNegative", "q has -3 axes", [](Call& c) { c.args.q.rank = -3; }},
        {"AxesHundred", "k has 100 axes", [](Call& c) { c.args.k.rank = 100; }},
        {"AxesOfOptionNegative", "bias has -3 axes", [](Call& c) { c.options.bias.rank = -3; }},
        {"AxesOfOptionHundred", "key_padding_mask has 100 axes",
         [](Call& c) { c.options.key_padding_mask.rank = 100; }},
        {"AxesOfLse", "lse has 100 axes", [](Call& c) { c.args.lse.rank = c.lse.rank = 100; }},
        {"AxesOfOffsets", "cu_seqlens_q has -1 axes", [](Call& c) { c.options.cu_seqlens_q.rank = -1; }},
        {"StrideFar", "within 2^56 bytes", [](Call& c) { c.args.q.strides[1] = far; }},
        {"StrideFarOfKeys", "k has shape [2, 30, 2, 16]", [](Call& c) { c.args.k.strides[0] = far; }},
        {"StrideFarOfBias", "bias has shape", [](Call& c) { c.options.bias.strides[2] = far; }},
        {"StrideFarOfLse", "lse has shape", [](Call& c) { c.args.lse.strides[0] = c.lse.strides[0] = far; }},
        {"StrideLargest", "within 2^56 bytes",
         [](Call& c) { c.args.v.strides[2] = std::numeric_limits<std::int64_t>::max(); }},
        {"StrideOfNoStep", "within 2^56 bytes",
         [](Call& c) { c.options.bias.strides[0] = std::numeric_limits<std::int64_t>::max(); }},
        {"StrideNegative", "q has extent 20 and stride -64", [](Call& c) { c.args.q.strides[1] = -64; }},
        {"ExtentsBeyondCount", "at most 2^62 elements",
         [](Call& c) {
             for (ConstTensorView* view : {&c.args.q, &c.args.k, &c.args.v}) {
                 view->shape = {1 << 30, 1 << 30, 1 << 20, 16};
                 view->strides = {0, 0, 0, 1};
             }
         }},
        {"DataMisaligned", "as float32 it must be a multiple of 4", [](Call& c) { move_by(c.args.q, 1); }},
        {"DataOfSinkMisaligned", "sink begins at", [](Call& c) { move_by(c.options.sink, 2); }},
        {"DataOfLseMisaligned", "lse begins at",
         [](Call& c) {
             move_by(c.args.lse, 2);
             move_by(c.lse, 2);
         }},
        {"TilingHuge", "tiling.resident_rows was 1073741824",
         [](Call& c) {
             c.options.tiling = {1 << 30, 1 << 30};
         }},
        {"TilingNegative", "tiling.resident_rows was -1", [](Call& c) { c.options.tiling.resident_rows = -1; }},
        {"TilingStreamNegative", "tiling.stream_rows was -4", [](Call& c) { c.options.tiling.stream_rows = -4; }},
        {"TilingTeams", "tiling.teams was 1025", [](Call& c) { c.options.tiling.teams = 1025; }},
        {"TilingTeamThreads", "tiling.team_threads was 33", [](Call& c) { c.options.tiling.team_threads = 33; }},
        {"ScaleWithoutAProduct", "scale was 2.36e+38", [](Call& c) { c.options.scale = 2.36e38; }},
        {"ScaleWithoutAProductNegative", "scale was -3.4e+38", [](Call& c) { c.options.scale = -3.4e38; }},
        {"DoutAxes", "dout has 100 axes", [](Call& c) { c.args.dout.rank = 100; }, true},
        {"DbiasAxes", "dbias has -3 axes", [](Call& c) { c.args.dbias.rank = -3; }, true},
        {"DqMemory", "dq has memory 9", [](Call& c) { c.args.dq.memory = Memory{9}; }, true},
        {"DkMisaligned", "dk begins at", [](Call& c) { move_by(c.args.dk, 3); }, true},
        {"DvFar", "dv has shape", [](Call& c) { c.args.dv.strides[0] = far; }, true},
        {"DsinkDtype", "dsink has dtype 200", [](Call& c) { c.args.dsink.dtype = DType{200}; }, true},
    };
}

class Misuses : public ::testing::TestWithParam<Misuse> {};

INSTANTIATE_TEST_SUITE_P(All, Misuses, ::testing::ValuesIn(misuses()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(Misuses, OneSentenceAndNothingWritten)
{
    for (const Backend backend : {Backend::automatic, Backend::reference}) {
        AttentionCase attention({2, 4, 2, 20, 30, 16, 16}, f32, 65);
        attention.add_bias({true, false, false, false});
        attention.add_sink();
        attention.add_key_padding();
        attention.poison_outputs();
        Call call{attention.backward_args(), attention.options, attention.o.view(), attention.lse.view()};
        call.options.backend = backend;
        GetParam().spoil(call);
        if (!GetParam().of_backward) {
            expect_refused(GetParam().says, [&] {
                forward({call.args.q, call.args.k, call.args.v, call.o, call.lse}, call.options);
            });
        }
        expect_refused(GetParam().says, [&] { backward(call.args, call.options); });
        for (const HostTensor* output : {&attention.o, &attention.lse, &attention.dq, &attention.dk, &attention.dv,
                                         &attention.dbias, &attention.dsink}) {
            EXPECT_TRUE(is_poison(*output));
        }
    }
}

TEST(ViewMisuse, AxesThatAViewCannotHave)
{
    float x = 0.0F;
    expect_refused("5 extents", [&] { static_cast<void>(TensorView::contiguous(&x, f32, {1, 1, 1, 1, 1})); });
    expect_refused("5 extents and 5 strides", [&] {
        static_cast<void>(ConstTensorView(&x, f32, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}));
    });
    expect_refused("2 extents and 1 strides", [&] { static_cast<void>(ConstTensorView(&x, f32, {1, 1}, {1})); });
    const TensorView view = TensorView::contiguous(&x, f32, {1, 1});
    expect_refused("axes 0 and 2", [&] { static_cast<void>(view.transposed(0, 2)); });
    expect_refused("axes -1 and 0", [&] { static_cast<void>(view.transposed(-1, 0)); });
    TensorView many = view;
    many.rank = 100;
    EXPECT_EQ(shape_string(many), "[1, 1, 0, 0, ...]");
    many.rank = -3;
    EXPECT_EQ(shape_string(many), "[]");
}

TEST(ScaleRange, TheLargestScaleGivesNumbers)
{
    for (const double scale : {2.35e38, -2.35e38}) {
        AttentionCase attention({1, 2, 1, 20, 30, 8, 8}, f32, 66, 1e-19F); // dot products of some 1e-38
        attention.options.scale = scale;
        static_cast<void>(attention.run(attention.options));
        for (const Comparison& result : attention.compare(attention.expected())) {
            if (std::string_view(result.name) == "o" ||
                std::string_view(result.name) == "lse") { // gradients of q and k take the scale, too
                EXPECT_TRUE(result.passed()) << result.name << ": " << result.error << " > " << result.bound;
            }
        }
    }
}

TEST(ReferenceMisuse, HasNoTileMachines)
{
    AttentionCase attention({1, 2, 2, 8, 8, 8, 8}, f32, 67);
    attention.poison_outputs();
    attention.options.backend = Backend::reference;
    attention.options.machine = Machine::hopper;
    expect_refused("machine was hopper", [&] { forward(attention.forward_args(), attention.options); });
    expect_refused("machine was hopper", [&] { backward(attention.backward_args(), attention.options); });
    EXPECT_TRUE(is_poison(attention.o) && is_poison(attention.dq));
}

// Extents beyond 2^31 used to lose their upper bits: nothing was done, or a part of it, without an error.
TEST(ExtentMisuse, MergeTakesNoMoreRowsThanKernelsCount)
{
    constexpr std::int64_t many = (std::int64_t{1} << 32) + 1;
    HostTensor o(f32, {1, 2, 1, 4}, Fill::poison);
    HostTensor lse(f32, {1, 1, 2}, Fill::poison);
    struct Shapes {
        const char* says;
        std::int64_t batch, rows, heads, depth;
    };
    for (const Shapes& s :
         {Shapes{"o has 4294967297 rows", 1, many, 1, 4}, Shapes{"o has 4294967297 heads", 1, 1, many, 4},
          Shapes{"o has 4294967297 sequences", many, 1, 1, 4},
          Shapes{"o has 4294967297 elements a row", 1, 1, 1, many}}) {
        // Every view is far from the others, and nothing is read before the extents are.
        const auto at = [&](int number) { return static_cast<char*>(o.data()) + (std::int64_t{number} << 40); };
        const auto out = TensorView::contiguous(at(0), f32, {s.batch, s.rows, s.heads, s.depth});
        const auto stats = TensorView::contiguous(at(1), f32, {s.batch, s.heads, s.rows});
        Partial a{out, stats};
        Partial b{out, stats};
        a.o.data = at(2);
        b.o.data = at(3);
        a.lse.data = at(4);
        b.lse.data = at(5);
        expect_refused(s.says, [&] { merge(a, b, out, stats); });
    }
    EXPECT_TRUE(is_poison(o) && is_poison(lse));
}

TEST(ExtentMisuse, DropoutMaskTakesNoMoreThanCallsDo)
{
    constexpr std::int64_t many = std::int64_t{1} << 32;
    HostTensor mask(DType::boolean, {2, 2, 2, 2}, Fill::poison);
    const auto refused = [&](const char* says, std::initializer_list<std::int64_t> shape) {
        expect_refused(says, [&] {
            dropout_mask({.probability = 0.5}, TensorView::contiguous(mask.data(), DType::boolean, shape));
        });
        EXPECT_TRUE(is_poison(mask));
    };
    refused("mask has 4294967296 sequences", {many, 1, 1, 1});
    refused("mask has 4294967296 heads", {1, many, 1, 1});
    refused("mask has 4294967296 rows", {1, 1, many, 1});
    refused("mask has 4294967296 keys", {1, 1, 1, many});
}

} // namespace
} // namespace flashomp::testing
