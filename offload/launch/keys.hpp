// From a call to the key source of its kernels.
#pragma once

#include "algorithm/quantised_source.hpp"
#include "launch/pass.hpp"

namespace flashomp::offload {

/// Calls f<Keys>() for the keys of a call to a pass, in tensors or in a cache of q's type.
template <Pass pass, bool reads_caches = true, class F>
auto with_keys(const CacheTables& cache, F f)
{
    if constexpr (reads_caches && pass == Pass::forward) {
        if (cache.is_there()) {
            return f.template operator()<PagedKeys>();
        }
    }
    return f.template operator()<StridedKeys>();
}

/// for_pass() with f<pass, modified, Keys>(). Only forward passes have keys in a cache.
template <class F>
void for_pass_and_keys(const CacheTables& cache, Pass pass, bool modified, F f)
{
    const auto forward = [&]<class Keys>() {
        modified ? f.template operator()<Pass::forward, true, Keys>()
                 : f.template operator()<Pass::forward, false, Keys>();
    };
    if (cache.is_quantised()) {
        return forward.template operator()<QuantisedKeys>();
    }
    if (cache.is_there()) {
        return forward.template operator()<PagedKeys>();
    }
    for_pass(pass, modified, [&]<Pass same, bool also>() { f.template operator()<same, also, StridedKeys>(); });
}

} // namespace flashomp::offload
