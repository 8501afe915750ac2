// BlockMask as a class of Python.
#include "block_mask.hpp"

#include "tensor_argument.hpp"

#include <flashomp/error.hpp>

#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace flashomp::python {

namespace {

/// The elements of a contiguous tensor of the CPU, as numbers of this type.
template <class Number>
std::span<const Number> numbers(const TensorArgument& tensor, DType dtype, const char* wanted)
{
    const TensorView& view = tensor.view();
    std::int64_t stride = 1;
    bool is_contiguous = view.memory == Memory::host && view.dtype == dtype;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
        const auto a = static_cast<std::size_t>(axis);
        is_contiguous = is_contiguous && (view.shape.at(a) <= 1 || view.strides.at(a) == stride);
        stride *= view.shape.at(a);
    }
    if (!is_contiguous) {
        throw Error(std::string(tensor.name()) + " is " + std::string(name_of(view.dtype)) + " " + shape_string(view) +
                    "; it must be " + wanted + ", contiguous on the CPU.");
    }
    return {static_cast<const Number*>(view.data), static_cast<std::size_t>(view.elements())};
}

BlockMask from_mask(nb::handle mask, std::int64_t block_q, std::int64_t block_k)
{
    const TensorArgument tensor("mask", mask, Use::input);
    const ConstTensorView view = tensor.view();
    nb::gil_scoped_release release;
    return BlockMask::from_mask(view, block_q, block_k);
}

BlockMask from_documents(nb::handle ids, bool causal, std::int64_t block_q, std::int64_t block_k)
{
    const TensorArgument tensor("ids", ids, Use::input);
    if (tensor.view().rank != 2) {
        throw Error("ids has " + std::to_string(tensor.view().rank) + " axes; it must be int32 [B, N].");
    }
    return BlockMask::from_documents(numbers<std::int32_t>(tensor, DType::int32, "int32 [B, N]"),
                                     tensor.view().shape[0], causal, block_q, block_k);
}

BlockMask from_blocks(const std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>& shape,
                      nb::handle starts, nb::handle blocks, nb::handle bits_of_block, nb::handle bits,
                      std::int64_t block_q, std::int64_t block_k)
{
    const auto& [batch, heads_q, seqlen_q, seqlen_k] = shape;
    const TensorArgument s("starts", starts, Use::input);
    const TensorArgument b("blocks", blocks, Use::input);
    const TensorArgument of("bits_of_block", bits_of_block, Use::input);
    // numpy.packbits() gives uint8, whose bytes come as booleans.
    const nb::object as_booleans = bits.is_none() ? nb::none() : nb::object(bits.attr("view")("bool"));
    const TensorArgument bytes("bits", as_booleans, Use::input);
    return BlockMask::from_blocks(
        {batch, heads_q, seqlen_q, seqlen_k, block_q, block_k}, numbers<std::int64_t>(s, DType::int64, "int64"),
        numbers<std::int32_t>(b, DType::int32, "int32"), numbers<std::int32_t>(of, DType::int32, "int32"),
        bytes ? numbers<std::uint8_t>(bytes, DType::boolean, "uint8") : std::span<const std::uint8_t>{});
}

/// The mask as a bool array of NumPy, [batch, heads_q, seqlen_q, seqlen_k].
nb::object to_mask(const BlockMask& mask)
{
    const BlockMaskShape& s = mask.shape();
    const std::size_t shape[] = {static_cast<std::size_t>(s.batch), static_cast<std::size_t>(s.heads_q),
                                 static_cast<std::size_t>(s.seqlen_q), static_cast<std::size_t>(s.seqlen_k)};
    auto pairs = std::make_unique<bool[]>(shape[0] * shape[1] * shape[2] * shape[3]);
    bool* pair = pairs.get();
    for (std::int64_t b = 0; b < s.batch; ++b) {
        for (std::int64_t h = 0; h < s.heads_q; ++h) {
            for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
                for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
                    *pair++ = mask.keeps(b, h, i, j);
                }
            }
        }
    }
    bool* const data = pairs.release();
    const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<bool*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, bool>(data, 4, shape, owner));
}

} // namespace

BlockMask read_block_mask(nb::handle value)
{
    if (!nb::isinstance<BlockMask>(value)) {
        throw Error("block_mask was " + described(value) + "; it must be a flashomp.BlockMask.");
    }
    return nb::cast<BlockMask>(value);
}

