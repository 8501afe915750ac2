#include "engine.hpp"

#include "everywhere.hpp"

#include <algorithm>
#include <utility>

namespace flashomp::mpi {

namespace {

std::vector<std::int32_t> starts_of(const ConstTensorView& boundaries)
{
    if (!boundaries) {
        return {};
    }
    const auto* const first = static_cast<const std::int32_t*>(boundaries.data);
    return {first, first + boundaries.shape[0]};
}

/// The runs of each group of ranks.
std::vector<std::vector<Run>> runs_of_groups(Layout layout, const std::vector<std::int64_t>& rows, int members,
                                             const ConstTensorView& boundaries, std::int64_t length)
{
    const std::vector<std::int32_t> starts = starts_of(boundaries);
    std::vector<std::vector<Run>> runs;
    runs.reserve(rows.size());
    for (int first = 0; first < static_cast<int>(rows.size()); first += members) {
        runs.push_back(runs_of(rows_of_ranks(layout, rows, first, members), starts, length));
    }
    return runs;
}

std::int64_t extent_from_back(const ConstTensorView& view, int axis)
{
    return view.shape.at(static_cast<std::size_t>(view.rank - axis));
}

std::vector<HeadRange> query_ranges(int members, std::int64_t heads_q)
{
    std::vector<HeadRange> ranges;
    ranges.reserve(static_cast<std::size_t>(members));
    for (int member = 0; member < members; ++member) {
        ranges.push_back(query_heads(member, members, heads_q));
    }
    return ranges;
}

/// Pairs that causal and window leave of two runs. Rows are looked at one by one, up to some: beyond, every n-th stands
/// for n.
double pairs_of(const Options& options, const Piece& piece)
{
    constexpr std::int64_t most_looked_at = 64;
    const std::int64_t step = std::max<std::int64_t>(1, piece.q.at.count / most_looked_at);
    const auto key_end = static_cast<double>(piece.k.at.first + piece.k.at.count);
    double pairs = 0.0;
    for (std::int64_t row = 0; row < piece.q.at.count; row += step) {
        const auto i = static_cast<double>(piece.q.at.first + row);
        const auto delta = static_cast<double>(piece.k.whole - piece.q.whole);
        double first = static_cast<double>(piece.k.at.first), end = key_end;
        if (options.causal != Causal::none) {
            end = std::min(end, i + (options.causal == Causal::bottom_right ? delta : 0.0) + 1.0);
        }
        if (options.window.left >= 0) {
            first = std::max(first, i + delta - static_cast<double>(options.window.left));
        }
        if (options.window.right >= 0) {
            end = std::min(end, i + delta + static_cast<double>(options.window.right) + 1.0);
        }
        pairs += std::max(0.0, end - first) * static_cast<double>(std::min(step, piece.q.at.count - row));
    }
    return pairs;
}

} // namespace

Geometry::Geometry(const Call& call, const Whole& whole, Layout layout, int rank, int sharing_ranks)
    : batch(call.is_packed() ? 1 : call.args.q.shape[0]), heads_q(extent_from_back(call.args.q, 2)),
      heads_kv(extent_from_back(call.args.k, 2)), head_dim(extent_from_back(call.args.q, 1)),
      head_dim_v(extent_from_back(call.args.v, 1)), heads_ranks(sharing_ranks),
      ring_ranks(static_cast<int>(whole.rows_q.size()) / sharing_ranks), member(rank % sharing_ranks),
      ring_rank(rank / sharing_ranks), queries(layout, whole.rows_q, rank - rank % sharing_ranks, sharing_ranks),
      keys(layout, whole.rows_k, rank - rank % sharing_ranks, sharing_ranks),
      runs_q(runs_of_groups(layout, whole.rows_q, sharing_ranks, call.options.cu_seqlens_q, whole.length_q)),
      runs_k(runs_of_groups(layout, whole.rows_k, sharing_ranks, call.options.cu_seqlens_k, whole.length_k)),
      route(ring_ranks,
            [&](int of_q, int of_k) {
                return any_piece(call.options, runs_q[static_cast<std::size_t>(of_q)],
                                 runs_k[static_cast<std::size_t>(of_k)]);
            }),
      ranges_q(query_ranges(sharing_ranks, heads_q))
{
    for (const HeadRange& range : ranges_q) {
        ranges_k.push_back(mpi::key_heads(range, heads_q, heads_kv));
    }
    for (int first = 0; first < static_cast<int>(whole.rows_k.size()); first += sharing_ranks) {
        rows_k.push_back(rows_of(rows_of_ranks(layout, whole.rows_k, first, sharing_ranks)));
    }
}

Place Geometry::place(std::int64_t element_bytes) const
{
    Place place{route, ring_rank, {}, {}};
    for (int group = 0; group < ring_ranks; ++group) {
        place.members.push_back(group * heads_ranks + member);
        place.bytes.push_back(batch * rows_k[static_cast<std::size_t>(group)] * key_heads().count *
                              (head_dim + head_dim_v) * element_bytes);
    }
    return place;
}

CostShape cost_shape(const Call& call, const Geometry& ring)
{
    CostShape shape;
    shape.ranks = ring.ring_ranks;
    shape.batch = static_cast<double>(ring.batch);
    shape.heads_q = static_cast<double>(ring.heads_q);
    shape.heads_kv = static_cast<double>(ring.heads_kv);
    shape.head_dim = static_cast<double>(ring.head_dim);
    shape.head_dim_v = static_cast<double>(ring.head_dim_v);
    shape.element_bytes = static_cast<double>(size_of(call.args.q.dtype));
    shape.is_backward = call.is_backward;
    shape.pairs_of_busiest = shape.pairs_of_all = shape.length_q = shape.length_k = 0.0;
    for (int rank = 0; rank < ring.ring_ranks; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        double pairs = 0.0, blocks = 0.0;
        for (int block = 0; block < ring.ring_ranks; ++block) {
            blocks += block != rank && ring.route.needs(rank, block) ? 1.0 : 0.0;
            for (const Piece& piece :
                 pieces_of(call.options, ring.runs_q[r], ring.runs_k[static_cast<std::size_t>(block)])) {
                pairs += pairs_of(call.options, piece);
            }
        }
        for (const Run& run : ring.runs_q[r]) {
            shape.length_q += static_cast<double>(run.at.count);
        }
        shape.length_k += static_cast<double>(ring.rows_k[r]);
        shape.pairs_of_all += pairs;
        shape.pairs_of_busiest = std::max(shape.pairs_of_busiest, pairs);
        shape.blocks_of_busiest = std::max(shape.blocks_of_busiest, blocks);
    }
    return shape;
}

Engine::Engine(Messages& messages, const Call& call, const Whole& whole, const Geometry& geometry, const Choice& choice)
    : messages_(messages), site_(messages.site()), call_(call), geometry_(geometry),
      bias_has_rows_(!call.is_packed() && whole.bias_has_rows),
      mask_has_rows_(!call.is_packed() && whole.mask_has_rows),
      head_runs_(head_runs(geometry.heads(), geometry.heads_q, geometry.heads_kv)),
      block_masks_(call, whole, geometry.queries, messages.rank() - geometry.member, messages.rank()),
      first_of_(geometry.runs_q[static_cast<std::size_t>(geometry.ring_rank)].size())
{
    const Place place = geometry.place(size_of(call.args.q.dtype));
    keys_ = choice.scheme == Scheme::all_gather ? keys_gathered(messages, place) : keys_of_ring(messages, place);
    report_.scheme = choice.scheme;
    report_.heads_ranks = geometry.heads_ranks;
    report_.why = choice.why;
    for (int step = 0; step < geometry.ring_ranks; ++step) {
        pieces_.push_back(
            pieces_of(call.options, own_runs(), geometry.runs_k[static_cast<std::size_t>(block_of(step))]));
    }
    for (const std::vector<Piece>& of_step : pieces_) {
        for (const Piece& piece : of_step) {
            const Piece*& first = first_of_[index_of_run(piece.q)];
            first = first == nullptr ? &piece : first;
        }
    }
    q_shared_ = buffer(input_bytes(batched(call.args.q)));
    bias_shared_ = buffer(pairs_bytes(call.options.bias, bias_has_rows_));
    mask_shared_ = buffer(pairs_bytes(call.options.mask, mask_has_rows_));
    const std::int64_t exchanged = exchange_bytes();
    exchange_ = {buffer(exchanged, Stage::for_messages), buffer(exchanged, Stage::for_messages)};
    report_.extra_bytes = keys_->bytes() + q_shared_.bytes() + bias_shared_.bytes() + mask_shared_.bytes() +
                          block_masks_.bytes() + 2 * exchanged;
}

Report Engine::run(bool computes)
{
    const double computed_before = messages_.seconds_computing();
    share_inputs();
    for (int step = 0; step < geometry_.ring_ranks; ++step) {
        keys_->begin(step);
        begin_step(step);
        if (computes && keys_->block(step) != nullptr) {
            for (const Piece& piece : pieces_[static_cast<std::size_t>(step)]) {
                for (const HeadRun& heads : head_runs_) {
                    attempt([&] { compute(piece, heads, step); });
                    keys_->progress();
                }
            }
        }
        end_step(step);
        keys_->end(step);
    }
    finish();
    site_.wait();
    attempt([&] { site_.expect_no_failure(); });
    expect_no_failure(messages_, failure_);
    report_.bytes_sent = messages_.bytes_sent();
    report_.seconds_computing += messages_.seconds_computing() - computed_before;
    report_.seconds_waiting = messages_.seconds_waiting();
    return std::move(report_);
}

void Engine::share_inputs()
{
    const ConstTensorView k = batched(call_.args.k), v = batched(call_.args.v);
    const int own = geometry_.ring_rank;
    const TensorView own_k = key_view(keys_->own(), own, k.dtype), own_v = value_view(keys_->own(), own, v.dtype);
    if (geometry_.shares_heads()) {
        geometry_.keys.share_out(messages_, k, geometry_.ranges_k, own_k, exchange_);
        geometry_.keys.share_out(messages_, v, geometry_.ranges_k, own_v, exchange_);
    } else {
        copy(k, own_k);
        copy(v, own_v);
    }
    q_ = shared_input(batched(call_.args.q), q_shared_);
    bias_ = call_.options.bias ? shared_pairs(call_.options.bias, bias_has_rows_, bias_shared_) : ConstTensorView{};
    mask_ = call_.options.mask ? shared_pairs(call_.options.mask, mask_has_rows_, mask_shared_) : ConstTensorView{};
    if (wants_wide_bias_ && bias_.dtype != DType::float32) {
        const TensorView wide =
            bias_wide_.view(DType::float32, {bias_.shape[0], bias_.shape[1], bias_.shape[2], bias_.shape[3]});
        site_.convert(bias_, wide);
        bias_ = wide;
    }
    if (call_.options.block_mask) {
        block_masks_.exchange(messages_);
        attempt([&] { block_masks_.assemble(); });
    }
    options_ = std::make_unique<PartOptions>(call_, bias_, mask_, block_masks_, geometry_.heads().first, site_);
}

void Engine::sum_over_ranks(Buffer& values, Buffer& scratch)
{
    const auto floats = [](std::span<std::byte> bytes) {
        return std::span(reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float));
    };
    messages_.sum(floats(values.on_host()), floats(scratch.host_memory()));
    values.from_host();
}

