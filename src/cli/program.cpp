#include "program.hpp"

#include "report.hpp"

#include "flashomp/error.hpp"

#include "printable.hpp"

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

namespace {

constexpr const char* stdout_is_full =
    "the results cannot be printed to standard output; it must be open and have room for them. Files that were asked "
    "for are complete.";

/// A mistake on the command line, and where to look.
std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error)
{
    const auto chosen = app.get_subcommands();
    const auto unexpected = app.remaining(true);
    const std::string command = chosen.empty() ? app.get_name() : app.get_name() + " " + chosen.front()->get_name();
    std::string what = error.what();
    what.erase(what.find_last_not_of(". \n") + 1);
    if (!unexpected.empty()) {
        what = fmt::format("'{}' is not a{} of {}", printable(unexpected.front(), 100),
                           chosen.empty() ? " command" : "n option", command);
    } else if (chosen.empty()) {
        what = "a command is needed";
    } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
        what = fmt::format("{} needs one value", what.substr(0, what.find(':')));
    }
    return fmt::format("{}; `{} --help` lists what is allowed.", what, command);
}

/// Reads the command line. Returns the text that --help or --version ask for.
std::optional<std::string> text_asked_for(CLI::App& app, int argc, char** argv)
{
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::Success)) {
            throw Error(usage_sentence(app, error));
        }
        std::ostringstream text;
        app.exit(error, text, text);
        return text.str();
    }
    return {};
}

/// The command's status, or Error: what standard output did not take is bad input.
int run(CLI::App& app, const Command& chosen, int argc, char** argv, const Reading& reading)
{
    std::optional<std::string> text;
    reading([&] { text = text_asked_for(app, argc, argv); });
    int status = status_ok;
    if (text) {
        fmt::print("{}", *text);
    } else {
        status = chosen();
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        throw Error(stdout_is_full);
    }
    return status;
}

} // namespace

int run_program(CLI::App& app, const Command& chosen, int argc, char** argv,
                const std::function<void(const std::string& sentence)>& say, const Reading& reading)
{
    program_name() = app.get_name();
    // A write beyond the limit on file sizes then fails as one to a full disk does, with a sentence.
    static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
    try {
        return run(app, chosen, argc, argv, reading);
    } catch (const Error& error) {
        say(error.what());
        return status_bad_input;
    } catch (const RunFailure& failure) {
        say(failure.what());
    } catch (const std::bad_alloc&) {
        say("there is not enough memory for these tensors.");
    } catch (const std::exception& error) {
        if (std::ferror(stdout) != 0) {
            say(stdout_is_full);
            return status_bad_input;
        }
        say(fmt::format("unexpected failure: {}", error.what()));
    }
    return status_run_failed;
}

} // namespace flashomp::cli
