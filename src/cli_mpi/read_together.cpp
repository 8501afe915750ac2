#include "read_together.hpp"

#include "sharding_flags.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace flashomp::cli {

namespace {

/// The option as it was given, or nothing.
std::string words_of(const CLI::Option& option)
{
    if (option.count() == 0) {
        return {};
    }
    const std::string name = option.nonpositional() ? " " + option.get_name() : std::string();
    const bool is_flag = option.get_items_expected_max() == 0;
    return is_flag ? name : fmt::format("{} {}", name, fmt::join(option.results(), " "));
}

/// The options that say which steps the ranks take, as they were given: those without a heading of their own, and how
/// ranks share a call. Files and where a call runs are each rank's own, and what is computed the calls compare.
std::string options_of(const CLI::App& app)
{
    const std::string& without_heading = app.get_help_ptr()->get_group();
    std::string text;
    for (const CLI::Option* const option : app.get_options()) {
        if (option->get_group() == without_heading || option->get_group() == sharing_group) {
            text += words_of(*option);
        }
    }
    return text;
}

/// "check tests/cases --scheme ring", "--help".
std::string command_of(const CLI::App& app)
{
    std::string text = options_of(app);
    for (const CLI::App* const command : app.get_subcommands()) {
        text += " " + command->get_name() + options_of(*command);
    }
    text.erase(0, text.find_first_not_of(' '));
    return text;
}

std::string refusal_of(const std::function<void()>& read)
{
    try {
        read();
    } catch (const Error& error) {
        return error.what();
    }
    return {};
}

/// The first rank whose text is not the one wanted, or as many as there are.
std::size_t first_other(const std::vector<std::string>& texts, const std::string& wanted)
{
    const auto is_other = [&](const std::string& text) { return text != wanted; };
    return static_cast<std::size_t>(std::find_if(texts.begin(), texts.end(), is_other) - texts.begin());
}

} // namespace

void read_together(const Ranks& ranks, const CLI::App& app, const std::function<void()>& read)
{
    const std::string own = refusal_of(read);
    const std::vector<std::string> refusals = ranks.texts(own);
    if (const std::size_t rank = first_other(refusals, {}); rank < refusals.size()) {
        const bool is_everywhere = first_other(refusals, refusals.front()) == refusals.size();
        throw Error(is_everywhere ? own : fmt::format("rank {}: {}", rank, refusals[rank]));
    }
    const std::vector<std::string> commands = ranks.texts(command_of(app));
    if (const std::size_t rank = first_other(commands, commands.front()); rank < commands.size()) {
        throw Error(fmt::format("rank {} was told `{}`, but rank 0 `{}`; all ranks must be told the same.", rank,
                                commands[rank], commands.front()));
    }
}

} // namespace flashomp::cli
