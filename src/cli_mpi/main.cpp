// flashomp-mpi, to be started by mpirun: the cases of a folder, each sharded over the ranks, against expected tensors.
#include "check_case.hpp"
#include "commands.hpp"
#include "report.hpp"
#include "sharded_calls.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace {

using namespace flashomp;

constexpr const char* about = R"(Sharded attention over the ranks of mpirun, by flashomp::mpi.

Exit status, of all ranks: 0 success, 1 a case falls short, 2 bad input, 3 the machine failed.

Example:
  mpirun -n 4 flashomp-mpi check tests/cases --sharding zigzag --scheme ring)";

int run(int argc, char** argv, int rank)
{
    CLI::App app(about, "flashomp-mpi");
    app.require_subcommand(1);
    mpi::Sharding sharding;
    std::unique_ptr<cli::ShardedCalls> calls; // made when the flags are known
    cli::Runner runner;
    runner.forward = [&](const ForwardArgs& args, const Options& options) { return calls->forward(args, options); };
    runner.backward = [&](const BackwardArgs& args, const Options& options) { return calls->backward(args, options); };
    runner.repairs_rows = false;
    cli::Command chosen;
    cli::add_check_command(app, chosen, runner);
    CLI::App* const check = app.get_subcommand("check");
    const std::map<std::string, mpi::Layout> layouts{{"contiguous", mpi::Layout::contiguous},
                                                     {"zigzag", mpi::Layout::zigzag}};
    const std::map<std::string, mpi::Scheme> schemes{{"auto", mpi::Scheme::automatic},
                                                     {"ring", mpi::Scheme::ring},
                                                     {"all-gather", mpi::Scheme::all_gather},
                                                     {"ulysses", mpi::Scheme::ulysses},
                                                     {"grid", mpi::Scheme::grid}};
    check->add_option("--sharding", sharding.layout, "which rows a rank has (default contiguous)")
        ->transform(CLI::CheckedTransformer(layouts))
        ->type_name("contiguous|zigzag");
    check->add_option("--scheme", sharding.scheme, "how queries meet keys of other ranks (default auto)")
        ->transform(CLI::CheckedTransformer(schemes))
        ->type_name("auto|ring|all-gather|ulysses|grid");
    check->add_option("--heads-ranks", sharding.heads_ranks, "of --scheme grid: ranks that share out heads");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        std::ostringstream text;
        const bool is_help = app.exit(error, text, text) == 0;
        fmt::print(rank == 0 && !is_help ? stderr : stdout, "{}", text.str());
        return is_help ? cli::status_ok : cli::status_bad_input;
    }
    calls = std::make_unique<cli::ShardedCalls>(sharding);
    return chosen();
}

/// The status of this rank. What all ranks find, rank 0 says.
int guarded(int argc, char** argv, int rank)
{
    const auto fail = [&](const char* sentence, int status) {
        if (rank == 0) {
            cli::print_on_stderr(sentence);
        }
        return status;
    };
    try {
        return run(argc, argv, rank);
    } catch (const Error& error) {
        return fail(error.what(), cli::status_bad_input);
    } catch (const std::exception& failure) {
        return fail(failure.what(), cli::status_run_failed);
    }
}

} // namespace

int main(int argc, char** argv)
{
    MPI_Init(&argc, &argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank != 0 && std::freopen("/dev/null", "w", stdout) == nullptr) {
        MPI_Abort(MPI_COMM_WORLD, cli::status_run_failed);
    }
    int status = guarded(argc, argv, rank);
    MPI_Allreduce(MPI_IN_PLACE, &status, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return status;
}
