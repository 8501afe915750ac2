// From a call to the key source of its kernels.
#pragma once

#include "algorithm/quantised_source.hpp"
#include "launch/pass.hpp"

namespace flashomp::offload {

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
