// What a C function returns for what a C++ function throws.
#pragma once

#include "flashomp/flashomp.h"

#include <string_view>
#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace flashomp::capi {

/// Keeps the sentence for flashomp_last_error() of this thread.
void keep_sentence(std::string_view sentence) noexcept;

/// Keeps the sentence of the exception that is being handled. Call in a handler.
[[nodiscard]] flashomp_status keep_exception() noexcept;

/// Calls, and gives the status of what the call threw.
template <class Call>
[[nodiscard]] flashomp_status guarded(Call call)
{
    try {
        call();
        return FLASHOMP_OK;
    }
#if defined(__GLIBCXX__)
    catch (const abi::__forced_unwind&) { // the thread is being cancelled, which nobody may stop
        throw;
    }
#endif
    catch (...) {
        return keep_exception();
    }
}

} // namespace flashomp::capi
