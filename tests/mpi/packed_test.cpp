// Packed sequences that begin and end anywhere in the ranks' rows.
#include "on_ranks.hpp"

namespace flashomp::testing {
namespace {

constexpr Shape shape{0, 6, 2, 0, 0, 16, 24};

TEST(ShardedPacked, HaveTheResultsOfASingleCall)
{
    const Lengths lengths{{23, 0, 1, 40, 9, 17, 0, 5}, {23, 4, 1, 31, 0, 30, 0, 12}};
    const std::vector<std::pair<const char*, std::function<void(AttentionCase&)>>> options{
        {"nothing", [](AttentionCase&) {}},
        {"causal", [](AttentionCase& c) { c.options.causal = Causal::bottom_right; }},
        {"window, sink, alibi",
         [](AttentionCase& c) {
             c.options.window = {7, 5};
             c.add_sink();
             c.add_alibi(true);
         }},
        {"large logits, sink",
         [](AttentionCase& c) {
             c.options.causal = Causal::bottom_right;
             c.options.scale = -59.0;
             c.add_sink();
         }},
        {"bias, padding",
         [](AttentionCase& c) {
             c.add_bias({false, false, false, false}, DType::float32);
             c.add_key_padding();
         }},
        {"dropout",
         [](AttentionCase& c) {
             c.options.causal = Causal::top_left;
             c.add_dropout(0.3);
             c.options.first_sequence = 2;
         }},
        {"dropout, block mask",
         [](AttentionCase& c) { // as long as the longest, for each sequence and head
             const Shape& s = c.shape();
             const HostTensor mask =
                 random_mask(c.random(), {s.batch, s.heads_q, s.seqlen_q, s.seqlen_k}, 16, 0.3, 0.3, 0.5);
             c.options.block_mask = BlockMask::from_mask(mask.view(), 16, 20);
             c.add_dropout(0.2);
         }},
    };
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        for (const auto& [name, set] : options) {
            AttentionCase attention(shape, lengths, dtype, 31);
            set(attention);
            attention.poison_outputs();
            Expected expected;
            if (rank() == 0) {
                expected = attention.expected();
                expected.float32_dbias = expected.naive_gradients.dbias;
                expected.float32_dsink = expected.naive_gradients.dsink;
            }
            for (const auto& [sharding_name, sharding] : shardings(shape.heads_q)) {
                SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << name << " " << sharding_name);
                OnRanks on_ranks(attention, sharding);
                on_ranks.o = HostTensor(DType::float32, on_ranks.o.shape(), Fill::poison);
                static_cast<void>(on_ranks.run());
                on_ranks.o = io::converted(on_ranks.o, dtype);
                on_ranks.give_back();
                if (rank() == 0) {
                    expect_passed(attention.compare(expected));
                }
            }
        }
    }
}

} // namespace
} // namespace flashomp::testing
