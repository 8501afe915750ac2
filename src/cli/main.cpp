// The flashomp command: picks the subcommand and turns every failure into one sentence and an exit status.
#include "commands.hpp"
#include "report.hpp"

#include "flashomp/error.hpp"
#include "flashomp/version.hpp"

#include "printable.hpp"

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace {

using flashomp::cli::Command;

constexpr const char* about = R"(Exact attention (FlashAttention) on CPUs and GPUs, from one OpenMP source.

Exit status: 0 success, 1 check, bench or tune found something that falls short, 2 bad input (nothing is written), or
results that cannot be printed (files are written), 3 the machine failed: memory, a GPU, a library or a tool that a
command needs.)";

constexpr const char* examples = R"(Examples:
  flashomp info
  flashomp forward --q q.npy --k k.npy --v v.npy --causal bottom-right --out results
  flashomp check tests/cases --dtype bfloat16
`flashomp COMMAND --help` lists the options of a command.
)";

int fail(const std::string& sentence, int status = flashomp::cli::status_bad_input)
{
    flashomp::cli::print_on_stderr(sentence);
    return status;
}

constexpr const char* stdout_is_full =
    "the results cannot be printed to standard output; it must be open and have room for them. Files that were asked "
    "for are complete.";

/// A mistake on the command line, and where to look.
std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error)
{
    const auto chosen = app.get_subcommands();
    const auto unexpected = app.remaining(true);
    const std::string command = chosen.empty() ? "flashomp" : "flashomp " + chosen.front()->get_name();
    std::string what = error.what();
    what.erase(what.find_last_not_of(". \n") + 1);
    if (!unexpected.empty()) {
        what = fmt::format("'{}' is not a{} of {}", flashomp::printable(unexpected.front(), 100),
                           chosen.empty() ? " command" : "n option", command);
    } else if (chosen.empty()) {
        what = "a command is needed";
    } else if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
        what = fmt::format("{} needs one value", what.substr(0, what.find(':')));
    }
    return fmt::format("{}; `{} --help` lists what is allowed.", what, command);
}

int run(int argc, char** argv)
{
    CLI::App app(about, "flashomp");
    app.footer(examples);
    app.set_version_flag("--version", std::string("flashomp ") + flashomp::build_info().version);
    app.require_subcommand(1);
    Command chosen;
    flashomp::cli::add_info_command(app, chosen);
    flashomp::cli::add_forward_command(app, chosen);
    flashomp::cli::add_backward_command(app, chosen);
    flashomp::cli::add_check_command(app, chosen);
    flashomp::cli::add_plan_command(app, chosen);
#if FLASHOMP_HAS_BENCH
    flashomp::cli::add_bench_command(app, chosen);
    flashomp::cli::add_tune_command(app, chosen);
#endif
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
            std::ostringstream text; // --help, --version
            app.exit(error, text, text);
            fmt::print("{}", text.str());
            return std::fflush(stdout) == 0 ? flashomp::cli::status_ok : fail(stdout_is_full);
        }
        return fail(usage_sentence(app, error));
    }
    const int status = chosen();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        return fail(stdout_is_full);
    }
    return status;
}

} // namespace

int main(int argc, char** argv)
{
    // A write beyond the limit on file sizes then fails as one to a full disk does, with a sentence.
    static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
    try {
        return run(argc, argv);
    } catch (const flashomp::Error& error) {
        return fail(error.what());
    } catch (const flashomp::RunFailure& failure) {
        return fail(failure.what(), flashomp::cli::status_run_failed);
    } catch (const std::bad_alloc&) {
        return fail("there is not enough memory for these tensors.", flashomp::cli::status_run_failed);
    } catch (const std::exception& error) {
        if (std::ferror(stdout) != 0) {
            return fail(stdout_is_full);
        }
        return fail(fmt::format("unexpected failure: {}", error.what()), flashomp::cli::status_run_failed);
    }
}
