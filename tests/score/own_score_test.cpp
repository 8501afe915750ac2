// A program's own score and mask (flashomp/score_mod.hpp), on the host and on the plain machine, against the reference.
#include "own_scores.hpp"

#include "launch/launch.hpp"
#include "support/cache_case.hpp"
#include "support/case_parts.hpp"
#include "support/parity.hpp"
#include "support/run_memory.hpp"

#include "flashomp/prepared.hpp"

#include <limits>

namespace flashomp::testing {

namespace {

/// Where own scores run: the instruction set is that of their library.
std::vector<Target> own_targets()
{
    return {{"host", Machine::host, false, ""},
            {"plain_on_host", Machine::plain, false, ""},
            {"plain_on_device", Machine::plain, true, ""}};
}

class OwnScore : public ParityTest {
protected:
    void check_own(AttentionCase& attention, bool may_be_computed_twice = false)
    {
        const auto [first, second] = attention.run(on_target(attention.options));
        for (const Report& report : {first, second}) {
            EXPECT_EQ(report.on_device, target_.is_device);
            EXPECT_TRUE(report.machine == "plain" || report.machine.starts_with("host-own-")) << report.machine;
            EXPECT_FALSE(report.computed_twice && !may_be_computed_twice);
        }
        attention.expect_close();
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, OwnScore,
                         ::testing::Combine(::testing::ValuesIn(own_targets()),
                                            ::testing::Values(DType::float32, DType::bfloat16, DType::float16)),
                         parity_name);

/// Odd sizes, groups of heads, and what stays of the library's own options: the order is score, softcap, ALiBi, bias.
TEST_P(OwnScore, ScoreSlopeAndMask)
{
    for (const auto& [rows, keys] : {std::pair{113, 203}, std::pair{203, 113}, std::pair{1, 147}, std::pair{3, 65}}) {
        SCOPED_TRACE(::testing::Message() << rows << "x" << keys);
        AttentionCase attention({2, 4, 2, rows, keys, 40, 24}, dtype(), 61);
        attention.options.score_mod = everything(0.2F);
        check_own(attention);
        attention.options.causal = Causal::bottom_right;
        attention.options.softcap = 3.0;
        attention.add_alibi();
        attention.add_bias({true, false, false, false});
        attention.add_sink();
        attention.add_dropout(0.2);
        attention.add_key_padding();
        check_own(attention);
    }
}

TEST_P(OwnScore, PackedSequences)
{
    AttentionCase attention({1, 2, 1, 0, 0, 64, 64}, {{70, 0, 33, 1}, {81, 5, 33, 40}}, dtype(), 62);
    attention.options.score_mod = everything(-0.1F);
    attention.options.causal = Causal::top_left;
    check_own(attention);
}

/// Of some sequences and heads it is asked by the numbers that they have in the whole.
TEST_P(OwnScore, PartsOfTheWhole)
{
    AttentionCase attention({3, 4, 2, 61, 83, 32, 32}, dtype(), 70);
    attention.options.score_mod = everything(0.3F);
    attention.add_dropout(0.2);
    static_cast<void>(attention.run(on_target(attention.options)));
    const Results whole = attention.take_results();
    const std::vector<Extent> sequences{{0, 1}, {1, 2}}, heads{{0, 1}, {1, 1}};
    const auto where = [this](const Options& options) { return on_target(options); };
    run_in_parts(attention, sequences, heads, where);
    const Results parts = attention.take_results();
    if (target_.is_device) { // which splits keys and heads by how many there are
        const double most = dtype() == DType::float32 ? 1e-5 : 0.05;
        EXPECT_LE(max_error(doubles(parts.o), doubles(whole.o)), most);
        EXPECT_LE(max_error(doubles(parts.dq), doubles(whole.dq)), most);
    } else {
        expect_same_bits(parts, whole);
    }
    attention.options.dropout = {}; // whose numbers are not what is looked for here
    static_cast<void>(attention.run(on_target(attention.options)));
    const Results kept = attention.take_results();
    for (std::int64_t Options::*const first : {&Options::first_sequence, &Options::first_head}) {
        run_in_parts(attention, sequences, heads, [&](Options options) {
            options.*first = 0;
            return on_target(options);
        });
        EXPECT_GT(max_error(doubles(attention.o), doubles(kept.o)), 0.05);
        EXPECT_GT(max_error(doubles(attention.dv), doubles(kept.dv)), 0.05);
    }
}

TEST_P(OwnScore, WideHeads)
{
    AttentionCase attention({1, 2, 1, 33, 70, 192, 256}, dtype(), 63);
    attention.options.score_mod = everything(0.1F);
    check_own(attention);
}

/// A score by hand is the library's option.
TEST_P(OwnScore, AlibiAndSoftcapByHand)
{
    if (target_.is_device) {
        GTEST_SKIP() << "the slopes are in host memory";
    }
    AttentionCase library({2, 3, 3, 65, 90, 32, 32}, dtype(), 64);
    library.add_alibi();
    library.options.softcap = 0.0;
    AttentionCase own({2, 3, 3, 65, 90, 32, 32}, dtype(), 64);
    own.options.score_mod = distance(static_cast<const float*>(library.alibi_slopes.data()));
    static_cast<void>(library.run(on_target(library.options)));
    check_own(own);
    expect_passed(own.compare(library.expected()));

    AttentionCase capped({2, 3, 3, 65, 90, 32, 32}, dtype(), 65, 2.0F);
    capped.options.score_mod = cap(5.0F);
    check_own(capped);
    Options options = capped.options;
    options.score_mod = {};
    options.softcap = 5.0;
    capped.options = options;
    expect_passed(capped.compare(capped.expected()));
}

/// Of keys that a mask hides from every row nothing is seen, NaN included.
TEST_P(OwnScore, HiddenKeysOfNaN)
{
    if (target_.machine == Machine::plain) {
        GTEST_SKIP() << "the mask is compiled for the host alone";
    }
    const int n = 150;
    AttentionCase attention({1, 2, 1, n, n, 32, 32}, dtype(), 66);
    std::vector<int> document(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
        document[static_cast<std::size_t>(i)] = i < n / 3 ? 0 : (i < n / 2 ? 1 : 2);
    }
    attention.options.score_mod = documents(document.data());
    check_own(attention);
    const Results clean = attention.take_results();

    // The first document's keys, values, queries and dO: nobody of the others sees them.
    const auto poison = [&](HostTensor& tensor) {
        const std::int64_t elements = n / 3 * tensor.shape()[2] * tensor.shape()[3];
        if (dtype() == DType::float32) {
            std::fill_n(static_cast<float*>(tensor.data()), elements, std::numeric_limits<float>::quiet_NaN());
        } else {
            std::fill_n(static_cast<std::uint16_t*>(tensor.data()), elements, std::uint16_t{0x7FFF});
        }
    };
    poison(attention.k);
    poison(attention.v);
    poison(attention.q);
    poison(attention.dout);
    const auto [first, second] = attention.run(on_target(attention.options));
    EXPECT_TRUE(first.computed_twice && second.computed_twice);
    const auto expect_rest_as_before = [&](const char* name, const HostTensor& now, const HostTensor& before,
                                           double most) {
        const std::vector<double> a = doubles(now), b = doubles(before);
        const auto begin = static_cast<std::size_t>(n / 3 * now.shape()[2] * now.shape()[3]);
        for (std::size_t x = begin; x < a.size(); ++x) {
            ASSERT_NEAR(a[x], b[x], most) << name << " " << x;
        }
    };
    const double most = dtype() == DType::float32 ? 2e-5 : 0.05; // the second computation rounds in another way
    expect_rest_as_before("o", attention.o, clean.o, most);
    expect_rest_as_before("dq", attention.dq, clean.dq, most);
    expect_rest_as_before("dk", attention.dk, clean.dk, most);
    expect_rest_as_before("dv", attention.dv, clean.dv, most);
}

/// Decoding: one query and three, in every form of a cache.
TEST_P(OwnScore, Caches)
{
    for (const int rows : {1, 3}) {
        CacheCase cache({2, 4, 2, rows, 64, 32, 32}, {37, 64}, 16, dtype(), 67);
        cache.attention.options.score_mod = everything(0.3F);
        cache.attention.options.causal = Causal::bottom_right;
        for (const CacheForm form : cache_forms) {
            SCOPED_TRACE(::testing::Message() << rows << " rows, form " << static_cast<int>(form));
            const ForwardArgs args = cache.args(form);
            const Options options = cache.options(form);
            static_cast<void>(forward(args, on_target(options)));
            AttentionCase& attention = cache.attention;
            const HostTensor o = io::converted(attention.o, DType::float32);
            const HostTensor lse = io::converted(attention.lse, DType::float32);
            Options by_reference = options;
            by_reference.backend = Backend::reference;
            static_cast<void>(forward(args, by_reference));
            const double most = dtype() == DType::float32 ? 1e-5 : 2e-2;
            const std::vector<double> a = doubles(o), b = doubles(attention.o);
            const std::vector<double> c = doubles(lse), d = doubles(attention.lse);
            for (std::size_t x = 0; x < a.size(); ++x) {
                ASSERT_NEAR(a[x], b[x], most);
            }
            for (std::size_t x = 0; x < c.size(); ++x) {
                ASSERT_NEAR(c[x], d[x], 2e-5);
            }
        }
    }
}

/// A run of a prepared call takes another object of the same type, and no other type.
TEST(OwnScores, APreparedCallTakesAnotherObject)
{
    AttentionCase attention({1, 2, 2, 20, 30, 16, 16}, DType::float32, 68);
    attention.poison_outputs();
    Options options;
    options.machine = Machine::host;
    options.score_mod = everything(0.1F);
    PreparedForward prepared = prepare(attention.forward_args(), options);
    RunMemory memory(prepared.workspace_bytes());
    const std::span<std::byte> workspace = memory.span();
    options.score_mod = everything(0.4F);
    static_cast<void>(prepared.run(attention.forward_args(), options, workspace));
    const HostTensor o = std::move(attention.o);
    attention.poison_outputs();
    static_cast<void>(forward(attention.forward_args(), options));
    EXPECT_TRUE(same_bits(o, attention.o));

    options.score_mod = documents(nullptr);
    EXPECT_THROW(static_cast<void>(prepared.run(attention.forward_args(), options, workspace)), Error);
}

void expect_refused(const Options& options, std::string_view says)
{
    AttentionCase attention({1, 1, 1, 8, 8, 16, 16}, DType::float32, 69);
    attention.poison_outputs();
    try {
        static_cast<void>(forward(attention.forward_args(), options));
        ADD_FAILURE() << "not refused: " << says;
    } catch (const Error& error) {
        EXPECT_NE(std::string_view(error.what()).find(says), std::string_view::npos) << error.what();
    }
    AttentionCase untouched({1, 1, 1, 8, 8, 16, 16}, DType::float32, 69);
    untouched.poison_outputs();
    EXPECT_TRUE(same_bits(attention.o, untouched.o));
}

TEST(OwnScores, Refused)
{
    Options options;
    options.device.kind = Device::Kind::host;
    options.score_mod = cap(2.0F);
    offload::ScoreKernels other = *options.score_mod.kernels;
    options.score_mod.kernels = &other;
    other.version = "0.0.1";
    expect_refused(options, "compiled with the headers of flashomp 0.0.1");
    other = *cap(2.0F).kernels;
    other.params_bytes += 8;
    expect_refused(options, "they must be of one build");
    other = *cap(2.0F).kernels;
    other.has_gpu_code = false;
    options.machine = Machine::plain;
    expect_refused(options, "score_mod is compiled with GPU code");
    options.machine = Machine::tensor;
    expect_refused(options, "machine was tensor");
    options.machine = Machine::automatic;
    options.device = {};
    options.backend = Backend::cuda;
    expect_refused(options, "score_mod was given with backend cuda");
}

TEST(OwnScores, AreAllLookedAtInComparisons)
{
    Options a, b;
    a.score_mod = everything(0.5F);
    EXPECT_FALSE(a == b);
    b.score_mod = everything(0.5F);
    EXPECT_TRUE(a == b);
    b.score_mod = everything(0.25F);
    EXPECT_FALSE(a == b);
}

} // namespace

} // namespace flashomp::testing
