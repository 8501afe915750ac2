#include "options.hpp"

#include "attention.hpp"
#include "corpus.hpp"
#include "tokens.hpp"

#include "flashomp/error.hpp"

#include <cstdio>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpt {

namespace {

constexpr const char* about =
    R"(Trains a decoder-only transformer from scratch on a text, with flashomp's attention or with standard attention,
beside a 5-gram model of the same text, and writes text with it.

Exit status: 0 success, 2 bad input or a file that cannot be written, 3 the machine failed: memory, a GPU.)";

constexpr const char* examples = R"(Examples:
  gpt --sample 400
  gpt --data wikitext-103 --vocabulary 4096 --steps 20000 --save model.safetensors
  gpt --resume model.safetensors --sample 400 --prompt "The meaning of life"
  gpt --attention standard --dtype bfloat16 --checkpoint layer --json run.jsonl
)";

void expect(bool is_allowed, const char* option, const std::string& given, const std::string& allowed)
{
    if (!is_allowed) {
        throw flashomp::Error(fmt::format("{} was {}; allowed is {}.", option, given, allowed));
    }
}

template <class Value>
void expect_range(const char* option, Value value, Value least, Value most)
{
    expect(value >= least && value <= most, option, fmt::format("{}", value), fmt::format("{} to {}", least, most));
}

void expect_word(const char* option, const std::string& word, const std::vector<std::string>& allowed)
{
    expect(std::find(allowed.begin(), allowed.end(), word) != allowed.end(), option, "'" + word + "'",
           fmt::format("one of {}", fmt::join(allowed, ", ")));
}

void check(const Options& options)
{
    constexpr std::int64_t many = 1 << 20;
    expect_range<std::int64_t>("--vocabulary", options.vocabulary, Tokens::bytes, Tokens::most);
    expect_range("--ngram", options.ngram, 0, 8);
    expect_range<std::int64_t>("--seqlen", options.seqlen, 1, many);
    expect_range<std::int64_t>("--layers", options.layers, 1, 1000);
    expect_range<std::int64_t>("--heads", options.heads, 1, 1000);
    expect_range<std::int64_t>("--dim", options.dim, 1, many);
    expect(options.dim % options.heads == 0 && options.dim / options.heads <= flashomp::most_head_dim_v, "--dim",
           fmt::format("{} with --heads {}", options.dim, options.heads),
           fmt::format("a multiple of the heads, of at most {} for each", flashomp::most_head_dim_v));
    expect(options.heads_kv >= 0 && (options.heads_kv == 0 || options.heads % options.heads_kv == 0), "--heads-kv",
           fmt::format("{} with --heads {}", options.heads_kv, options.heads), "a number that divides the heads");
    expect_word("--attention", options.attention, attention_names());
    expect_word("--checkpoint", options.checkpoint, {"none", "attention", "layer"});
    expect_word("--dtype", options.dtype, {"float32", "bfloat16"});
    expect_range("--dropout", options.dropout, 0.0, 0.99);
    expect_range<std::int64_t>("--batch", options.batch, 1, many);
    expect_range<std::int64_t>("--steps", options.steps, 0, std::int64_t{1} << 40);
    expect_range("--learning-rate", options.optimizer.learning_rate, 0.0, 1.0);
    expect_range("--last-rate", options.optimizer.last_rate, 0.0, 1.0);
    expect_range<std::int64_t>("--warmup", options.optimizer.warmup, 0, std::int64_t{1} << 40);
    expect_range("--beta1", options.optimizer.beta1, 0.0, 0.9999);
    expect_range("--beta2", options.optimizer.beta2, 0.0, 0.999999);
    expect_range("--weight-decay", options.optimizer.weight_decay, 0.0, 10.0);
    expect_range("--clip", options.optimizer.clip, 0.0, 1e6);
    expect_range<std::int64_t>("--eval-every", options.eval_every, 0, std::int64_t{1} << 40);
    expect_range<std::int64_t>("--eval-windows", options.eval_windows, 1, many);
    expect_range<std::int64_t>("--save-every", options.save_every, 1, std::int64_t{1} << 40);
    expect_range<std::int64_t>("--stop-after", options.stop_after, 0, std::int64_t{1} << 40);
    expect_range<std::int64_t>("--limit", options.limit, 0, std::int64_t{1} << 40);
    expect_range<std::int64_t>("--memory-limit", options.memory_limit, 0, std::int64_t{1} << 50);
    expect_range("--threads", options.threads, 0, 1024);
    expect_range<std::int64_t>("--sample", options.sample, 0, many);
    expect_range("--temperature", options.temperature, 0.01, 100.0);
    expect(!options.prompt.empty(), "--prompt", "empty", "at least a byte");
}

