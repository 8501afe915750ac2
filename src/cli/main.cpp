// The flashomp command and its subcommands.
#include "plan_sharding.hpp"
#include "program.hpp"
#include "report.hpp"
#include "runner.hpp"

#include "flashomp/version.hpp"

#include <string>

#include <CLI/CLI.hpp>

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

} // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): no memory for the flags ends the program
int main(int argc, char** argv)
{
    CLI::App app(about, "flashomp");
    app.footer(examples);
    app.set_version_flag("--version", std::string("flashomp ") + flashomp::build_info().version);
    app.require_subcommand(1);
    Command chosen;
    flashomp::cli::add_info_command(app, chosen);
    flashomp::cli::add_forward_command(app, chosen, {});
    flashomp::cli::add_backward_command(app, chosen, {});
    flashomp::cli::add_check_command(app, chosen, {});
    flashomp::cli::add_plan_command(app, chosen, {}, {});
#if FLASHOMP_HAS_BENCH
    flashomp::cli::add_bench_command(app, chosen);
    flashomp::cli::add_tune_command(app, chosen);
#endif
    return flashomp::cli::run_program(app, chosen, argc, argv, flashomp::cli::print_on_stderr);
}