void bind_block_mask(nb::module_& module)
{
    using namespace nb::literals;
    auto mask = nb::class_<BlockMask>(
        module, "BlockMask",
        "A block-sparse mask of [1|B, 1|Hq, Nq, Nk]: blocks of pairs that are whole, partial or hidden. Hidden blocks "
        "are "
        "neither loaded nor computed, forward and backward. Blocks have 16 to 65536 queries and keys. Immutable; all "
        "makers raise Error for what they do not take.");
    mask.attr("__module__") = "flashomp";
    mask.def_static("from_mask", &from_mask, "mask"_a, "block_q"_a = 128, "block_k"_a = 128,
                    "From a bool tensor [1|B, 1|Hq, Nq, Nk] on the CPU: True keeps.");
    mask.def_static("from_documents", &from_documents, "ids"_a, nb::kw_only(), "causal"_a = true, "block_q"_a = 128,
                    "block_k"_a = 128,
                    "ids: int32 [B, N] on the CPU. A token sees those of its own document; causal: only j <= i. A "
                    "negative id sees nothing and is seen by nothing.");
    mask.def_static(
        "from_lengths",
        [](const std::vector<std::int64_t>& lengths, bool causal, std::int64_t block_q, std::int64_t block_k) {
            return BlockMask::from_lengths(lengths, causal, block_q, block_k);
        },
        "lengths"_a, nb::kw_only(), "causal"_a = true, "block_q"_a = 128, "block_k"_a = 128,
        "One sequence of documents of these lengths, one after the other.");
    mask.def_static(
        "prefix_lm",
        [](const std::vector<std::int64_t>& prefix, std::int64_t seqlen, std::int64_t block_q, std::int64_t block_k) {
            return BlockMask::prefix_lm(prefix, seqlen, block_q, block_k);
        },
        "prefix"_a, "seqlen"_a, "block_q"_a = 128, "block_k"_a = 128,
        "Causal, but that all queries see the first prefix[b] keys. One prefix, or one for each sequence.");
    mask.def_static("chunked", &BlockMask::chunked, "seqlen"_a, "chunk"_a, "block_q"_a = 128, "block_k"_a = 128,
                    "Causal within chunks of so many tokens, as of Llama 4's local layers.");
    mask.def_static("dilated", &BlockMask::dilated, "seqlen"_a, "window"_a, "dilation"_a, "block_q"_a = 128,
                    "block_k"_a = 128, "0 <= i - j < window and (i - j) % dilation == 0.");
    mask.def_static(
        "sliding_with_global", &BlockMask::sliding_with_global, "seqlen"_a, "left"_a, "right"_a, "global_tokens"_a,
        nb::kw_only(), "causal"_a = true, "block_q"_a = 128, "block_k"_a = 128,
        "i - left <= j <= i + right (-1 is unbounded), but that the first global_tokens see all and are seen "
        "by all; causal: only j <= i.");
    mask.def_static(
        "from_blocks", &from_blocks, "shape"_a, "starts"_a, "blocks"_a, "bits_of_block"_a, "bits"_a.none() = nb::none(),
        "block_q"_a = 128, "block_k"_a = 128,
        "Compressed rows of blocks: shape (B, Hq, Nq, Nk); starts int64 [B*Hq*ceil(Nq/block_q) + 1]; blocks "
        "int32, ascending in a row; bits_of_block int32, -1 (whole) or the number of its bits; bits uint8 "
        "[number, block_q, ceil(block_k/8)], as numpy.packbits(..., axis=-1, bitorder='little').");
    mask.def("to_mask", &to_mask, "The mask as a bool array of NumPy, [B, Hq, Nq, Nk].");
    mask.def_prop_ro(
        "shape",
        [](const BlockMask& m) {
            const BlockMaskShape& s = m.shape();
            return std::tuple(s.batch, s.heads_q, s.seqlen_q, s.seqlen_k);
        },
        "(B, Hq, Nq, Nk); 1 for B or Hq where all have the same mask.");
    mask.def_prop_ro(
        "block_size", [](const BlockMask& m) { return std::tuple(m.shape().block_q, m.shape().block_k); },
        "(queries, keys) of a block.");
    mask.def_prop_ro("kept_pairs", &BlockMask::kept_pairs,
                     "Pairs that the mask keeps, of all its heads and sequences.");
}

} // namespace flashomp::python
