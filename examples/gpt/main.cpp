// A language model from scratch: reads a text, trains, compares with an n-gram model, and writes text.
#include "checkpoint.hpp"
#include "corpus.hpp"
#include "generate.hpp"
#include "machine.hpp"
#include "options.hpp"
#include "text.hpp"
#include "tokens.hpp"
#include "training.hpp"

#include "flashomp/error.hpp"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <omp.h>

namespace gpt {

namespace {

constexpr int status_bad_input = 2, status_run_failed = 3;

int fail(const std::string& sentence, int status)
{
    fmt::print(stderr, "gpt: {}\n", sentence);
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
    fmt::print("{}{}\n", options.prompt, printable_text(tokens.decode(drawn)));
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
    const Quality quality = trainer.evaluate(text.validation, 0);
    nlohmann::json result = {{"type", "result"}, {"validation", quality.json()}, {"seconds", seconds}};
    fmt::print("validation: perplexity {:.4f} a byte, {:.4f} a token, after {:.1f} s of training\n",
               quality.perplexity_per_byte(), quality.perplexity(), seconds);
    if (text.test.size() > 1) {
        const Quality test = trainer.evaluate(text.test, 0);
        result["test"] = test.json();
        fmt::print("test: perplexity {:.4f} a byte, {:.4f} a token\n", test.perplexity_per_byte(), test.perplexity());
    }
    if (options.ngram > 0) {
        const Quality baseline = ngram_quality(text, tokens, options.ngram);
        result["ngram"] = baseline.json();
        result["ngram"]["order"] = options.ngram;
        fmt::print("{}-gram model of the same tokens: perplexity {:.4f} a byte, {:.4f} a token\n", options.ngram,
                   baseline.perplexity_per_byte(), baseline.perplexity());
    }
    record.add(result);
}

template <class S>
void run(const Options& options, const std::optional<Checkpoint>& from)
{
    const flashomp::Options library = library_options(options.attention, options.device, options.threads);
    const bool trains = !from || from->step < options.steps;
    Corpus corpus;
    if (trains) {
        corpus = read_corpus(options.data, options.limit);
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
        Record record(options.json);
        train_and_compare(trainer, options, tokens, *text, record);
    }
    if (options.sample > 0) {
        print_sample(trainer, options, tokens, library);
    }
}

int start(int argc, char** argv)
{
    Options options;
    if (!parse_options(argc, argv, options)) {
        return std::fflush(stdout) == 0 ? 0 : status_run_failed;
    }
    std::optional<Checkpoint> from;
    if (!options.resume.empty()) {
        const std::string file = options.resume;
        from = read_checkpoint(file);
        options = from->options;
        static_cast<void>(parse_options(argc, argv, options)); // what is named on the command line counts
        expect_same_shape(file, from->options.shape(), options.shape());
    }
    limit_memory(options.memory_limit);
    reuse_memory();
    if (options.threads > 0) {
        omp_set_num_threads(options.threads);
    }
    if (options.dtype == "bfloat16") {
        run<bfloat16>(options, from);
    } else {
        run<float>(options, from);
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
        return fail("the results cannot be printed to standard output; it must be open and have room for them.",
                    status_bad_input);
    }
    return 0;
}

} // namespace

} // namespace gpt

int main(int argc, char** argv)
{
    // A write beyond the limit on file sizes then fails as one to a full disk does, with a sentence.
    static_cast<void>(std::signal(SIGXFSZ, SIG_IGN));
    try {
        return gpt::start(argc, argv);
    } catch (const flashomp::Error& error) {
        return gpt::fail(error.what(), gpt::status_bad_input);
    } catch (const flashomp::RunFailure& failure) {
        return gpt::fail(failure.what(), gpt::status_run_failed);
    } catch (const std::bad_alloc&) {
        return gpt::fail("out of memory: a step does not fit into what this process may have; a smaller --seqlen or "
                         "--batch, --checkpoint layer or another --attention needs less.",
                         gpt::status_run_failed);
    } catch (const std::exception& error) {
        return gpt::fail(fmt::format("unexpected failure: {}", error.what()), gpt::status_run_failed);
    }
}
