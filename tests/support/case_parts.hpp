// A case in parts of its sequences and heads: calls on views of its tensors, whose options say where they stand.
#pragma once

#include "attention_case.hpp"

#include <functional>
#include <vector>

namespace flashomp::testing {

/// Sequences, or key heads with the query heads that share them.
struct Extent {
    std::int64_t first = 0, count = 0;
};

/// What an axis has of an extent, the whole where it broadcasts; `each` elements of the axis are one of the extent.
template <class View>
View taken(View view, int axis, const Extent& extent, std::int64_t each = 1)
{
    const auto a = static_cast<std::size_t>(axis);
    if (!view || view.shape.at(a) == 1) {
        return view;
    }
    const std::int64_t bytes = extent.first * each * view.strides.at(a) * size_of(view.dtype);
    using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
    view.data = static_cast<Byte*>(view.data) + bytes;
    view.shape.at(a) = extent.count * each;
    return view;
}

/// Tensors and options of one call. They view the case, but for cu_seqlens.
class CasePart {
public:
    CasePart(AttentionCase& whole, const Extent& sequences, const Extent& key_heads)
        : options_(whole.options), packed_(whole.packed()), sequences_(sequences), key_heads_(key_heads),
          group_(whole.shape().heads_q / whole.shape().heads_kv)
    {
        if (packed_) {
            rows_q_ = rows(whole.cu_seqlens_q, starts_q_);
            rows_k_ = rows(whole.cu_seqlens_k, starts_k_);
            options_.cu_seqlens_q = std::as_const(starts_q_).view();
            options_.cu_seqlens_k = std::as_const(starts_k_).view();
        }
        options_.first_sequence = sequences.first;
        options_.first_head = key_heads.first * group_;
        options_.sink = taken(options_.sink, 0, key_heads_, group_);
        ConstTensorView& slopes = options_.alibi_slopes;
        slopes = slopes.rank == 2 ? taken(slopes, 0, sequences_) : slopes;
        slopes = taken(slopes, slopes.rank - 1, key_heads_, group_);
        options_.bias = pairs(options_.bias);
        options_.mask = pairs(options_.mask);
        options_.key_padding_mask = taken(options_.key_padding_mask, 0, sequences_);
        args_ = whole.backward_args();
        for (ConstTensorView* const view : {&args_.q, &args_.o, &args_.dout}) {
            *view = of_rows(*view, rows_q_, group_);
        }
        args_.dq = of_rows(args_.dq, rows_q_, group_);
        args_.k = of_rows(args_.k, rows_k_, 1);
        args_.v = of_rows(args_.v, rows_k_, 1);
        args_.dk = of_rows(args_.dk, rows_k_, 1);
        args_.dv = of_rows(args_.dv, rows_k_, 1);
        args_.lse = of_lse(args_.lse);
        args_.dbias = pairs(args_.dbias);
        args_.dsink = {}; // a sum over sequences
        o_ = of_rows(whole.o.view(), rows_q_, group_);
        lse_ = of_lse(whole.lse.view());
    }

    [[nodiscard]] const Options& options() const { return options_; }
    [[nodiscard]] ForwardArgs forward_args() const { return {args_.q, args_.k, args_.v, o_, lse_}; }
    [[nodiscard]] const BackwardArgs& backward_args() const { return args_; }

private:
    /// The rows of the sequences, and where each begins among them.
    Extent rows(const HostTensor& starts, HostTensor& own) const
    {
        const auto* const first = static_cast<const std::int32_t*>(starts.data()) + sequences_.first;
        own = HostTensor(DType::int32, {sequences_.count + 1});
        std::transform(first, first + sequences_.count + 1, static_cast<std::int32_t*>(own.data()),
                       [&](std::int32_t start) { return start - *first; });
        return {*first, first[sequences_.count] - *first};
    }

    template <class View>
    [[nodiscard]] View of_rows(const View& view, const Extent& rows, std::int64_t each) const
    {
        return taken(taken(view, 0, packed_ ? rows : sequences_), packed_ ? 1 : 2, key_heads_, each);
    }
    template <class View>
    [[nodiscard]] View of_lse(const View& view) const
    {
        return packed_ ? taken(taken(view, 0, key_heads_, group_), 1, rows_q_)
                       : taken(taken(view, 0, sequences_), 1, key_heads_, group_);
    }
    template <class View>
    [[nodiscard]] View pairs(const View& view) const
    {
        return view ? taken(taken(view, 0, sequences_), 1, key_heads_, group_) : view;
    }

    Options options_;
    bool packed_;
    Extent sequences_, key_heads_, rows_q_, rows_k_;
    std::int64_t group_;
    HostTensor starts_q_, starts_k_;
    BackwardArgs args_;
    TensorView o_, lse_;
};

/// Forward and backward of every part, into the results of the whole, which are poisoned before.
inline void run_in_parts(AttentionCase& whole, const std::vector<Extent>& sequences,
                         const std::vector<Extent>& key_heads, const std::function<Options(Options)>& where)
{
    whole.poison_outputs();
    for (const Extent& some_sequences : sequences) {
        for (const Extent& some_heads : key_heads) {
            const CasePart part(whole, some_sequences, some_heads);
            const Options options = where(part.options());
            static_cast<void>(forward(part.forward_args(), options));
            static_cast<void>(backward(part.backward_args(), options));
        }
    }
}

} // namespace flashomp::testing
