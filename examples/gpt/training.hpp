// Training: steps, validations, checkpoints, and a record of each as a line of JSON.
#pragma once

#include "checkpoint.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "options.hpp"
#include "text.hpp"

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

namespace gpt {

/// Lines of JSON behind those that are in a file that is open as long as this; no name: nowhere.
class Record {
public:
    explicit Record(const std::string& path);

    /// Throws flashomp::Error where the line cannot be written.
    void add(const nlohmann::json& line);

private:
    std::string path_;
    std::ofstream file_;
};

/// How well tokens were predicted. Per byte, models of different tokens can be compared.
struct Quality {
    double loss = 0;         ///< Σ −log p, nats
    std::int64_t tokens = 0; ///< that were predicted
    std::int64_t bytes = 0;  ///< of these

    void add(double nats, std::size_t length)
    {
        loss += nats;
        tokens += 1;
        bytes += static_cast<std::int64_t>(length);
    }
    [[nodiscard]] double perplexity() const;
    [[nodiscard]] double perplexity_per_byte() const;
    [[nodiscard]] nlohmann::json json() const;
};

/// Of an n-gram model of the training text, on all validation tokens but the first.
[[nodiscard]] Quality ngram_quality(const Text& text, const Tokens& tokens, int order);

template <class S>
class Trainer {
public:
    /// Everything lives at least as long. `from`: weights and moments of a checkpoint, or null.
    Trainer(const Options& options, const Tokens& tokens, const flashomp::Options& library, const Checkpoint* from);

    /// All steps from the checkpoint's, or the first --stop-after of them. Throws flashomp::RunFailure where memory
    /// ends.
    void train(const Text& text, Record& record);

    /// In windows of seqlen tokens, each predicted from those before it in its window; at most `windows`, 0 is all.
    [[nodiscard]] Quality evaluate(const std::vector<Tokens::Id>& text, std::int64_t windows);

    /// The quality, which is a number. Throws flashomp::Error where the weights have diverged.
    const Quality& sound(const Quality& quality) const;

    [[nodiscard]] bool is_done() const { return step_ >= options_.steps; }
    [[nodiscard]] std::int64_t step() const { return step_; } ///< steps that are done
    [[nodiscard]] Model<S>& model() { return model_; }

private:
    void train_step(const Text& text, Record& record);
    void save(const Text& text);
    [[noreturn]] void refuse_weights() const;

    const Options& options_;
    const Tokens& tokens_;
    std::unique_ptr<Attention<S>> attention_;
    Model<S> model_;
    AdamW<float> optimizer_;
    double peak_flops_ = 0, step_flops_ = 0;
    std::int64_t step_ = 0, first_step_ = 0; ///< steps that are done: now, and when this process began
};

} // namespace gpt
