// Why a result has no time, and how the command line repeats that reason.
#pragma once

#include "flashomp/error.hpp"

#include <new>
#include <string>

namespace flashomp::bench {

struct Failure {
    std::string failure;         ///< empty, or why there is no time: one sentence
    bool is_run_failure = false; ///< the machine failed: RunFailure, or no memory

    /// In a handler: keeps what was thrown. Other exceptions than flashomp's and std::bad_alloc go on.
    void take_thrown(const char* out_of_memory)
    {
        try {
            throw;
        } catch (const std::bad_alloc&) {
            failure = out_of_memory;
            is_run_failure = true;
        } catch (const RunFailure& thrown) {
            failure = thrown.what();
            is_run_failure = true;
        } catch (const Error& thrown) {
            failure = thrown.what();
        }
    }

    [[noreturn]] void throw_again() const
    {
        if (is_run_failure) {
            throw RunFailure(failure);
        }
        throw Error(failure);
    }
};

} // namespace flashomp::bench
