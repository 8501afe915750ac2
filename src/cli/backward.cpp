// flashomp backward: dq, dk and dv (and dbias, dsink) from q, k, v and do.
#include "attention_inputs.hpp"
#include "attention_outputs.hpp"
#include "commands.hpp"
#include "layout_hint.hpp"
#include "progress.hpp"
#include "runner.hpp"
#include "summary.hpp"

#include "flashomp/attention.hpp"
#include "flashomp/error.hpp"

#include "option_list.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(Gradients of attention with respect to q, k and v (and bias, sink when given), deterministic.
Runs forward first and writes o and lse too, unless both are given; writes dq, dk, dv (dbias, dsink).
Nothing is written when anything fails.

Examples:
  flashomp backward --q q.npy --k k.npy --v v.npy --do do.npy --causal bottom-right --out grads
  flashomp backward --q q.npy --k k.npy --v v.npy --do do.npy --o o.npy --lse lse.npy --out grads
  flashomp backward --in all.safetensors --dtype float16 --device host --threads 2 --out grads.safetensors
)";

/// Whether o and lse of an earlier forward run were given; both or neither.
bool has_saved_forward(const AttentionInputs& inputs)
{
    const bool o = static_cast<bool>(inputs.view("o"));
    const bool lse = static_cast<bool>(inputs.view("lse"));
    if (o != lse) {
        throw Error(fmt::format("{} was given without {}; backward needs both of them or neither.", o ? "o" : "lse",
                                o ? "lse" : "o"));
    }
    return o;
}

int run_backward(const AttentionFlags& flags, const Runner& runner)
{
    std::optional<AttentionInputs> read;
    bool saved = false;
    runner.together([&] {
        read.emplace(input_files(flags, true));
        saved = has_saved_forward(*read);
    });
    const AttentionInputs& inputs = *read;
    Summary summary{"backward",   &inputs, inputs.with_tensors(call_options(flags.semantics, flags.run)),
                    flags.layout, {},      {}};
    const Options& options = summary.options;

    std::vector<std::string> names{"dq", "dk", "dv"};
    if (!saved) {
        names.insert(names.begin(), {"o", "lse"});
    }
    for (const TensorOption& option : tensor_options) {
        if (option.gradient && options.*option.member) {
            names.emplace_back(option.gradient.name);
        }
    }
    std::optional<OutputPlace> place;
    runner.once([&] { place.emplace(flags.out, names, inputs.files()); });

    AttentionOutputs outputs(flags.layout);
    BackwardArgs args;
    args.q = inputs.view("q");
    args.k = inputs.view("k");
    args.v = inputs.view("v");
    args.dout = inputs.view("do");
    {
        Progress progress("backward");
        if (saved) {
            args.o = inputs.view("o");
            args.lse = inputs.view("lse");
        } else {
            progress.show("backward: forward pass");
            const TensorView o = outputs.add_o(args.q, args.v);
            const TensorView lse = outputs.add_lse(args.q);
            summary.passes.emplace_back("forward",
                                        forward_in(runner, flags.layout, {args.q, args.k, args.v, o, lse}, options));
            args.o = o;
            args.lse = lse;
        }
        args.dq = outputs.add_like("dq", args.q);
        args.dk = outputs.add_like("dk", args.k);
        args.dv = outputs.add_like("dv", args.v);
        for (const TensorOption& option : tensor_options) {
            if (option.gradient && options.*option.member) {
                args.*option.gradient.given = outputs.add_plain(option.gradient.name, options.*option.member);
            }
        }
        progress.show("backward: backward pass");
        summary.passes.emplace_back("backward", backward_in(runner, flags.layout, args, options));
    }
    runner.once([&] {
        summary.written = place->write(outputs, flags.layout);
        print_summary(summary, flags.run.json);
    });
    return status_ok;
}

} // namespace

void add_backward_command(CLI::App& app, Command& chosen, const Runner& runner)
{
    CLI::App* const command = app.add_subcommand("backward", "Gradients of attention, from tensors in files");
    command->footer(details);
    const auto flags = std::make_shared<AttentionFlags>();
    add_attention_options(*command, *flags, true);
    command->callback([flags, runner, &chosen] { chosen = [flags, runner] { return run_backward(*flags, runner); }; });
}

} // namespace flashomp::cli
