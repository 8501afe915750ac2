#include "summary.hpp"

#include "option_list.hpp"
#include "report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

namespace {

/// The options that are on, in words.
std::string options_text(const Options& options)
{
    std::string text;
    const auto add = [&text](const std::string& words) { text += (text.empty() ? "" : ", ") + words; };
    for (const NumberOption& option : number_options) {
        if (const std::optional<double> value = option.value(options); value != option.off) {
            add(fmt::format("{} {:g}", option.name, *value));
        }
    }
    if (options.causal != Causal::none) {
        add(fmt::format("causal {}", name_of(options.causal)));
    }
    if (options.window.left >= 0 || options.window.right >= 0) {
        add(fmt::format("window {},{}", options.window.left, options.window.right));
    }
    if (options.dropout.probability > 0.0) {
        add(fmt::format("dropout {:g} (seed {}, offset {})", options.dropout.probability, options.dropout.seed,
                        options.dropout.offset));
    }
    for (const TensorOption& option : tensor_options) {
        if (const ConstTensorView& view = options.*option.member) {
            add(fmt::format("{} {}", option.name, shape_string(view)));
        }
    }
    return text.empty() ? "no mask, default scale" : text;
}

Json options_json(const Options& options)
{
    Json json;
    for (const NumberOption& option : number_options) {
        const std::optional<double> value = option.value(options);
        json[option.name] = value ? Json(*value) : Json();
    }
    json["causal"] = name_of(options.causal);
    json["window"] = {options.window.left, options.window.right};
    json["dropout"] = {{"probability", options.dropout.probability},
                       {"seed", options.dropout.seed},
                       {"offset", options.dropout.offset}};
    return json;
}

Json inputs_json(const AttentionInputs& inputs)
{
    Json json = Json::object();
    for (const InputTensor& option : input_tensors()) {
        if (const ConstTensorView view = inputs.view(option.name)) {
            json[option.name] = {{"dtype", name_of(view.dtype)}, {"shape", shape_json(view)}};
        }
    }
    return json;
}

std::string ranks_text(const RanksReport& shared)
{
    const std::string groups = shared.heads_ranks > 1 ? fmt::format(" with heads over {}", shared.heads_ranks) : "";
    return fmt::format("was shared by {} rank{}, {} shards, scheme {}{} ({}); {} sent by all, {} waiting of the rank "
                       "that waited most",
                       shared.ranks, shared.ranks == 1 ? "" : "s", shared.layout, with_flag_words(shared.scheme),
                       groups, with_flag_words(shared.why), bytes_text(shared.bytes_sent),
                       time_text(shared.seconds_waiting));
}

void print_as_json(const Summary& summary)
{
    Json json;
    json["command"] = summary.command;
    json["inputs"] = inputs_json(*summary.inputs);
    json["layout"] = summary.layout == Layout::bshd ? "bshd" : "bhsd";
    json["options"] = options_json(summary.options);
    for (const auto& [pass, call] : summary.passes) {
        json["passes"][pass] = report_json(call);
    }
    for (const Written& file : summary.written) {
        json["outputs"][file.name] = file.path.string();
    }
    const Report& last = summary.passes.back().second.report;
    json["ran_on"] = last.ran_on;
    json["on_device"] = last.on_device;
    json["note"] = last.note;
    json["notes"] = summary.inputs->notes();
    json["build"] = build_json();
    print_json(json);
}

void print_as_text(const Summary& summary)
{
    const AttentionInputs& inputs = *summary.inputs;
    fmt::print("{} in {}: q {}, k {}, v {}; {}\n", summary.command, name_of(inputs.view("q").dtype),
               shape_string(inputs.view("q")), shape_string(inputs.view("k")), shape_string(inputs.view("v")),
               options_text(summary.options));
    Table files;
    files.add({"wrote", "holds", "file"});
    for (const Written& file : summary.written) {
        files.add({file.name, file.description, file.path.string()});
    }
    fmt::print("{}", files.text());
    for (const auto& [pass, call] : summary.passes) {
        fmt::print("{} took {}, extra memory {} (standard attention: {})\n", pass, time_text(call.report.seconds),
                   bytes_text(call.report.extra_bytes), bytes_text(call.report.standard_bytes));
        if (call.ranks) {
            fmt::print("{} {}\n", pass, ranks_text(*call.ranks));
        }
    }
    const std::string where = where_text(summary.passes.back().second.report);
    for (const auto& [pass, call] : summary.passes) {
        if (where_text(call.report) != where) {
            fmt::print("{} {}\n", pass, where_text(call.report));
        }
    }
    fmt::print("{}\n", where);
}

} // namespace

void print_summary(const Summary& summary, bool json)
{
    print_notes(summary.inputs->notes());
    if (json) {
        print_as_json(summary);
    } else {
        print_as_text(summary);
    }
}

} // namespace flashomp::cli
