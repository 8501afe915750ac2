// Forward: o and LSE of the keys seen so far, merged with those of each block (docs/distributed.md, "Forward").
#include "engine.hpp"

#include <limits>

namespace flashomp::mpi {

namespace {

class ForwardEngine : public Engine {
public:
    ForwardEngine(Messages& messages, const Call& call, const Whole& whole, const Geometry& geometry,
                  const Choice& choice)
        : Engine(messages, call, whole, geometry, choice)
    {
        const std::int64_t rows = geometry.queries.rows(), heads = geometry.heads().count;
        const std::int64_t most = most_rows({own_runs()});
        part_o_ = buffer(DType::float32, {geometry.batch, most, heads, geometry.head_dim_v});
        part_lse_ = buffer(DType::float32, {geometry.batch, heads, most});
        // The caller's own tensors where they can hold sums.
        const bool is_in_place = !geometry.shares_heads() && call.o.dtype == DType::float32;
        if (!is_in_place) {
            sum_o_ = buffer(DType::float32, {geometry.batch, rows, heads, geometry.head_dim_v});
        }
        o_ = is_in_place ? batched(call.o)
                         : sum_o_.view(DType::float32, {geometry.batch, rows, heads, geometry.head_dim_v});
        if (geometry.shares_heads()) {
            sum_lse_ = buffer(DType::float32, {geometry.batch, heads, rows});
            rounded_ = buffer(call.o.dtype, {geometry.batch, rows, heads, geometry.head_dim_v});
        }
        lse_ =
            geometry.shares_heads() ? sum_lse_.view(DType::float32, {geometry.batch, heads, rows}) : batched(call.lse);
        report_.extra_bytes +=
            part_o_.bytes() + part_lse_.bytes() + sum_o_.bytes() + sum_lse_.bytes() + rounded_.bytes();
    }

private:
    void begin_step(int /*step*/) override {}
    void end_step(int /*step*/) override {}

    void compute(const Piece& piece, const HeadRun& heads, int step) override
    {
        std::byte* const block = keys_->block(step);
        const int of = block_of(step);
        const ConstTensorView q = rows_part(q_, piece.q, heads.q);
        const ConstTensorView k = rows_part(key_view(block, of, q.dtype), piece.k, heads.k);
        const ConstTensorView v = rows_part(value_view(block, of, q.dtype), piece.k, heads.k);
        const TensorView o = rows_part(o_, piece.q, heads.q), lse = lse_part(lse_, piece.q, heads.q);
        Options options = options_->of(piece, heads.q);
        ++report_.calls;
        if (is_first(piece)) {
            if (call_.options.sink) {
                options.sink = options_->sink(heads.q);
            }
            report_.last = site_.forward({q, k, v, o, lse}, options);
            return;
        }
        const TensorView part_o = part_o_.view(DType::float32, {o.shape[0], o.shape[1], o.shape[2], o.shape[3]});
        const TensorView part_lse = part_lse_.view(DType::float32, {lse.shape[0], lse.shape[1], lse.shape[2]});
        report_.last = site_.forward({q, k, v, part_o, part_lse}, options);
        site_.merge({o, lse}, {part_o, part_lse}, o, lse, merge_options(call_.options));
    }

    void finish() override
    {
        attempt([&] {
            for (const Run& run : own_runs()) {
                if (!has_pieces(run)) {
                    fill_without_keys(run);
                }
            }
        });
        if (!geometry_.shares_heads()) {
            if (call_.o.dtype != DType::float32) {
                attempt([&] { round_into(o_, batched(call_.o)); });
            }
            return;
        }
        const TensorView rounded = rounded_.view(call_.o.dtype, {o_.shape[0], o_.shape[1], o_.shape[2], o_.shape[3]});
        attempt([&] { round_into(o_, rounded); });
        geometry_.queries.bring_home(messages_, rounded, geometry_.ranges_q, batched(call_.o), exchange_);
        geometry_.queries.bring_home(messages_, rows_first(ConstTensorView(lse_)), geometry_.ranges_q,
                                     rows_first(batched(call_.lse)), exchange_);
    }

    /// A softmax over nothing: o = 0, and LSE is the sink's logit or -inf.
    void fill_without_keys(const Run& run)
    {
        const HeadRange heads{0, geometry_.heads().count};
        fill(rows_part(o_, run, heads), 0.0F);
        const TensorView lse = lse_part(lse_, run, heads);
        if (!call_.options.sink) {
            fill(lse, -std::numeric_limits<float>::infinity());
            return;
        }
        ConstTensorView sink = options_->sink(heads); // one for all sequences and rows
        const std::int64_t step = sink.strides[0];
        sink.rank = lse.rank;
        sink.shape = lse.shape;
        sink.strides = {0, step, 0, 0};
        copy(sink, lse);
    }

    Buffer part_o_, part_lse_, sum_o_, sum_lse_, rounded_;
    TensorView o_, lse_; ///< of the keys seen so far
};

} // namespace

std::unique_ptr<Engine> forward_engine(Messages& messages, const Call& call, const Whole& whole,
                                       const Geometry& geometry, const Choice& choice)
{
    return std::make_unique<ForwardEngine>(messages, call, whole, geometry, choice);
}

} // namespace flashomp::mpi
