#include "training.hpp"

#include "machine.hpp"
#include "ngram.hpp"
#include "printing.hpp"
#include "products.hpp"

#include "printable.hpp"

#include "flashomp/error.hpp"
#include "flashomp/version.hpp"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

namespace gpt {

namespace {

/// One line on a terminal, which the next one replaces.
void show_progress(const std::string& line)
{
    if (::isatty(STDERR_FILENO) == 1) {
        fmt::print(stderr, "\r\x1b[K{}", line);
        std::fflush(stderr);
    }
}

void end_progress()
{
    show_progress("");
}

} // namespace

Record::Record(const std::string& path) : path_(path)
{
    if (!path.empty()) {
        file_.open(path, std::ios::app);
        if (!file_) {
            throw flashomp::Error(fmt::format("--json was {}, which cannot be written; a file in a folder that is "
                                              "there is needed.",
                                              flashomp::printable(path, flashomp::longest_shown_path)));
        }
    }
}

void Record::add(const nlohmann::json& line)
{
    if (path_.empty()) {
        return;
    }
    file_ << line.dump() << '\n' << std::flush;
    if (!file_) {
        throw flashomp::Error(fmt::format("--json was {}, to which a line cannot be written; the disk may be full.",
                                          flashomp::printable(path_, flashomp::longest_shown_path)));
    }
}

double Quality::perplexity() const
{
    return std::exp(loss / static_cast<double>(tokens));
}

double Quality::perplexity_per_byte() const
{
    return std::exp(loss / static_cast<double>(bytes));
}

nlohmann::json Quality::json() const
{
    return {{"tokens", tokens},
            {"bytes", bytes},
            {"perplexity", perplexity()},
            {"perplexity_per_byte", perplexity_per_byte()},
            {"bits_per_byte", loss / static_cast<double>(bytes) / std::log(2.0)}};
}

Quality ngram_quality(const Text& text, const Tokens& tokens, int order)
{
    const NGram model(text.train, order, tokens.vocabulary());
    const std::vector<double> losses = model.losses(text.validation);
    Quality quality;
    for (std::size_t i = 0; i < losses.size(); ++i) {
        quality.add(losses[i], tokens.length(text.validation[i + 1]));
    }
    return quality;
}

template <class S>
Trainer<S>::Trainer(const Options& options, const Tokens& tokens, const flashomp::Options& library,
                    const Checkpoint* from)
    : options_(options), tokens_(tokens), attention_(make_attention<S>(options.attention, library)),
      model_(options.shape(), options.seed, *attention_, options.recompute()),
      optimizer_(options.optimizer, model_.layout()), step_flops_(step_flops(options.shape(), options.batch))
{
    if (from != nullptr) {
        model_.weights() = from->weights;
        optimizer_.m() = from->m;
        optimizer_.v() = from->v;
        step_ = first_step_ = from->step;
    }
}

template <class S>
Quality Trainer<S>::evaluate(const std::vector<Tokens::Id>& text, std::int64_t windows)
{
    Quality quality;
    const auto seqlen = static_cast<std::size_t>(options_.seqlen);
    const auto batch = static_cast<std::size_t>(options_.batch);
    const std::size_t end =
        std::min(text.size() - 1, windows == 0 ? text.size() : static_cast<std::size_t>(windows) * seqlen);
    const auto run = [&](const Sequences& sequences) {
        const std::vector<double> losses = model_.evaluate({sequences.tokens, sequences.targets});
        for (std::size_t i = 0; i < losses.size(); ++i) {
            quality.add(losses[i], tokens_.length(static_cast<Tokens::Id>(sequences.targets[i])));
        }
    };
    std::size_t first = 0;
    while (first + seqlen <= end) {
        Sequences sequences;
        for (std::size_t i = 0; i < batch && first + seqlen <= end; ++i, first += seqlen) {
            sequences.add(text, first, seqlen);
        }
        run(sequences);
    }
    if (first < end) { // a window that is shorter
        Sequences sequences;
        sequences.add(text, first, end - first);
        run(sequences);
    }
    return quality;
}

template <class S>
void Trainer<S>::refuse_weights() const
{
    if (step_ == first_step_ && !options_.resume.empty()) {
        throw flashomp::Error(
            fmt::format("--resume was {}, with whose weights the loss is no number; a checkpoint of an "
                        "earlier step is needed.",
                        flashomp::printable(options_.resume, flashomp::longest_shown_path)));
    }
    throw flashomp::Error(
        fmt::format("--learning-rate was {}; after {} steps with it the loss is no number, and a smaller "
                    "rate is needed.",
                    options_.optimizer.learning_rate, step_));
}

template <class S>
const Quality& Trainer<S>::sound(const Quality& quality) const
{
    if (!std::isfinite(quality.perplexity())) {
        refuse_weights();
    }
    return quality;
}

/// A model that has diverged never takes the place of the last good one.
template <class S>
void Trainer<S>::save(const Text& text)
{
    sound(evaluate(text.validation, 1));
    DurableFile file(options_.save_option(), options_.save);
    write_checkpoint(file,
                     {options_, step_, text.hash, tokens_.merges(), model_.weights(), optimizer_.m(), optimizer_.v()});
}

template <class S>
void Trainer<S>::train_step(const Text& text, Record& record)
{
    const auto start = std::chrono::steady_clock::now();
    const double attention_before = model_.attention_seconds();
    const Sequences sequences = training_batch(text, options_.batch, options_.seqlen, options_.seed, step_);
    const std::uint64_t places = places_of_model(options_.layers);
    const Drops drops{options_.dropout, options_.seed, static_cast<std::uint64_t>(step_) * places};
    const double loss = model_.train({sequences.tokens, sequences.targets}, drops);
    const double norm = optimizer_.step(model_.weights(), model_.gradients(), step_, options_.steps, model_.touched());
    if (!std::isfinite(loss) || !std::isfinite(norm)) {
        end_progress();
        refuse_weights();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto count = static_cast<double>(sequences.tokens.size());
    record.add({{"type", "step"},
                {"step", step_},
                {"loss", loss},
                {"learning_rate", learning_rate(options_.optimizer, step_, options_.steps)},
                {"gradient_norm", norm},
                {"seconds", seconds},
                {"tokens_per_second", count / seconds},
                {"attention_seconds", model_.attention_seconds() - attention_before},
                {"utilisation", step_flops_ / seconds / peak_flops_},
                {"kept_bytes", model_.kept().peak()},
                {"peak_resident_bytes", peak_resident_bytes()}});
    ++step_;
    show_progress(
        fmt::format("step {}/{}: loss {:.3f}, {:.0f} tokens/s", step_, options_.steps, loss, count / seconds));
}

template <class S>
void Trainer<S>::train(const Text& text, Record& record)
{
    peak_flops_ = peak_flops(options_.threads);
    const bool peak_is_of_steps = restart_peak_resident();
    const flashomp::BuildInfo& build = flashomp::build_info();
    record.add({{"type", "run"},
                {"options", to_json(options_)},
                {"first_step", step_},
                {"parameters", model_.weights().size()},
                {"tokens", {{"train", text.train.size()}, {"validation", text.validation.size()}}},
                {"bytes", {{"train", text.train_bytes}, {"validation", text.validation_bytes}}},
                {"text_hash", fmt::format("{:016x}", text.hash)},
                {"memory_limit", options_.memory_limit},
                {"threads", omp_get_max_threads()},
                {"peak_flops", peak_flops_},
                {"step_flops", step_flops_},
                {"products", products_library()},
                {"resident_bytes_before", peak_resident_bytes()},
                {"peak_resident_is_of_steps", peak_is_of_steps},
                {"predicted", predicted(options_.shape(), options_.batch)},
                {"build",
                 {{"version", build.version},
                  {"commit", build.commit},
                  {"compiler", build.compiler},
                  {"flags", build.flags}}}});
    const std::int64_t end =
        options_.stop_after == 0 ? options_.steps : std::min(options_.steps, step_ + options_.stop_after);
    std::int64_t saved = -1;
    while (step_ < end) {
        train_step(text, record);
        if (options_.eval_every > 0 && step_ % options_.eval_every == 0 && step_ < options_.steps) {
            const Quality quality = sound(evaluate(text.validation, options_.eval_windows));
            nlohmann::json line = quality.json();
            line.update({{"type", "validation"}, {"step", step_}});
            record.add(line);
            end_progress();
            say("step {:>6}: perplexity {:.4f} a byte ({} tokens of validation)\n", step_,
                quality.perplexity_per_byte(), quality.tokens);
        }
        if (!options_.save.empty() && step_ % options_.save_every == 0) {
            save(text);
            saved = step_;
        }
    }
    end_progress();
    if (!options_.save.empty() && saved != step_) {
        save(text);
    }
    record.add({{"type", "end"}, {"step", step_}, {"attention", attention_->ran_on()}});
}

template class Trainer<float>;
template class Trainer<bfloat16>;

} // namespace gpt
