#pragma once

#if __cplusplus < 202002L
#error "flashomp needs C++20: compile with -std=c++20 or newer."
#endif

#include <stdexcept>
#include <string>

namespace flashomp {

/// The one exception flashomp throws for bad input. what() is a single sentence that names the argument, what
/// was given and what is allowed. When it is thrown, no output has been written.
class Error : public std::runtime_error {
public:
    explicit Error(const std::string& sentence) : std::runtime_error(sentence) {}
};

/// The input is meaningful, but this build does not do it yet; the sentence says what is missing.
class NotBuilt : public Error {
public:
    using Error::Error;
};

} // namespace flashomp
