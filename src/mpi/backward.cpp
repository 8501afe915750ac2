// Backward: sums over blocks of keys (dQ) and over the ranks that saw a block (dK, dV); docs/distributed.md,
// "Backward".
#include "engine.hpp"

namespace flashomp::mpi {

namespace {

class BackwardEngine : public Engine {
public:
    BackwardEngine(Messages& messages, const Call& call, const Whole& whole, const Geometry& geometry,
                   const Choice& choice)
        : Engine(messages, call, whole, geometry, choice)
    {
        const Geometry& g = geometry;
        const Place place = g.place(size_of(DType::float32));
        gradients_ = choice.scheme == Scheme::all_gather ? gradients_sent_home(messages, place)
                                                         : gradients_of_ring(messages, place);
        const std::int64_t rows = g.queries.rows(), heads = g.heads().count, key_heads = g.key_heads().count;
        const std::int64_t most_q = most_rows({own_runs()}), most_k = most_rows(g.runs_k);
        const BackwardArgs& a = call.args;
        sum_dq_ = buffer(DType::float32, {g.batch, rows, heads, g.head_dim});
        part_dq_ = buffer(DType::float32, {g.batch, most_q, heads, g.head_dim});
        part_dk_ = buffer(DType::float32, {g.batch, most_k, key_heads, g.head_dim});
        part_dv_ = buffer(DType::float32, {g.batch, most_k, key_heads, g.head_dim_v});
        sum_dq_.clear();
        if (g.shares_heads()) {
            const std::int64_t own = a.k.shape[call.is_packed() ? 0 : 1];
            o_shared_ = buffer(input_bytes(batched(a.o)));
            dout_shared_ = buffer(input_bytes(batched(a.dout)));
            lse_shared_ = buffer(DType::float32, {g.batch, heads, rows});
            rounded_dq_ = buffer(a.dq.dtype, {g.batch, rows, heads, g.head_dim});
            own_dk_ = buffer(DType::float32, {g.batch, own, g.heads_kv, g.head_dim});
            own_dv_ = buffer(DType::float32, {g.batch, own, g.heads_kv, g.head_dim_v});
            own_dk_.clear();
            own_dv_.clear();
            home_ = buffer(DType::float32, {g.batch, own, key_heads_of_most(), std::max(g.head_dim, g.head_dim_v)});
        }
        if (a.dsink) {
            sum_dsink_ = buffer(DType::float32, {g.heads_q}, Stage::always);
            part_dsink_ = buffer(DType::float32, {g.heads_q}, Stage::always);
            sum_dsink_.clear();
        }
        if (a.dbias) {
            allocate_dbias(call.options.bias);
        }
        for (const Buffer* const buffer :
             {&sum_dq_, &part_dq_, &part_dk_, &part_dv_, &o_shared_, &dout_shared_, &lse_shared_, &rounded_dq_,
              &own_dk_, &own_dv_, &home_, &sum_dbias_, &part_dbias_, &all_dbias_, &bias_wide_}) {
            report_.extra_bytes += buffer->bytes();
        }
        report_.extra_bytes += gradients_->bytes();
    }

private:
    void begin_step(int step) override
    {
        if (step == 0) {
            o_ = shared_input(batched(call_.args.o), o_shared_);
            dout_ = shared_input(batched(call_.args.dout), dout_shared_);
            lse_ = batched(call_.args.lse);
            if (geometry_.shares_heads()) {
                const TensorView shared = lse_shared_.view(
                    DType::float32, {geometry_.batch, geometry_.heads().count, geometry_.queries.rows()});
                geometry_.queries.share_out(messages_, rows_first(lse_), geometry_.ranges_q, rows_first(shared),
                                            exchange_);
                lse_ = shared;
            }
        }
        gradients_->begin(step);
    }

    void compute(const Piece& piece, const HeadRun& heads, int step) override
    {
        std::byte* const block = keys_->block(step);
        const int of = block_of(step);
        BackwardArgs args;
        args.q = rows_part(q_, piece.q, heads.q);
        args.k = rows_part(key_view(block, of, q_.dtype), piece.k, heads.k);
        args.v = rows_part(value_view(block, of, q_.dtype), piece.k, heads.k);
        args.o = rows_part(o_, piece.q, heads.q);
        args.dout = rows_part(dout_, piece.q, heads.q);
        args.lse = lse_part(lse_, piece.q, heads.q);
        args.dq = like(part_dq_, args.q);
        args.dk = like(part_dk_, args.k);
        args.dv = like(part_dv_, args.v);
        Options options = options_->of(piece, heads.q);
        if (call_.args.dbias) {
            args.dbias = like(part_dbias_, options.bias);
        }
        if (call_.options.sink && is_first(piece)) { // a call that sees whole rows repairs them by it
            options.sink = options_->sink(heads.q);
            if (call_.args.dsink) { // it is of rows, whatever their keys
                args.dsink = part_dsink_.view(DType::float32, {heads.q.count});
            }
        }
        ++report_.calls;
        report_.last = site_.backward(args, options);
        add(args.dq, rows_part(dq_view(), piece.q, heads.q));
        std::byte* const part = gradients_->part(step);
        add(args.dk, rows_part(key_view(part, of, DType::float32), piece.k, heads.k));
        add(args.dv, rows_part(value_view(part, of, DType::float32), piece.k, heads.k));
        if (args.dbias) {
            add(args.dbias, options_->pairs(dbias_view(), piece, heads.q));
        }
        if (args.dsink) {
            const TensorView all = sum_dsink_.view(DType::float32, {geometry_.heads_q});
            add(args.dsink, part_of(all, 0, geometry_.heads().first + heads.q.first, heads.q.count));
        }
    }

