// flashomp forward: o and lse from q, k and v.
#include "attention_inputs.hpp"
#include "attention_outputs.hpp"
#include "commands.hpp"
#include "layout_hint.hpp"
#include "progress.hpp"
#include "runner.hpp"
#include "summary.hpp"

#include "flashomp/attention.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(Exact attention: o = softmax(scale*q.k^T, masked).v and its log-sum-exp (natural logarithm).
Writes o (dtype of q) and lse (float32 [B, Hq, Nq]); nothing is written when anything fails.

Examples:
  flashomp forward --q q.npy --k k.npy --v v.npy --causal bottom-right --out results
  flashomp forward --in qkv.safetensors --dtype bfloat16 --window 128,0 --out o.safetensors
  flashomp forward --q q.npy --k k.npy --v v.npy --layout bhsd --device 0 --json --out results
)";

int run_forward(const AttentionFlags& flags, const Runner& runner)
{
    std::optional<AttentionInputs> read;
    std::optional<OutputPlace> place;
    runner.together([&] { read.emplace(input_files(flags, false)); });
    const AttentionInputs& inputs = *read;
    runner.once([&] { place.emplace(flags.out, std::vector<std::string>{"o", "lse"}, inputs.files()); });

    ForwardArgs args;
    args.q = inputs.view("q");
    args.k = inputs.view("k");
    args.v = inputs.view("v");
    AttentionOutputs outputs(flags.layout);
    args.o = outputs.add_o(args.q, args.v);
    args.lse = outputs.add_lse(args.q);

    Summary summary{"forward",    &inputs, inputs.with_tensors(call_options(flags.semantics, flags.run)),
                    flags.layout, {},      {}};
    {
        const Progress progress("forward");
        summary.passes.emplace_back("forward", forward_in(runner, flags.layout, args, summary.options));
    }
    runner.once([&] {
        summary.written = place->write(outputs, flags.layout);
        print_summary(summary, flags.run.json);
    });
    return status_ok;
}

} // namespace

void add_forward_command(CLI::App& app, Command& chosen, const Runner& runner)
{
    CLI::App* const command = app.add_subcommand("forward", "Attention and its log-sum-exp, from tensors in files");
    command->footer(details);
    const auto flags = std::make_shared<AttentionFlags>();
    add_attention_options(*command, *flags, false);
    command->callback([flags, runner, &chosen] { chosen = [flags, runner] { return run_forward(*flags, runner); }; });
}

} // namespace flashomp::cli
