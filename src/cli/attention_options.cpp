#include "attention_options.hpp"

#include "option_list.hpp"
#include "parse_value.hpp"
#include "words.hpp"

#include "flashomp/error.hpp"

#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

Window parse_window(const std::string& text)
{
    constexpr std::string_view allowed =
        "two whole numbers LEFT,RIGHT such as 128,0, where -1 leaves that side unbounded";
    const std::size_t comma = text.find(',');
    if (comma == std::string::npos) {
        refuse_value("--window", text, allowed);
    }
    const auto side = [&](std::string_view part) {
        std::int64_t value = 0;
        const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), value);
        if (error != std::errc() || stop != part.data() + part.size()) {
            refuse_value("--window", text, allowed);
        }
        return value;
    };
    const std::string_view view = text;
    return {side(view.substr(0, comma)), side(view.substr(comma + 1))};
}

namespace {

/// An option whose text goes through `store`, which throws Error when it is not allowed.
template <class Store>
CLI::Option* add_parsed(CLI::App& command, const char* flag, const char* placeholder, const char* group, Store store,
                        const std::string& help)
{
    return command
        .add_option_function<std::string>(
            flag, [store](const std::string& text) { store(text); }, help)
        ->type_name(placeholder)
        ->group(group);
}

void add_mask_and_score_options(CLI::App& command, Options& semantics)
{
    const char* const group = "What is computed";
    add_parsed(
        command, "--causal", "KIND", group,
        [&semantics](const std::string& text) {
            semantics.causal = parse_word<Causal>(
                "--causal", text,
                {{"none", Causal::none}, {"top-left", Causal::top_left}, {"bottom-right", Causal::bottom_right}});
        },
        "none (default), top-left (key j <= query i) or bottom-right (the last query sees every key)");
    add_parsed(
        command, "--window", "L,R", group,
        [&semantics](const std::string& text) { semantics.window = parse_window(text); },
        "keep L keys left and R keys right of the bottom-right diagonal; -1 is unbounded (default -1,-1)");
    const auto number = [&](const char* flag, const char* placeholder, auto assign, const char* help) {
        add_parsed(
            command, flag, placeholder, group,
            [flag, assign](const std::string& text) { assign(parse_number<double>(flag, text, "a number")); }, help);
    };
    for (const NumberOption& option : number_options) {
        number(
            option.flag, option.placeholder, [&semantics, set = option.set](double value) { set(semantics, value); },
            option.meaning);
    }
    number(
        "--dropout", "P", [&semantics](double value) { semantics.dropout.probability = value; },
        "chance in [0, 1) that a probability is dropped (default 0)");
    const auto counter = [&](const char* flag, std::uint64_t& target, const char* help) {
        add_parsed(
            command, flag, "N", group,
            [flag, &target](const std::string& text) {
                target = parse_number<std::uint64_t>(flag, text, "a whole number from 0 to 2^64-1");
            },
            help);
    };
    counter("--seed", semantics.dropout.seed, "seed of the dropout mask (default 0)");
    counter("--offset", semantics.dropout.offset, "offset of the dropout mask (default 0)");
}

} // namespace

const std::vector<InputTensor>& input_tensors()
{
    static const std::vector<InputTensor> tensors = [] {
        std::vector<InputTensor> all{
            {"q", "--q", "queries [B, Nq, Hq, head_dim]"},
            {"k", "--k", "keys [B, Nk, Hkv, head_dim]; Hkv divides Hq"},
            {"v", "--v", "values [B, Nk, Hkv, head_dim_v]"},
            {"do", "--do", "gradient of the output [B, Nq, Hq, head_dim_v]", true},
            {"o", "--o", "saved output; with --lse, forward is not run again", true},
            {"lse", "--lse", "saved log-sum-exp, float32 [B, Hq, Nq]", true},
        };
        for (const TensorOption& option : tensor_options) {
            all.push_back({option.name, option.flag, fmt::format("{}: {}", shape_words(option), option.meaning), false,
                           option.is_of_cache || option.is_float8_only});
        }
        return all;
    }();
    return tensors;
}

Device parse_device(const std::string& text)
{
    if (text == "auto" || text == "host") {
        return {text == "host" ? Device::Kind::host : Device::Kind::automatic, 0};
    }
    constexpr std::string_view allowed = "auto, host or the number of a GPU (0, 1, ...)";
    const int index = parse_number<int>("--device", text, allowed);
    if (index < 0) {
        refuse_value("--device", text, allowed);
    }
    return {Device::Kind::gpu, index};
}

const char* flag_of(const std::string& tensor_name)
{
    for (const InputTensor& option : input_tensors()) {
        if (tensor_name == option.name) {
            return option.flag;
        }
    }
    return "--in";
}

