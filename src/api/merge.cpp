#include "dispatch.hpp"
#include "overlap.hpp"
#include "validate_choice.hpp"
#include "validate_options.hpp"
#include "validate_views.hpp"

#include "flashomp/dropout.hpp"

#include <fmt/format.h>
#include <vector>

namespace flashomp {

namespace {

void check_o(const char* name, const ConstTensorView& view)
{
    if (view.rank != 3 && view.rank != 4) {
        throw Error(fmt::format("{} has {} axes; it must be [batch, seqlen_q, heads, head_dim_v], or packed "
                                "[total, heads, head_dim_v].",
                                name, view.rank));
    }
    if (view.dtype != DType::float32 && view.dtype != DType::bfloat16 && view.dtype != DType::float16) {
        throw Error(fmt::format("{} is {}; it must be float32, bfloat16 or float16.", name, name_of(view.dtype)));
    }
    check_layout(name, view);
}

using Named = std::pair<const char*, ConstTensorView>;

/// An output may be one of the tensors it replaces, and share no other memory with the call's tensors.
void check_output(const Named& output, const std::vector<Named>& replaced, const std::vector<Named>& others)
{
    const auto& [name, view] = output;
    check_no_self_overlap(name, view);
    for (const auto& [other, input] : replaced) {
        const bool is_same = view.data == input.data && view.dtype == input.dtype && view.strides == input.strides;
        if (!is_same && overlap(view, input)) {
            throw Error(
                fmt::format("{} overlaps {} in memory without being the same tensor; allowed are the same tensor "
                            "or separate memory.",
                            name, other));
        }
    }
    for (const auto& [other, input] : others) {
        if (overlap(view, input)) {
            throw Error(fmt::format("{} overlaps {} in memory; they must not share memory.", name, other));
        }
    }
}

} // namespace

Report merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse, const Options& options)
{
    check_choice(options);
    if (options.backend == Backend::reference) {
        throw Error("backend was reference, which has no merge(); allowed are auto, openmp and cuda.");
    }
    for (const auto& [name, view] : std::initializer_list<Named>{
             {"a.o", a.o}, {"a.lse", a.lse}, {"b.o", b.o}, {"b.lse", b.lse}, {"o", o}, {"lse", lse}}) {
        check_view(name, view);
    }
    check_o("o", o);
    check_o("a.o", a.o);
    check_o("b.o", b.o);
    check_tensor("a.o", a.o, a.o.dtype, o.rank, o.shape, "o");
    check_tensor("b.o", b.o, b.o.dtype, o.rank, o.shape, "o");
    const bool packed = o.rank == 3;
    const std::array<std::int64_t, 4> rows = packed
                                                 ? std::array<std::int64_t, 4>{o.shape[1], o.shape[0], 0, 0}
                                                 : std::array<std::int64_t, 4>{o.shape[0], o.shape[2], o.shape[1], 0};
    const int rank = packed ? 2 : 3;
    constexpr std::int64_t most_depth = std::int64_t{1} << 16; // kernels count the elements of 16 rows in an int
    check_extent("o", "sequences", packed ? 1 : o.shape[0], most_rows);
    check_extent("o", "heads", rows[packed ? 0 : 1], most_heads);
    check_extent("o", "rows", rows[packed ? 1 : 2], most_rows);
    check_extent("o", "elements a row", o.shape[packed ? 2 : 3], most_depth);
    check_tensor("lse", lse, DType::float32, rank, rows, "the LSE of o");
    check_tensor("a.lse", a.lse, DType::float32, rank, rows, "the LSE of o");
    check_tensor("b.lse", b.lse, DType::float32, rank, rows, "the LSE of o");
    check_output({"o", o}, {{"a.o", a.o}, {"b.o", b.o}}, {{"a.lse", a.lse}, {"b.lse", b.lse}, {"lse", lse}});
    check_output({"lse", lse}, {{"a.lse", a.lse}, {"b.lse", b.lse}}, {{"a.o", a.o}, {"b.o", b.o}});
    return run_merge(a, b, o, lse, options);
}

void dropout_mask(const Dropout& dropout, const TensorView& mask)
{
    check_dropout(dropout);
    check_view("mask", mask);
    if (mask.rank != 4 || mask.dtype != DType::boolean || mask.memory != Memory::host) {
        throw Error(
            fmt::format("mask is {} {}; it must be boolean [batch, heads_q, seqlen_q, seqlen_k] in host memory.",
                        name_of(mask.dtype), shape_string(mask)));
    }
    check_layout("mask", mask);
    check_extent("mask", "sequences", mask.shape[0], most_rows);
    check_extent("mask", "heads", mask.shape[1], most_heads);
    check_extent("mask", "rows", mask.shape[2], most_rows);
    check_extent("mask", "keys", mask.shape[3], most_rows);
    check_no_self_overlap("mask", mask);
    if (mask.elements() == 0) {
        return; // and need not have memory
    }
    const PhiloxKey key = dropout_key(dropout.seed, dropout.offset);
    const std::uint32_t threshold = dropout_threshold(dropout.probability);
    const auto extent = [&](std::size_t axis) { return static_cast<std::uint32_t>(mask.shape.at(axis)); };
    for (std::uint32_t b = 0; b < extent(0); ++b) {
        for (std::uint32_t h = 0; h < extent(1); ++h) {
            for (std::uint32_t i = 0; i < extent(2); ++i) {
                auto* row = static_cast<std::uint8_t*>(mask.data) + b * mask.strides[0] + h * mask.strides[1] +
                            i * mask.strides[2];
                for (std::uint32_t j = 0; j < extent(3); ++j) {
                    row[j] = dropout_keep(key, b, h, i, j, threshold) ? 1 : 0;
                }
            }
        }
    }
}

} // namespace flashomp
