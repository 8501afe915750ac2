// flashomp-mpi, to be started by mpirun: flashomp's commands with each call sharded over the ranks.
#include "bench_ranks.hpp"
#include "help.hpp"
#include "plan_sharding.hpp"
#include "program.hpp"
#include "ranks.hpp"
#include "read_together.hpp"
#include "report.hpp"
#include "runner.hpp"
#include "sharded_calls.hpp"
#include "sharding_flags.hpp"

#include "flashomp/version.hpp"

#include <cstdio>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace {

using namespace flashomp;

constexpr const char* about = R"(Sharded attention over the ranks of mpirun, by flashomp::mpi.

Every rank reads the files and takes its rows; rank 0 writes and prints.
Exit status, of all ranks: 0 success, 1 check or bench found something that falls short, 2 bad input, 3 the machine
failed.)";

constexpr const char* examples = R"(Examples:
  mpirun -n 4 flashomp-mpi check tests/cases --sharding zigzag --scheme ring
  mpirun -n 4 flashomp-mpi forward --q q.npy --k k.npy --v v.npy --causal bottom-right --sharding zigzag --out results
  mpirun -n 4 flashomp-mpi plan --shape b1_h16_n65536_d64_causal --interconnect 12
  mpirun -n 4 flashomp-mpi bench --dtype bfloat16 --threads 1
)";

int run(int argc, char** argv, const cli::Ranks& ranks, const std::function<void(const std::string&)>& say)
{
    CLI::App app(about, "flashomp-mpi");
    app.footer(examples);
    app.set_version_flag("--version", std::string("flashomp-mpi ") + build_info().version);
    app.require_subcommand(1);
    cli::SharingFlags flags;
    std::optional<cli::ShardedCalls> calls; // made when the flags are known
    const auto sharded = [&]() -> cli::ShardedCalls& {
        return calls ? *calls : calls.emplace(ranks, flags.sharding());
    };
    cli::Runner runner;
    runner.forward = [&](const ForwardArgs& args, const Options& options) { return sharded().forward(args, options); };
    runner.backward = [&](const BackwardArgs& args, const Options& options) {
        return sharded().backward(args, options);
    };
    runner.together = [&](const cli::Runner::Step& step) { ranks.together(step); };
    runner.once = [&](const cli::Runner::Step& step) { ranks.once(step); };
    runner.repairs_rows = false;

    cli::PlannedRanks planned;
    planned.count = ranks.size();
    planned.schemes = [&](const cost::Shape& shape, std::int64_t count) {
        return cli::planned_schemes(flags, shape, count);
    };
    cli::Command chosen;
    cli::add_check_command(app, chosen, runner);
    cli::add_forward_command(app, chosen, runner);
    cli::add_backward_command(app, chosen, runner);
    cli::add_plan_command(app, chosen, runner, planned);
#if FLASHOMP_HAS_BENCH
    cli::add_bench_ranks_command(app, chosen, ranks, flags);
#endif
    for (CLI::App* const command : app.get_subcommands({})) {
        const std::string name = command->get_name();
        cli::add_sharing_flags(*command, flags, name == "plan" || name == "bench");
    }
    cli::word_help_for_ranks(app);
    const auto reading = [&](const std::function<void()>& read) {
        cli::read_together(ranks, app, [&] {
            read();
            const auto* const plan = app.get_subcommand("plan");
            const bool plans_for_others = plan->parsed() && plan->count("--ranks") > 0; // and looks at each number
            if (chosen && !plans_for_others) {
                flags.expect_ranks(ranks.size());
            }
        });
    };
    return cli::run_program(app, chosen, argc, argv, say, reading);
}

} // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): no memory for the flags ends the program
int main(int argc, char** argv)
{
    // Calls have OpenMP's threads, and the main thread alone calls MPI.
    int threads = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &threads);
    int status = cli::status_run_failed;
    {
        const cli::Ranks ranks;
        cli::program_name() = "flashomp-mpi";
        if (threads < MPI_THREAD_FUNNELED) {
            cli::print_on_stderr("MPI has no MPI_THREAD_FUNNELED, which OpenMP's threads beside it need.");
            MPI_Abort(MPI_COMM_WORLD, status);
        }
        if (!ranks.is_first() && std::freopen("/dev/null", "w", stdout) == nullptr) {
            MPI_Abort(MPI_COMM_WORLD, status);
        }
        // What all ranks find, rank 0 says; what another finds alone, that one does.
        std::string kept;
        status = run(argc, argv, ranks, [&](const std::string& sentence) {
            ranks.is_first() ? cli::print_on_stderr(sentence) : void(kept = sentence);
        });
        status = ranks.agreed_status(status, [&] {
            if (!ranks.is_first()) {
                cli::print_on_stderr(fmt::format("rank {}: {}", ranks.rank(), kept));
            }
        });
    }
    MPI_Finalize();
    return status;
}
