#include "options.hpp"

#include "attention.hpp"
#include "corpus.hpp"
#include "tokens.hpp"

#include "printable.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <sstream>
#include <system_error>
#include <type_traits>

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

constexpr std::size_t longest_shown = 60; ///< of a value

void expect(bool is_allowed, const char* option, const std::string& given, const std::string& allowed)
{
    if (!is_allowed) {
        throw flashomp::Error(
            fmt::format("{} was {}; allowed is {}.", option, flashomp::printable(given, longest_shown), allowed));
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

/// The number that the whole text is. CLI11 itself wraps "-1" to a natural number, clips what has too many bits, and
/// reads "010" as 8.
template <class Value>
Value number_of(const std::string& option, const std::string& text)
{
    Value value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const std::string allowed = std::is_integral_v<Value> ? fmt::format("a {} number of at most {} bits",
                                                                        std::is_signed_v<Value> ? "whole" : "natural",
                                                                        std::numeric_limits<Value>::digits)
                                                          : std::string("a number");
    expect(error == std::errc() && stop == end && !text.empty(), option.c_str(), "'" + text + "'", allowed);
    return value;
}

/// Adds options to one group of --help.
class Group {
public:
    Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

    template <class Value>
    CLI::Option* add(const std::string& option, Value& value, const std::string& help)
    {
        CLI::Option* const added = app_.add_option(option, value, help);
        if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
            added->transform(
                [option](const std::string& text) { return fmt::format("{}", number_of<Value>(option, text)); });
        }
        if constexpr (std::is_same_v<Value, bool>) {
            added->check([option](const std::string& text) {
                expect_word(option.c_str(), text, {"true", "false"});
                return std::string();
            });
        }
        return added->group(name_);
    }

private:
    CLI::App& app_;
    const char* name_;
};

void describe(CLI::App& app, Options& options)
{
    Group text(app, "The text");
    text.add("--data", options.data,
             fmt::format("file or folder, repeatable; default {} (Debian package {})", default_text, default_package))
        ->allow_extra_args(false);
    text.add("--limit", options.limit, "use at most so many bytes for training; 0 is all");
    text.add("--vocabulary", options.vocabulary, "256: bytes; more: byte-pair encoding of so many tokens");
    text.add("--ngram", options.ngram, "order of the n-gram model beside it; 0: none");

    Group model(app, "The model");
    model.add("--seqlen", options.seqlen, "tokens of a sequence, N");
    model.add("--layers", options.layers, "layers");
    model.add("--heads", options.heads, "query heads");
    model.add("--heads-kv", options.heads_kv, "key heads; 0: as many");
    model.add("--dim", options.dim, "width of the residual stream");
    model.add("--hashed-ngrams", options.hashed_ngrams,
              "the longest n-gram of tokens that has an embedding of its own, by hash; 0: none has");
    model.add("--hash-rows", options.hash_rows, "embeddings for each n from 2 to that");
    model.add("--dropout", options.dropout, "of embeddings, probabilities and the outputs of a layer's parts");
    model.add("--alibi", options.alibi, "true or false: scores fall with distance (ALiBi), besides learned positions");
    model.add("--dtype", options.dtype, "of activations: float32 or bfloat16; weights are float32");

    Group how(app, "How it is computed");
    how.add("--attention", options.attention,
            fmt::format("{}; flash leaves the backend to the library", fmt::join(attention_names(), ", ")));
    how.add("--device", options.device, "of the library: auto, host or a GPU's number");
    how.add("--checkpoint", options.checkpoint, "what is run again backward: none, attention or layer");
    how.add("--threads", options.threads, "0: OMP_NUM_THREADS");
    how.add("--memory-limit", options.memory_limit, "bytes of address space (RLIMIT_AS); 0: no limit");

    Group training(app, "Training");
    training.add("--batch", options.batch, "sequences of a step");
    training.add("--steps", options.steps, "steps of the whole run; with --resume 0 trains no more, and needs no text");
    training.add("--seed", options.seed, "of weights, batches, dropout and sampling");
    training.add("--learning-rate", options.optimizer.learning_rate, "the highest");
    training.add("--last-rate", options.optimizer.last_rate, "of the last step, as a fraction");
    training.add("--warmup", options.optimizer.warmup, "steps in which the rate rises");
    training.add("--beta1", options.optimizer.beta1, "AdamW's");
    training.add("--beta2", options.optimizer.beta2, "AdamW's");
    training.add("--weight-decay", options.optimizer.weight_decay, "AdamW's");
    training.add("--clip", options.optimizer.clip, "the largest norm of the gradients; 0: any");
    training.add("--eval-every", options.eval_every, "steps between validations; 0: only at the end");
    training.add("--eval-windows", options.eval_windows, "sequences of such a validation; at the end all");

    Group files(app, "Files");
    files.add("--save", options.save, "checkpoint to write, safetensors; default none, or with --resume the same file");
    files.add("--save-every", options.save_every, "steps between checkpoints");
    files.add("--stop-after", options.stop_after, "end this process after so many steps; 0: all");
    files.add(
        "--resume", options.resume,
        "checkpoint to go on from, with its options and on its text: another text is refused, unless all steps are "
        "done and the model is only sampled from");
    files.add("--json", options.json, "appends lines of JSON to a file: the run, each step, the result");

    Group out(app, "Text out of the model");
    out.add("--sample", options.sample,
            "tokens to write; not with --attention reference, which has no key/value cache");
    out.add("--prompt", options.prompt, "what they follow");
    out.add("--temperature", options.temperature, "of the draw");
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
    return {vocabulary, seqlen, layers, heads, heads_kv == 0 ? heads : heads_kv, dim, alibi, hashed_ngrams, hash_rows};
}

Recompute Options::recompute() const
{
    return checkpoint == "layer" ? Recompute::layer
                                 : (checkpoint == "attention" ? Recompute::attention : Recompute::none);
}

void check_options(const Options& options)
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
    expect(options.hashed_ngrams == 0 || (options.hashed_ngrams >= 2 && options.hashed_ngrams <= 16), "--hashed-ngrams",
           fmt::format("{}", options.hashed_ngrams), "0, or 2 to 16");
    expect_range<std::int64_t>("--hash-rows", options.hash_rows, 1, many);
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
    for (const CLI::Option* const option : app.get_options()) {
        if (option->count() > 0) {
            options.given.insert(option->get_name());
        }
    }
    return true;
}

} // namespace gpt
