#pragma once

#if __cplusplus < 202002L
#error "flashomp needs C++20: compile with -std=c++20 or newer."
#endif

#include <stdexcept>
#include <string>

namespace flashomp {

/// Bad input. what() is a single sentence that names the argument, what was given and what is allowed. When it is
/// thrown, no output has been written.
class Error : public std::runtime_error {
public:
    explicit Error(const std::string& sentence) : std::runtime_error(sentence) {}
};

/// The input is meaningful, but this build does not do it yet; the sentence says what is missing.
class NotBuilt : public Error {
public:
    using Error::Error;
};

/// The input was good, but the machine failed: a kernel could not be launched or ran on the host instead of the GPU, a
/// copy or work on the device failed, scratch memory ran out, or a library is missing. what() is a single sentence.
/// Outputs hold anything: their old values, results, or a mixture. Inputs are as they were, unless merge()
/// was given them as outputs, too. After a failure inside a kernel CUDA refuses all further work of the process on that
/// GPU.
///
/// RunFailure is not an Error, so that a handler of Error may rely on untouched outputs. std::runtime_error is the
/// base of both.
class RunFailure : public std::runtime_error {
public:
    explicit RunFailure(const std::string& sentence) : std::runtime_error(sentence) {}
};

} // namespace flashomp