void add_run_options(CLI::App& command, RunFlags& flags, bool allows_float8)
{
    const char* const group = "Where and how it runs";
    add_parsed(
        command, "--dtype", "TYPE", group,
        [&flags, allows_float8](const std::string& text) {
            std::vector<std::pair<std::string_view, DType>> types{
                {"float32", DType::float32}, {"bfloat16", DType::bfloat16}, {"float16", DType::float16}};
            if (allows_float8) {
                types.emplace_back("float8_e4m3", DType::float8_e4m3);
            }
            flags.dtype = parse_word<DType>("--dtype", text, types);
        },
        allows_float8 ? "convert the inputs to float32, bfloat16, float16 or, for the forward pass on a Hopper GPU, "
                        "float8_e4m3 first"
                      : "convert the inputs to float32, bfloat16 or float16 first");
    add_parsed(
        command, "--backend", "NAME", group,
        [&flags](const std::string& text) {
            flags.backend = parse_word<Backend>("--backend", text,
                                                {{"auto", Backend::automatic},
                                                 {"openmp", Backend::openmp},
                                                 {"reference", Backend::reference},
                                                 {"cuda", Backend::cuda}});
        },
        "auto (default: cuda where it is built and finds a GPU, else openmp), openmp, cuda, or reference (float64, "
        "slow, "
        "stores N x N)");
    add_parsed(
        command, "--device", "WHERE", group, [&flags](const std::string& text) { flags.device = parse_device(text); },
        "auto (default: the first GPU if there is one), host, or a GPU's number 0, 1, ...");
    add_parsed(
        command, "--machine", "NAME", group,
        [&flags](const std::string& text) {
            std::vector<std::pair<std::string_view, Machine>> words;
            words.reserve(tuning::words<Machine>.size());
            for (const auto& [machine, word] : tuning::words<Machine>) {
                words.emplace_back(word, machine);
            }
            flags.machine = parse_word<Machine>("--machine", text, words);
        },
        "tile machine: auto (default), host, plain, tensor or hopper");
    add_parsed(
        command, "--threads", "N", group,
        [&flags](const std::string& text) {
            constexpr std::string_view allowed = "a whole number from 1 to 65536";
            flags.threads = parse_number<int>("--threads", text, allowed);
            if (flags.threads < 1 || flags.threads > 65536) {
                refuse_value("--threads", text, allowed);
            }
        },
        "host threads (default: OMP_NUM_THREADS, else all cores)");
    command.add_flag("--json", flags.json, "print one JSON object to stdout (notes stay on stderr)")->group("Output");
}

void add_attention_options(CLI::App& command, AttentionFlags& flags, bool backward)
{
    const char* const group = "Tensors (.npy files; an unsigned 16-bit file holds bfloat16)";
    for (const InputTensor& option : input_tensors()) {
        if (option.backward_only && !backward) {
            continue;
        }
        const char* const own_group = !option.forward_only ? group
                                      : backward ? "Refused by backward: key/value caches and 8 bits have no gradients"
                                                 : "Key/value caches and 8 bits";
        const std::string name = option.name;
        add_parsed(
            command, option.flag, "FILE", own_group,
            [&flags, name](const std::string& text) { flags.files[name] = text; }, option.help);
    }
    command.add_option("--in", flags.in, "read tensors from one .safetensors file, under the names q k v do o lse ...")
        ->type_name("FILE")
        ->group(group);
    add_parsed(
        command, "--layout", "ORDER", group,
        [&flags](const std::string& text) {
            flags.layout = parse_word<Layout>("--layout", text, {{"bshd", Layout::bshd}, {"bhsd", Layout::bhsd}});
        },
        "axis order of q, k, v, do, o and the results: bshd [batch, seqlen, heads, dim] (default) or bhsd");
    add_mask_and_score_options(command, flags.semantics);
    command.add_option("--out", flags.out, "folder for .npy files (made when missing), or one file.safetensors")
        ->type_name("PLACE")
        ->required()
        ->group("Output");
    add_run_options(command, flags.run, !backward);
}

Options call_options(const Options& semantics, const RunFlags& run)
{
    Options options = semantics;
    options.backend = run.backend;
    options.machine = run.machine;
    options.device = run.device;
    options.threads = run.threads;
    return options;
}

const char* name_of(Causal causal)
{
    switch (causal) {
    case Causal::none:
        return "none";
    case Causal::top_left:
        return "top-left";
    case Causal::bottom_right:
        return "bottom-right";
    }
    return "none";
}

const char* name_of(Backend backend)
{
    switch (backend) {
    case Backend::automatic:
        return "auto";
    case Backend::openmp:
        return "openmp";
    case Backend::reference:
        return "reference";
    case Backend::cuda:
        return "cuda";
    }
    return "";
}

std::string name_of(Machine machine)
{
    return std::string(tuning::word_of(machine));
}

} // namespace flashomp::cli
