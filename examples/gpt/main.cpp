// A language model from scratch: reads a text, trains, compares with an n-gram model, and writes text.
#include "attention.hpp"
#include "checkpoint.hpp"
#include "corpus.hpp"
#include "generate.hpp"
#include "machine.hpp"
#include "options.hpp"
#include "paths.hpp"
#include "printing.hpp"
#include "products.hpp"
#include "text.hpp"
#include "tokens.hpp"
#include "training.hpp"

#include "printable.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <omp.h>

namespace gpt {

namespace {

constexpr int status_bad_input = 2, status_run_failed = 3;
constexpr std::size_t longest_word = 40; ///< of a file, in a message

std::string shown(const std::string& path)
{
    return flashomp::printable(path, flashomp::longest_shown_path);
}

int fail(const std::string& sentence, int status)
{
    note(sentence);
    return status;
}

/// A model's bytes are any: control characters of ASCII are question marks, but for ends of lines and tabs.
std::string printable_text(std::string text)
{
    for (char& byte : text) {
        const auto c = static_cast<unsigned char>(byte);
        byte = (c >= ' ' && c != 0x7F) || c == '\n' || c == '\t' ? byte : '?';
    }
    return text;
}

template <class S>
void print_sample(Trainer<S>& trainer, const Options& options, const Tokens& tokens, const flashomp::Options& library)
{
    const std::vector<Tokens::Id> prompt = tokens.encode(options.prompt);
    const std::vector<Tokens::Id> drawn =
        sample(trainer.model(), library, prompt, options.sample, options.temperature, options.seed);
    say("{}\n", printable_text(options.prompt + tokens.decode(drawn)));
}

void compare_with_ngrams(const Options& options, const Tokens& tokens, const Text& text, Record& record)
{
    Quality baseline;
    try {
        baseline = ngram_quality(text, tokens, options.ngram);
    } catch (const std::bad_alloc&) {
        throw flashomp::RunFailure(
            fmt::format("out of memory: the {}-gram model does not fit into what this process may "
                        "have; a smaller --ngram needs less, and the result of the training is "
                        "recorded.",
                        options.ngram));
    }
    nlohmann::json line = baseline.json();
    line.update({{"type", "ngram"}, {"order", options.ngram}});
    record.add(line);
    say("{}-gram model of the same tokens: perplexity {:.4f} a byte, {:.4f} a token\n", options.ngram,
        baseline.perplexity_per_byte(), baseline.perplexity());
}

template <class S>
void train_and_compare(Trainer<S>& trainer, const Options& options, const Tokens& tokens, const Text& text,
                       Record& record)
{
    const auto start = std::chrono::steady_clock::now();
    trainer.train(text, record);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!trainer.is_done()) {
        return;
    }
    const Quality quality = trainer.sound(trainer.evaluate(text.validation, 0));
    nlohmann::json result = {{"type", "result"}, {"validation", quality.json()}, {"seconds", seconds}};
    say("validation: perplexity {:.4f} a byte, {:.4f} a token, after {:.1f} s of training\n",
        quality.perplexity_per_byte(), quality.perplexity(), seconds);
    if (text.test.size() > 1) {
        const Quality test = trainer.evaluate(text.test, 0);
        result["test"] = test.json();
        say("test: perplexity {:.4f} a byte, {:.4f} a token\n", test.perplexity_per_byte(), test.perplexity());
    }
    record.add(result); // before the n-gram model, for which memory may end
    if (options.ngram > 0) {
        compare_with_ngrams(options, tokens, text, record);
    }
}

/// The first line of a run that trains.
void print_plan(const Options& options, std::int64_t first_step, std::int64_t weights)
{
    const std::string files = options.save.empty()
                                  ? std::string("nothing is saved, as --save was not given")
                                  : fmt::format("saved to {} every {} steps", shown(options.save), options.save_every);
    say("{} weights, attention {}, products by {}; steps {} to {}, {}\n", weights, options.attention,
        products_library(), first_step, options.steps, files);
    expect_printed();
}

/// What can be refused before any work is.
void expect_files(const Options& options)
{
    if (!options.save.empty()) {
        static_cast<void>(DurableFile(options.save_option(), options.save));
    }
}

Corpus read_text(const Options& options, const std::optional<Checkpoint>& from)
{
    Corpus corpus = read_corpus(options.data, options.limit);
    if (const std::uint64_t hash = fnv1a(corpus.train); from && hash != from->text_hash) {
        throw flashomp::Error(
            fmt::format("--data has a training text with the hash {:016x}, but the run in {} began with "
                        "one of {:016x}; a run goes on with its own text, by the same --data and "
                        "--limit.",
                        hash, shown(options.resume), from->text_hash));
    }
    return corpus;
}

template <class S>
void run(const Options& options, const std::optional<Checkpoint>& from, bool trains)
{
    const flashomp::Options library = library_options(options.attention, options.device, options.threads);
    expect_place(library);
    if (options.sample > 0 && options.attention == "reference") {
        throw flashomp::Error(fmt::format("--sample was {} with --attention reference, which has no key/value cache; "
                                          "allowed with it is another --attention.",
                                          options.sample));
    }
    std::optional<Record> record;
    Corpus corpus;
    if (trains) {
        expect_files(options);
        record.emplace(options.json);
        corpus = read_text(options, from);
    }
    const Tokens tokens =
        from ? Tokens(from->merges) : Tokens::learn(corpus.train, static_cast<int>(options.vocabulary));
    if (tokens.vocabulary() != options.vocabulary) {
        throw flashomp::Error(fmt::format("--vocabulary was {}; the text has pairs for {} tokens, and at most so many "
                                          "are allowed.",
                                          options.vocabulary, tokens.vocabulary()));
    }
    std::optional<Text> text;
    if (trains) {
        text = tokenised(corpus, tokens, options.seqlen);
        corpus = {};
    }
    Trainer<S> trainer(options, tokens, library, from ? &*from : nullptr);
    if (trains) {
        print_plan(options, trainer.step(), static_cast<std::int64_t>(trainer.model().weights().size()));
        train_and_compare(trainer, options, tokens, *text, *record);
    }
    if (options.sample > 0) {
        print_sample(trainer, options, tokens, library);
    }
}

/// The checkpoint, and its options under those of the command line.
Checkpoint resumed(int argc, char** argv, Options& options)
{
    const std::string file = options.resume;
    Checkpoint from = read_checkpoint(file);
    options = from.options;
    static_cast<void>(parse_options(argc, argv, options));
    expect_same_shape(file, from.options.shape(), options.shape());
    return from;
}

/// Attention and its device are of the machine and not of the model: where the command line does not name them, and
/// this machine does not have the checkpoint's, the library chooses.
void replace_what_is_not_here(Options& options, bool trains)
{
    const std::vector<std::string> names = attention_names();
    const bool is_here = std::find(names.begin(), names.end(), options.attention) != names.end();
    const bool cannot_sample = options.attention == "reference" && options.sample > 0 && !trains;
    if (!options.is_given("--attention") && (!is_here || cannot_sample)) {
        note(fmt::format("the checkpoint's --attention {} {}; flash is used.",
                         flashomp::printable(options.attention, longest_word),
                         is_here ? "cannot sample" : "is not in this build"));
        options.attention = "flash";
    }
    if (!options.is_given("--device") && options.device != "auto") {
        try {
            expect_place(library_options(options.attention, options.device, options.threads));
        } catch (const flashomp::Error&) {
            note(fmt::format("the checkpoint's --device {} is not here; auto is used.",
                             flashomp::printable(options.device, longest_word)));
            options.device = "auto";
        }
    }
}

void start(int argc, char** argv)
{
    Options options;
    if (!parse_options(argc, argv, options)) {
        expect_printed();
        return;
    }
    std::optional<Checkpoint> from;
    check_paths(options);
    if (!options.resume.empty()) {
        from = resumed(argc, argv, options);
        check_paths(options); // with the checkpoint's --data
    }
    check_options(options);
    const bool trains = !from || from->step < options.steps;
    if (from) {
        replace_what_is_not_here(options, trains);
    }
    if (from && trains && options.save.empty()) {
        options.save = options.resume;
    }
    if (!trains && (options.sample == 0 || !options.save.empty() || !options.json.empty())) {
        note(fmt::format("{} has done {} steps, and --steps is {}: nothing is trained, saved or recorded.",
                         shown(options.resume), from->step, options.steps));
    }
    limit_memory(options.memory_limit);
    reuse_memory();
    if (options.threads > 0) {
        omp_set_num_threads(options.threads);
    }
    if (options.dtype == "bfloat16") {
        run<bfloat16>(options, from, trains);
    } else {
        run<float>(options, from, trains);
    }
    expect_printed();
}

} // namespace

} // namespace gpt

int main(int argc, char** argv)
{
    // A write beyond the limit on file sizes then fails as one to a full disk does, with a sentence.
    static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
    gpt::hold_standard_streams();
    try {
        gpt::start(argc, argv);
        return 0;
    } catch (const flashomp::Error& error) {
        return gpt::fail(error.what(), gpt::status_bad_input);
    } catch (const flashomp::RunFailure& failure) {
        return gpt::fail(failure.what(), gpt::status_run_failed);
    } catch (const std::bad_alloc&) {
        return gpt::fail(
            "out of memory: the model or a step does not fit into what this process may have; a smaller "
            "--hash-rows, --dim, --seqlen or --batch, --checkpoint layer or another --attention needs less.",
            gpt::status_run_failed);
    } catch (const std::exception& error) {
        return gpt::fail(fmt::format("unexpected failure: {}", error.what()), gpt::status_run_failed);
    }
}
