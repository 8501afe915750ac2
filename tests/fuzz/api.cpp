// Calls of the public API with random shapes, options and strides, half of them misused in one place. Each one succeeds
// with results that agree with the reference, or throws an Error of one sentence and has written nothing.
//
//     flashomp_replay_api [CALLS [FIRST_SEED]]
//
// A call is a function of its seed alone. The first one that does otherwise ends the program, which names its seed.
#include "support/attention_case.hpp"

#include "flashomp/dropout.hpp"

#include "option_list.hpp"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <string>

namespace flashomp::testing {
namespace {

using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high)
{
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

bool chance(Random& random, int one_of)
{
    return pick(random, 1, one_of) == 1;
}

template <class T>
T one_of(Random& random, std::initializer_list<T> values)
{
    return *(values.begin() + pick(random, 0, static_cast<std::int64_t>(values.size()) - 1));
}

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A tensor in memory of its own, with gaps between its rows or its axes in another order. All that is no element, and
/// each element of an output, is 0xff: a NaN that shows in results if it is read.
class Strided {
public:
    Strided(const HostTensor& tensor, Random& random, bool is_input, bool may_have_gaps)
        : tensor_(tensor), view_(std::as_const(tensor).view())
    {
        const int rank = view_.rank;
        std::array<int, 4> order{0, 1, 2, 3};
        if (may_have_gaps && rank > 1) {
            std::shuffle(order.begin(), order.begin() + rank - 1, random); // the last axis stays
        }
        std::int64_t stride = 1;
        for (int i = rank - 1; i >= 0; --i) {
            const auto axis = static_cast<std::size_t>(order.at(static_cast<std::size_t>(i)));
            view_.strides.at(axis) = stride;
            stride =
                stride * std::max<std::int64_t>(1, view_.shape.at(axis)) + (may_have_gaps ? pick(random, 0, 3) : 0);
        }
        memory_.assign(static_cast<std::size_t>((stride + 8) * size_of(view_.dtype)), '\xff');
        view_.data = memory_.data();
        if (is_input) {
            each_element([](char* here, const char* there, std::size_t bytes) { std::memcpy(here, there, bytes); });
        }
    }

    [[nodiscard]] ConstTensorView view() const { return view_; }
    [[nodiscard]] TensorView result() const { return as_result(view_); }
    [[nodiscard]] bool is_poison() const
    {
        return std::all_of(memory_.begin(), memory_.end(), [](char byte) { return byte == '\xff'; });
    }

    /// The elements in row-major order; then nothing but them may have been written.
    HostTensor taken()
    {
        HostTensor result(tensor_.dtype(), tensor_.shape());
        const auto* const from = static_cast<const char*>(tensor_.data());
        auto* const to = static_cast<char*>(result.data());
        each_element([&](char* here, const char* there, std::size_t bytes) {
            std::memcpy(to + (there - from), here, bytes);
            std::memset(here, 0xff, bytes);
        });
        if (!is_poison()) {
            throw Failure("bytes between the elements of an output were written");
        }
        return result;
    }

private:
    /// f(element here, the same in the row-major tensor, bytes)
    template <class F>
    void each_element(F f)
    {
        const auto bytes = static_cast<std::size_t>(size_of(view_.dtype));
        const auto* there = static_cast<const char*>(tensor_.data());
        std::array<std::int64_t, 4> at{};
        for (std::int64_t i = 0; i < tensor_.elements(); ++i, there += bytes) {
            std::int64_t offset = 0;
            for (std::size_t axis = 0; axis < 4; ++axis) {
                offset += at.at(axis) * view_.strides.at(axis);
            }
            f(memory_.data() + offset * static_cast<std::int64_t>(bytes), there, bytes);
            for (int axis = view_.rank - 1; axis >= 0; --axis) {
                const auto a = static_cast<std::size_t>(axis);
                if (++at.at(a) < view_.shape.at(a)) {
                    break;
                }
                at.at(a) = 0;
            }
        }
    }

    const HostTensor& tensor_;
    ConstTensorView view_;
    std::vector<char> memory_;
};

void expect_sentence(const std::string& sentence)
{
    if (sentence.empty() || sentence.size() > 1000 || sentence.back() != '.' ||
        sentence.find('\n') != std::string::npos) {
        throw Failure("this is not one sentence: " + sentence);
    }
}

/// What a misuse may change.
struct Call {
    std::vector<ConstTensorView*> inputs;
    std::vector<TensorView*> outputs;
    Options& options;
};

/// The views, and those of all options.
std::vector<ConstTensorView*> with_options(std::vector<ConstTensorView*> views, Options& options)
{
    for (const TensorOption& option : tensor_options) {
        views.push_back(&(options.*option.member));
    }
    return views;
}

/// Makes a view one that no caller has: never one that has other elements in its memory's bounds.
template <class View>
void spoil(View& view, Random& random)
{
    const auto axis = static_cast<std::size_t>(pick(random, 0, 3));
    switch (pick(random, 0, 7)) {
    case 0:
        view.rank = static_cast<int>(one_of<std::int64_t>(random, {-3, 5, 100, std::numeric_limits<int>::max(), 0}));
        break;
    case 1: {
        const DType drawn{static_cast<std::uint8_t>(pick(random, 0, 255))};
        // Results and biases may be float32 beside 16 bits, for which there is no memory here.
        view.dtype = drawn == DType::float32 && size_of(view.dtype) < size_of(drawn) ? DType::float64 : drawn;
        break;
    }
    case 2:
        view.memory = Memory{static_cast<std::uint8_t>(pick(random, 1, 255))};
        break;
    case 3:
        if (view.dtype == DType::boolean || view.data == nullptr) {
            break; // a boolean may begin anywhere, but would end a byte beyond its memory
        }
        view.data = static_cast<decltype(view.data)>(
            static_cast<
                std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>, const char*, char*>>(
                view.data) +
            1);
        break;
    case 4:
        view.data = nullptr;
        break;
    case 5:
        view.strides.at(axis) = one_of<std::int64_t>(random, {-1, -64, std::int64_t{1} << 57, std::int64_t{1} << 61,
                                                              std::numeric_limits<std::int64_t>::max(),
                                                              std::numeric_limits<std::int64_t>::min()});
        break;
    case 6:
        view.shape.at(axis) = one_of<std::int64_t>(
            random, {-1, 0, 1, (std::int64_t{1} << 32) + 1, std::int64_t{1} << 40,
                     std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()});
        break;
    default:
        view.shape.fill(std::int64_t{1} << pick(random, 20, 62));
        view.strides = {0, 0, 0, 1};
    }
}

void spoil(Options& options, Random& random)
{
    const auto any = [&] { return static_cast<std::uint8_t>(pick(random, 0, 255)); };
    const auto any_int = [&] {
        return static_cast<int>(one_of<std::int64_t>(
            random, {-1, 1, 7, 1 << 30, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}));
    };
    const auto any_double = [&] {
        return one_of(random, {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e300, 3.4e38, -3.4e38, 1e-40, -1.0, 1.0});
    };
    switch (pick(random, 0, 13)) {
    case 0:
        options.backend = Backend{any()};
        break;
    case 1:
        options.machine = Machine{any()};
        break;
    case 2:
        options.device = {Device::Kind{any()}, any_int()};
        break;
    case 3:
        options.causal = Causal{any()};
        break;
    case 4:
        options.threads = any_int();
        break;
    case 5:
        options.tiling = {any_int(), any_int(), 0, 0};
        break;
    case 6:
        options.tiling = {0, 0, any_int(), any_int()};
        break;
    case 7:
        options.scale = any_double();
        break;
    case 8:
        options.softcap = any_double();
        break;
    case 9:
        options.dropout.probability = any_double();
        break;
    case 10:
        options.window = {one_of<std::int64_t>(random, {-2, 0, std::numeric_limits<std::int64_t>::max(),
                                                        std::numeric_limits<std::int64_t>::min()}),
                          pick(random, -3, 3)};
        break;
    case 11: {
        Positions& positions = chance(random, 2) ? options.positions_q : options.positions_k;
        positions.whole = one_of<std::int64_t>(random, {-1, 0, 7, 50, std::int64_t{1} << 40});
        positions.stretches[0] = {pick(random, -2, 40), pick(random, -2, 40)};
        positions.stretches[1].first = one_of<std::int64_t>(random, {0, 3, std::numeric_limits<std::int64_t>::max()});
        positions.stretches[1].count = pick(random, 0, 3);
        break;
    }
    case 12:
        (chance(random, 2) ? options.first_sequence : options.first_head) =
            one_of<std::int64_t>(random, {-1, 3, (std::int64_t{1} << 20) - 1, std::int64_t{1} << 30,
                                          std::numeric_limits<std::int64_t>::max()});
        break;
    default:
        options.stream = nullptr;
    }
}

void misuse(const Call& call, Random& random)
{
    const auto views = static_cast<std::int64_t>(call.inputs.size() + call.outputs.size());
    const auto which = static_cast<std::size_t>(pick(random, 0, 2 * views - 1));
    if (which < call.inputs.size()) {
        spoil(*call.inputs[which], random);
    } else if (which < static_cast<std::size_t>(views)) {
        spoil(*call.outputs[which - call.inputs.size()], random);
    } else {
        spoil(call.options, random);
    }
}

/// Runs `call`. False where it was refused; then `is_untouched` must be true, and a call without misuse is a failure.
bool runs(const std::function<void()>& call, bool is_misused, const std::function<bool()>& is_untouched)
{
    try {
        call();
        return true;
    } catch (const Error& error) {
        expect_sentence(error.what());
        if (!is_untouched()) {
            throw Failure(std::string("an output was written before the call was refused: ") + error.what());
        }
        if (!is_misused) {
            throw Failure(std::string("a call without misuse was refused: ") + error.what());
        }
        return false;
    }
}

Options random_choice(Random& random)
{
    Options choice;
    choice.device.kind = Device::Kind::host;
    choice.threads = static_cast<int>(pick(random, 0, 5));
    choice.backend = one_of(random, {Backend::automatic, Backend::openmp, Backend::openmp, Backend::reference});
    if (choice.backend != Backend::reference) {
        choice.machine = one_of(random, {Machine::automatic, Machine::host, Machine::plain});
        choice.tiling.resident_rows = chance(random, 3) ? static_cast<int>(16 * pick(random, 1, 6)) : 0;
        choice.tiling.stream_rows = chance(random, 3) ? static_cast<int>(4 * pick(random, 1, 20)) : 0;
    }
    return choice;
}

AttentionCase random_case(Random& random)
{
    const std::int64_t heads_kv = pick(random, 1, 3);
    const std::int64_t depth = chance(random, 8) ? 256 : 40;
    const std::int64_t length = chance(random, 8) ? 150 : 40;
    const Shape shape{chance(random, 16) ? 0 : pick(random, 1, 3),
                      heads_kv * pick(random, 1, 3),
                      heads_kv,
                      chance(random, 5) ? pick(random, 0, 1) : pick(random, 0, length),
                      pick(random, 0, length),
                      pick(random, 1, depth),
                      pick(random, 1, depth)};
    const DType dtype = one_of(random, {DType::float32, DType::bfloat16, DType::float16});
    if (chance(random, 4)) {
        Lengths lengths;
        for (std::int64_t b = 0; b < shape.batch; ++b) {
            lengths.q.push_back(static_cast<std::int32_t>(pick(random, 0, 30)));
            lengths.k.push_back(static_cast<std::int32_t>(pick(random, 0, 30)));
        }
        return {shape, lengths, dtype, random()};
    }
    return {shape, dtype, random()};
}

/// So many rows in two stretches, either of which may be empty, and the gap between them, too.
Positions random_positions(Random& random, std::int64_t rows)
{
    const std::int64_t first = pick(random, 0, 20);
    const std::int64_t count = pick(random, 0, rows);
    const std::int64_t second = first + count + pick(random, 0, 20);
    return {second + rows - count + pick(random, 1, 20), {{{first, count}, {second, rows - count}}}};
}

void add_options(AttentionCase& attention, Random& random)
{
    Options& options = attention.options;
    if (chance(random, 3)) {
        options.scale = one_of(random, {0.0, -0.3, 0.5, 1.0});
    }
    options.causal = one_of(random, {Causal::none, Causal::none, Causal::top_left, Causal::bottom_right});
    if (chance(random, 3)) {
        options.window = {pick(random, -1, 40), pick(random, -1, 40)};
    }
    if (chance(random, 4)) {
        options.softcap = 5.0;
    }
    if (chance(random, 4)) {
        attention.add_alibi(chance(random, 2));
    }
    if (chance(random, 4)) {
        attention.add_bias({chance(random, 2), chance(random, 2), chance(random, 2), chance(random, 2)});
    }
    if (chance(random, 4)) {
        attention.add_key_padding();
    }
    if (chance(random, 4)) {
        attention.add_sink();
    }
    if (chance(random, 4)) {
        attention.add_dropout(0.3);
        options.first_sequence = pick(random, 0, 5);
        options.first_head = pick(random, 0, 5);
    }
    if (chance(random, 4) && !attention.packed()) {
        options.positions_q = random_positions(random, attention.shape().seqlen_q);
    }
    if (chance(random, 4) && !attention.packed()) {
        options.positions_k = random_positions(random, attention.shape().seqlen_k);
    }
}

/// Any shape and any options may meet here, so the bound is wide: what is looked for is another result, not a less
/// exact one.
void expect_close(const AttentionCase& attention, const Expected& expected)
{
    // A row that sees one key has a dQ of 0, but for what rounding o took from D.
    const double slack = attention.dtype() == DType::float32 ? 1e-4 : 0.2;
    for (const Comparison& result : attention.compare(expected)) {
        const double bound = 4.0 * result.naive_error + slack;
        if (!(result.error <= bound)) {
            throw Failure(fmt::format("{} is off by {}; allowed is {}", result.name, result.error, bound));
        }
    }
}

/// Forward, then backward: one of them, or none, misused.
void fuzz_attention(Random& random)
{
    AttentionCase attention = random_case(random);
    add_options(attention, random);
    attention.poison_outputs();
    const bool has_gaps = chance(random, 2);
    const auto input = [&](const HostTensor& tensor) { return Strided(tensor, random, true, has_gaps); };
    const auto output = [&](const HostTensor& tensor) { return Strided(tensor, random, false, has_gaps); };
    const int misused = static_cast<int>(pick(random, 0, 3)); // 1: forward, 2: backward
    Options options = attention.options;
    const Options choice = random_choice(random);
    options.threads = choice.threads;
    options.backend = choice.backend;
    options.machine = choice.machine;
    options.device = choice.device;
    options.tiling = choice.tiling;

    const Strided q = input(attention.q);
    const Strided k = input(attention.k);
    const Strided v = input(attention.v);
    Strided o = output(attention.o);
    const HostTensor lse_shape(DType::float32, attention.lse.shape());
    Strided lse(lse_shape, random, false, has_gaps);
    {
        ForwardArgs args{q.view(), k.view(), v.view(), o.result(), lse.result()};
        Options used = options;
        const Call call{with_options({&args.q, &args.k, &args.v}, used), {&args.o, &args.lse}, used};
        if (misused == 1) {
            misuse(call, random);
        }
        const bool ran =
            runs([&] { forward(args, used); }, misused == 1, [&] { return o.is_poison() && lse.is_poison(); });
        if (misused == 1) {
            return;
        }
        static_cast<void>(ran);
        attention.o = o.taken();
        attention.lse = lse.taken();
    }
    const Strided o_in = input(attention.o);
    const Strided lse_in = input(attention.lse);
    const Strided dout = input(attention.dout);
    Strided dq = output(attention.dq);
    Strided dk = output(attention.dk);
    Strided dv = output(attention.dv);
    Strided dbias = output(attention.dbias);
    Strided dsink = output(attention.dsink);
    BackwardArgs args{q.view(),    k.view(),    v.view(),    o_in.view(),    lse_in.view(), dout.view(),
                      dq.result(), dk.result(), dv.result(), dbias.result(), dsink.result()};
    const Call call{with_options({&args.q, &args.k, &args.v, &args.o, &args.lse, &args.dout}, options),
                    {&args.dq, &args.dk, &args.dv, &args.dbias, &args.dsink},
                    options};
    if (misused == 2) {
        misuse(call, random);
    }
    const bool ran = runs(
        [&] { backward(args, options); }, misused == 2,
        [&] { return dq.is_poison() && dk.is_poison() && dv.is_poison() && dbias.is_poison() && dsink.is_poison(); });
    if (!ran || misused == 2) {
        return;
    }
    attention.dq = dq.taken();
    attention.dk = dk.taken();
    attention.dv = dv.taken();
    attention.dbias = attention.bias.rank() > 0 ? dbias.taken() : HostTensor();
    attention.dsink = attention.sink.rank() > 0 ? dsink.taken() : HostTensor();
    expect_close(attention, attention.expected());
}

void fuzz_merge(Random& random)
{
    const DType dtype = one_of(random, {DType::float32, DType::bfloat16, DType::float16});
    const std::int64_t batch = pick(random, 0, 2), rows = pick(random, 0, 40), heads = pick(random, 1, 3);
    const io::Shape shape{batch, rows, heads, pick(random, 1, 40)};
    std::array<HostTensor, 2> o{random_tensor(random, dtype, shape), random_tensor(random, dtype, shape)};
    std::array<HostTensor, 2> lse{random_tensor(random, DType::float32, {batch, heads, rows}),
                                  random_tensor(random, DType::float32, {batch, heads, rows})};
    const bool has_gaps = chance(random, 2);
    const Strided o_a(o[0], random, true, has_gaps);
    const Strided o_b(o[1], random, true, has_gaps);
    const Strided lse_a(lse[0], random, true, has_gaps);
    const Strided lse_b(lse[1], random, true, has_gaps);
    Strided out(o[0], random, false, has_gaps);
    Strided out_lse(lse[0], random, false, has_gaps);
    Partial a{o_a.view(), lse_a.view()};
    Partial b{o_b.view(), lse_b.view()};
    TensorView result = out.result();
    TensorView result_lse = out_lse.result();
    Options options;
    options.device.kind = Device::Kind::host;
    options.threads = static_cast<int>(pick(random, 0, 5));
    const bool is_misused = chance(random, 2);
    if (is_misused) {
        misuse({{&a.o, &a.lse, &b.o, &b.lse}, {&result, &result_lse}, options}, random);
    }
    const bool ran = runs([&] { merge(a, b, result, result_lse, options); }, is_misused,
                          [&] { return out.is_poison() && out_lse.is_poison(); });
    if (!ran || is_misused) {
        return;
    }
    const std::vector<double> got = doubles(out.taken());
    const std::vector<double> x = doubles(o[0]);
    const std::vector<double> y = doubles(o[1]);
    const double slack = dtype == DType::float32 ? 1e-5 : 0.05;
    for (std::int64_t i = 0; i < o[0].elements(); ++i) {
        const std::int64_t row = i / shape[3];
        const std::int64_t at = (row / heads / std::max<std::int64_t>(1, rows) * heads + row % heads) * rows +
                                row / heads % std::max<std::int64_t>(1, rows);
        const double difference = static_cast<double>(static_cast<const float*>(lse[1].data())[at]) -
                                  static_cast<double>(static_cast<const float*>(lse[0].data())[at]);
        const double share = 1.0 / (1.0 + std::exp(difference));
        const auto element = static_cast<std::size_t>(i);
        const double expected = share * x[element] + (1.0 - share) * y[element];
        if (!(std::abs(got[element] - expected) <= slack * (1.0 + std::abs(expected)))) {
            throw Failure(fmt::format("merge gave {} where {} is right", got[element], expected));
        }
    }
}

void fuzz_dropout_mask(Random& random)
{
    const HostTensor shape(DType::boolean,
                           {pick(random, 0, 3), pick(random, 1, 3), pick(random, 0, 20), pick(random, 0, 20)});
    Strided mask(shape, random, false, chance(random, 2));
    Options options;
    options.dropout = {chance(random, 4) ? 0.0 : 0.4, random(), random()};
    TensorView view = mask.result();
    const bool is_misused = chance(random, 2);
    if (is_misused) {
        spoil(view, random);
    }
    const bool ran = runs([&] { dropout_mask(options.dropout, view); }, is_misused, [&] { return mask.is_poison(); });
    if (!ran || is_misused) {
        return;
    }
    const HostTensor got = mask.taken();
    const auto* next = static_cast<const std::uint8_t*>(got.data());
    const std::uint32_t threshold = dropout_threshold(options.dropout.probability);
    for (std::int64_t i = 0; i < got.elements(); ++i) {
        const io::Shape& s = got.shape();
        const auto number = [&](std::int64_t x) { return static_cast<std::uint32_t>(x); };
        const bool kept =
            dropout_keep(options.dropout.seed, options.dropout.offset, number(i / s[3] / s[2] / s[1]),
                         number(i / s[3] / s[2] % s[1]), number(i / s[3] % s[2]), number(i % s[3]), threshold);
        if ((next[i] != 0) != kept) {
            throw Failure("dropout_mask() differs from dropout_keep()");
        }
    }
}

void fuzz(std::uint64_t seed)
{
    Random random(seed);
    switch (pick(random, 0, 9)) {
    case 0:
        return fuzz_merge(random);
    case 1:
        return fuzz_dropout_mask(random);
    default:
        return fuzz_attention(random);
    }
}

} // namespace
} // namespace flashomp::testing

int main(int argc, char** argv)
{
    const std::uint64_t calls = argc > 1 ? std::stoull(argv[1]) : 1000;
    const std::uint64_t first = argc > 2 ? std::stoull(argv[2]) : 1;
    const bool is_loud = std::getenv("FLASHOMP_FUZZ_LOUD") != nullptr; // the seed of a call that ends the process
    for (std::uint64_t seed = first; seed < first + calls; ++seed) {
        if (is_loud) {
            std::cerr << seed << std::endl;
        }
        try {
            flashomp::testing::fuzz(seed);
        } catch (const std::exception& error) {
            std::cerr << "seed " << seed << ": " << error.what() << '\n';
            return 1;
        }
    }
    std::cout << calls << " calls from seed " << first << " on: nothing found\n";
}