void describe(CLI::App& app, Options& options)
{
    const char* const text = "The text";
    app.add_option(
           "--data", options.data,
           fmt::format("file or folder, repeatable; default {} (Debian package {})", default_text, default_package))
        ->group(text)
        ->allow_extra_args(false);
    app.add_option("--limit", options.limit, "use at most so many bytes for training; 0 is all")->group(text);
    app.add_option("--vocabulary", options.vocabulary, "256: bytes; more: byte-pair encoding of so many tokens")
        ->group(text);
    app.add_option("--ngram", options.ngram, "order of the n-gram model beside it; 0: none")->group(text);

    const char* const model = "The model";
    app.add_option("--seqlen", options.seqlen, "tokens of a sequence, N")->group(model);
    app.add_option("--layers", options.layers, "layers")->group(model);
    app.add_option("--heads", options.heads, "query heads")->group(model);
    app.add_option("--heads-kv", options.heads_kv, "key heads; 0: as many")->group(model);
    app.add_option("--dim", options.dim, "width of the residual stream")->group(model);
    app.add_option("--dropout", options.dropout, "of embeddings, probabilities and the outputs of a layer's parts")
        ->group(model);
    app.add_option("--alibi", options.alibi,
                   "true or false: scores fall with distance (ALiBi), besides learned positions")
        ->group(model);
    app.add_option("--dtype", options.dtype, "of activations: float32 or bfloat16; weights are float32")->group(model);

    const char* const how = "How it is computed";
    app.add_option("--attention", options.attention,
                   fmt::format("{}; flash leaves the backend to the library", fmt::join(attention_names(), ", ")))
        ->group(how);
    app.add_option("--device", options.device, "of the library: auto, host or a GPU's number")->group(how);
    app.add_option("--checkpoint", options.checkpoint, "what is run again backward: none, attention or layer")
        ->group(how);
    app.add_option("--threads", options.threads, "0: OMP_NUM_THREADS")->group(how);
    app.add_option("--memory-limit", options.memory_limit, "bytes of address space (RLIMIT_AS); 0: no limit")
        ->group(how);

    const char* const training = "Training";
    app.add_option("--batch", options.batch, "sequences of a step")->group(training);
    app.add_option("--steps", options.steps, "steps of the whole run")->group(training);
    app.add_option("--seed", options.seed, "of weights, batches, dropout and sampling")->group(training);
    app.add_option("--learning-rate", options.optimizer.learning_rate, "the highest")->group(training);
    app.add_option("--last-rate", options.optimizer.last_rate, "of the last step, as a fraction")->group(training);
    app.add_option("--warmup", options.optimizer.warmup, "steps in which the rate rises")->group(training);
    app.add_option("--beta1", options.optimizer.beta1, "AdamW's")->group(training);
    app.add_option("--beta2", options.optimizer.beta2, "AdamW's")->group(training);
    app.add_option("--weight-decay", options.optimizer.weight_decay, "AdamW's")->group(training);
    app.add_option("--clip", options.optimizer.clip, "the largest norm of the gradients; 0: any")->group(training);
    app.add_option("--eval-every", options.eval_every, "steps between validations; 0: only at the end")
        ->group(training);
    app.add_option("--eval-windows", options.eval_windows, "sequences of such a validation; at the end all")
        ->group(training);

    const char* const files = "Files";
    app.add_option("--save", options.save, "checkpoint to write, safetensors")->group(files);
    app.add_option("--save-every", options.save_every, "steps between checkpoints")->group(files);
    app.add_option("--stop-after", options.stop_after, "end this process after so many steps; 0: all")->group(files);
    app.add_option("--resume", options.resume, "checkpoint to go on from, with its options")->group(files);
    app.add_option("--json", options.json, "a line of JSON for each step")->group(files);

    const char* const out = "Text out of the model";
    app.add_option("--sample", options.sample, "tokens to write")->group(out);
    app.add_option("--prompt", options.prompt, "what they follow")->group(out);
    app.add_option("--temperature", options.temperature, "of the draw")->group(out);
    for (CLI::Option* const option : app.get_options()) {
        option->capture_default_str();
        if (option->get_name() != "--data") {
            option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast); // as in the tool
        }
    }
}

} // namespace

ModelShape Options::shape() const
{
    return {vocabulary, seqlen, layers, heads, heads_kv == 0 ? heads : heads_kv, dim, alibi};
}

Recompute Options::recompute() const
{
    return checkpoint == "layer" ? Recompute::layer
                                 : (checkpoint == "attention" ? Recompute::attention : Recompute::none);
}

bool parse_options(int argc, char** argv, Options& options)
{
    CLI::App app(about, "gpt");
    app.footer(examples);
    describe(app, options);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
            std::ostringstream text;
            app.exit(error, text, text);
            fmt::print("{}", text.str());
            return false;
        }
        std::string what = error.what();
        what.erase(what.find_last_not_of(". \n") + 1);
        throw flashomp::Error(fmt::format("{}; `gpt --help` lists what is allowed.", what));
    }
    check(options);
    return true;
}

nlohmann::json to_json(const Options& options)
{
    nlohmann::json json;
    for_each_saved(options, [&](const char* name, const auto& value) { json[name] = value; });
    return json;
}

Options options_from_json(const nlohmann::json& json)
{
    Options options;
    for_each_saved(options, [&](const char* name, auto& value) { json.at(name).get_to(value); });
    check(options);
    return options;
}

} // namespace gpt
