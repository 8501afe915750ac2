// Standard output, where results go, and standard error.
#pragma once

#include <cstdio>
#include <string>

#include <fmt/format.h>

namespace gpt {

/// Prints. A failure stays with the stream until expect_printed(), so that a long training does not end for a line.
template <class... Arguments>
void say(fmt::format_string<Arguments...> text, Arguments&&... arguments)
{
    const std::string all = fmt::format(text, std::forward<Arguments>(arguments)...);
    std::fwrite(all.data(), 1, all.size(), stdout);
    std::fflush(stdout);
}

/// A line on standard error: "gpt: " and the sentence.
void note(const std::string& sentence);

/// Throws flashomp::Error where something that was said did not get out.
void expect_printed();

/// Opens what is closed of standard input, output and error, so that no file gets their numbers: output to one that was
/// closed still fails.
void hold_standard_streams();

} // namespace gpt