    void end_step(int step) override { gradients_->end(step); }

    void finish() override
    {
        const int own = geometry_.ring_rank;
        std::byte* const sums = gradients_->sums();
        const TensorView dk = key_view(sums, own, DType::float32), dv = value_view(sums, own, DType::float32);
        if (geometry_.shares_heads()) {
            const TensorView dq = like(rounded_dq_, dq_view(), call_.args.dq.dtype);
            attempt([&] { round_into(dq_view(), dq); });
            geometry_.queries.bring_home(messages_, dq, geometry_.ranges_q, batched(call_.args.dq), exchange_);
            add_home(dk, own_dk_, batched(call_.args.dk));
            add_home(dv, own_dv_, batched(call_.args.dv));
        } else {
            attempt([&] {
                round_into(dq_view(), batched(call_.args.dq));
                round_into(dk, batched(call_.args.dk));
                round_into(dv, batched(call_.args.dv));
            });
        }
        finish_dbias();
        if (call_.args.dsink) {
            sum_over_ranks(sum_dsink_, part_dsink_);
            attempt([&] { copy(sum_dsink_.view(DType::float32, {geometry_.heads_q}), call_.args.dsink); });
        }
    }

    void add_home(const ConstTensorView& shared, Buffer& sums, const TensorView& result)
    {
        const TensorView own = like(sums, result);
        geometry_.keys.add_home(messages_, shared, geometry_.ranges_k, own, home_, exchange_);
        attempt([&] { round_into(own, result); });
    }

    // dbias is summed in float32 over sequences, heads, rows or keys for which bias is one, over the calls that they
    // are spread over, and rounded once. A bias that is rounded has its values in float32 for that.

    void allocate_dbias(const ConstTensorView& bias)
    {
        const std::int64_t heads = bias.shape[1] == 1 ? 1 : geometry_.heads().count;
        const std::int64_t rows = bias_has_rows_ ? geometry_.queries.rows() : bias.shape[2];
        dbias_shape_ = {bias.shape[0], heads, rows, bias.shape[3]};
        const std::int64_t bytes = Buffer::bytes_of(DType::float32, {bias.shape[0], heads, rows, bias.shape[3]});
        sum_dbias_ = buffer(bytes);
        sum_dbias_.clear();
        wants_wide_bias_ = true;
        bias_wide_ = buffer(bias.dtype == DType::float32
                                ? 0
                                : Buffer::bytes_of(DType::float32, {bias.shape[0], heads, rows, bias.shape[3]}));
        const bool is_spread = !bias_has_rows_ || geometry_.shares_heads();
        const Stage stage = bias_has_rows_ ? Stage::none : Stage::always; // of sums over ranks
        all_dbias_ = buffer(
            is_spread ? Buffer::bytes_of(DType::float32, {bias.shape[0], bias.shape[1], bias.shape[2], bias.shape[3]})
                      : 0,
            stage);
        all_dbias_.clear();
        part_dbias_ = buffer(std::max(bytes, all_dbias_.bytes()), stage); // no part is larger than the whole
    }

    void finish_dbias()
    {
        const TensorView& result = call_.args.dbias;
        if (!result) {
            return;
        }
        if (bias_has_rows_ && !geometry_.shares_heads()) {
            attempt([&] { round_into(dbias_view(), result); });
            return;
        }
        const TensorView all = like(all_dbias_, result);
        if (bias_has_rows_) { // members have the same head where there is one for all, and different ones else
            geometry_.queries.add_home(messages_, ConstTensorView(dbias_view()).transposed(1, 2), pair_ranges(result),
                                       all.transposed(1, 2), part_dbias_, exchange_);
        } else { // all ranks have parts of the same elements
            attempt(
                [&] { add(dbias_view(), part_unless_one(all, 1, geometry_.heads().first, geometry_.heads().count)); });
            sum_over_ranks(all_dbias_, part_dbias_);
        }
        attempt([&] { round_into(all, result); });
    }

    [[nodiscard]] std::int64_t key_heads_of_most() const
    {
        std::int64_t most = 0;
        for (const HeadRange& range : geometry_.ranges_k) {
            most = std::max(most, range.count);
        }
        return most;
    }

    /// A row-major float32 tensor of the shape of another one.
    static TensorView like(const Buffer& memory, const ConstTensorView& shape, DType dtype = DType::float32)
    {
        return memory.like(shape, dtype);
    }
    [[nodiscard]] TensorView dq_view()
    {
        return sum_dq_.view(DType::float32,
                            {geometry_.batch, geometry_.queries.rows(), geometry_.heads().count, geometry_.head_dim});
    }
    [[nodiscard]] TensorView dbias_view()
    {
        return TensorView::contiguous(sum_dbias_.data(), DType::float32, dbias_shape_, site_.memory());
    }

    std::unique_ptr<Gradients> gradients_;
    ConstTensorView o_, dout_, lse_;
    std::vector<std::int64_t> dbias_shape_;
    Buffer sum_dq_, part_dq_, part_dk_, part_dv_;
    Buffer sum_dbias_, part_dbias_, all_dbias_, sum_dsink_, part_dsink_;
    Buffer o_shared_, dout_shared_, lse_shared_, rounded_dq_, own_dk_, own_dv_, home_; ///< where heads are shared out
};

} // namespace

std::unique_ptr<Engine> backward_engine(Messages& messages, const Call& call, const Whole& whole,
                                        const Geometry& geometry, const Choice& choice)
{
    return std::make_unique<BackwardEngine>(messages, call, whole, geometry, choice);
}

} // namespace flashomp::mpi
