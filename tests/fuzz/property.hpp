// What the library owes to any input, hostile ones too: a result, or one sentence.
#pragma once

#include "flashomp/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

// Each harness defines one function of this type, which always returns 0. What it finds wrong ends the process.
using FuzzFunction = int(const std::uint8_t* data, std::size_t size);

namespace flashomp::fuzz {

constexpr std::size_t longest_sentence = 1000;

/// Ends the process in a way that libFuzzer and the replay driver both notice, and that saves the input.
[[noreturn]] inline void violated(std::string_view property, std::string_view found)
{
    std::fprintf(stderr, "fuzz: violated: %.*s; found: %.*s\n", static_cast<int>(property.size()), property.data(),
                 static_cast<int>(std::min(found.size(), 4 * longest_sentence)), found.data());
    std::abort();
}

/// Ends the process unless `sentence` is one: bounded, on one line, printable, with its full stop.
inline void expect_sentence(std::string_view sentence)
{
    if (sentence.empty() || sentence.size() > longest_sentence) {
        violated("an Error has 1 to 1000 bytes", sentence);
    }
    if (std::any_of(sentence.begin(), sentence.end(), [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; })) {
        violated("an Error has no control characters", sentence);
    }
    if (sentence.back() != '.') {
        violated("an Error ends with a full stop", sentence);
    }
}

/// Carries out `call`, which may succeed or refuse with an Error. Returns whether it succeeded.
template <class Call>
bool succeeds_or_refuses(Call call)
{
    try {
        call();
        return true;
    } catch (const Error& error) {
        expect_sentence(error.what());
        return false;
    } catch (const std::exception& error) {
        violated("only Error leaves the library", error.what());
    } catch (...) {
        violated("only Error leaves the library", "something that is no exception of the standard library");
    }
}

} // namespace flashomp::fuzz
