#include "problem.hpp"

#include <algorithm>

namespace flashomp {

std::vector<std::pair<const char*, ConstTensorView>> Problem::inputs() const
{
    std::vector<std::pair<const char*, ConstTensorView>> all = {
        {"q", q},
        {"k", k},
        {"v", v},
        {"alibi_slopes", alibi_slopes},
        {"bias", bias},
        {"key_padding_mask", key_padding_mask},
        {"cu_seqlens_q", cu_seqlens_q},
        {"cu_seqlens_k", cu_seqlens_k},
        {"sink", sink},
        {"q_scale", q_scale},
        {"k_scale", k_scale},
        {"v_scale", v_scale},
    };
    if (is_backward) {
        all.insert(all.end(), {{"o", o}, {"lse", lse}, {"dout", dout}});
    }
    return all;
}

std::vector<std::pair<const char*, TensorView>> Problem::outputs() const
{
    if (is_backward) {
        return {{"dq", dq}, {"dk", dk}, {"dv", dv}, {"dbias", dbias}, {"dsink", dsink}};
    }
    return {{"o", o}, {"lse", lse}};
}

int Problem::kernel_depth() const
{
    const std::int64_t largest = std::max(head_dim, head_dim_v);
    return largest <= 64 ? 64 : (largest <= 128 ? 128 : 256);
}

bool Problem::is_modified() const
{
    return scale <= 0.0 || softcap > 0.0 || alibi_slopes || bias || dropout.probability > 0.0;
}

TensorView as_result(const ConstTensorView& view)
{
    TensorView result;
    result.data = const_cast<void*>(view.data);
    result.dtype = view.dtype;
    result.memory = view.memory;
    result.rank = view.rank;
    result.shape = view.shape;
    result.strides = view.strides;
    return result;
}

} // namespace flashomp
