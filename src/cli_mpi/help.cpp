#include "help.hpp"

#include "option_list.hpp"

#include <array>
#include <string>

#include <CLI/CLI.hpp>

namespace flashomp::cli {

namespace {

struct RanksHelp {
    const char* command;
    const char* text;
};

constexpr std::array helps{
    RanksHelp{
        "check",
        R"(Cases that ranks cannot share so, such as those of fewer heads than --scheme ulysses has ranks, are skipped.

Examples:
  mpirun -n 4 flashomp-mpi check tests/cases
  mpirun -n 4 flashomp-mpi check tests/cases --dtype bfloat16 --sharding zigzag --scheme ring
  mpirun -n 2 flashomp-mpi check tests/cases --case gqa --case d80 --scheme ulysses --json
)"},
    RanksHelp{"forward", R"(Key/value caches and 8 bits (float8_e4m3, int8) are for one rank alone.

Examples:
  mpirun -n 4 flashomp-mpi forward --q q.npy --k k.npy --v v.npy --causal bottom-right --sharding zigzag --out results
  mpirun -n 4 flashomp-mpi forward --in qkv.safetensors --dtype bfloat16 --window 128,0 --scheme ring --out o.safetensors
  mpirun -n 4 flashomp-mpi forward --q q.npy --k k.npy --v v.npy --scheme grid --heads-ranks 2 --json --out results
)"},
    RanksHelp{"backward", R"(Key/value caches and 8 bits have no gradients.

Examples:
  mpirun -n 4 flashomp-mpi backward --q q.npy --k k.npy --v v.npy --do do.npy --causal bottom-right --out grads
  mpirun -n 4 flashomp-mpi backward --q q.npy --k k.npy --v v.npy --do do.npy --o o.npy --lse lse.npy --out grads
  mpirun -n 4 flashomp-mpi backward --in all.safetensors --dtype float16 --scheme ulysses --out grads.safetensors
)"},
    RanksHelp{"plan",
              R"(
The ranks are those of mpirun, unless --ranks says others, and all schemes are planned for, unless --scheme says one.
More than one rank needs --interconnect.

Examples:
  mpirun -n 4 flashomp-mpi plan --shape b1_h16_n65536_d64_causal --interconnect 12
  mpirun -n 4 flashomp-mpi plan --shape b1_h32kv8_n131072_d128_causal --dtype bfloat16 --interconnect 25 --schedule
  mpirun -n 1 flashomp-mpi plan --shape b1_h16_n65536_d64_causal --ranks 8,64 --interconnect 50 --scheme ring
)"},
};

/// What flashomp's footer says before its examples.
std::string without_examples(const std::string& footer)
{
    return footer.substr(0, footer.find("\nExamples:"));
}

void group_what_one_rank_takes(CLI::App& command)
{
    for (const TensorOption& option : tensor_options) {
        if (!option.is_of_cache && !option.is_float8_only) {
            continue;
        }
        if (CLI::Option* const found = command.get_option_no_throw(option.flag); found != nullptr) {
            found->group("Caches and 8 bits, for forward on one rank alone");
        }
    }
}

} // namespace

void word_help_for_ranks(CLI::App& app)
{
    for (const RanksHelp& help : helps) {
        CLI::App& command = *app.get_subcommand(help.command);
        command.footer(without_examples(command.get_footer()) + help.text);
        group_what_one_rank_takes(command);
    }
}

} // namespace flashomp::cli