TensorView Engine::key_view(std::byte* block, int of, DType dtype) const
{
    const Geometry& g = geometry_;
    return TensorView::contiguous(block, dtype,
                                  {g.batch, g.rows_k[static_cast<std::size_t>(of)], g.key_heads().count, g.head_dim},
                                  site_.memory());
}

TensorView Engine::value_view(std::byte* block, int of, DType dtype) const
{
    const TensorView k = key_view(block, of, dtype);
    return TensorView::contiguous(block + k.elements() * size_of(dtype), dtype,
                                  {k.shape[0], k.shape[1], k.shape[2], geometry_.head_dim_v}, site_.memory());
}

std::int64_t Engine::most_rows(const std::vector<std::vector<Run>>& runs)
{
    std::int64_t most = 0;
    for (const std::vector<Run>& of_group : runs) {
        for (const Run& run : of_group) {
            most = std::max(most, run.at.count);
        }
    }
    return most;
}

const std::vector<Run>& Engine::own_runs() const
{
    return geometry_.runs_q[static_cast<std::size_t>(geometry_.ring_rank)];
}

std::size_t Engine::index_of_run(const Run& run) const
{
    const auto found = std::lower_bound(own_runs().begin(), own_runs().end(), run,
                                        [](const Run& a, const Run& b) { return a.row < b.row; });
    return static_cast<std::size_t>(found - own_runs().begin());
}

Options merge_options(const Options& options)
{
    Options of_merge;
    of_merge.threads = options.threads;
    if (options.backend == Backend::reference) { // it has no merge
        of_merge.device.kind = Device::Kind::host;
        return of_merge;
    }
    of_merge.backend = options.backend;
    of_merge.machine = options.machine;
    of_merge.device = options.device;
    of_merge.stream = options.stream;
    return of_merge;
}

} // namespace flashomp::mpi
