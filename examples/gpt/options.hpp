// What a user can choose, on the command line and, for a resumed run, in a checkpoint.
#pragma once

#include "model.hpp"
#include "optimizer.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace gpt {

struct Options {
    // The text.
    std::vector<std::string> data;
    std::int64_t limit = 0;        ///< bytes of the training text; 0: all
    std::int64_t vocabulary = 256; ///< 256: bytes; more: byte-pair encoding
    int ngram = 5;                 ///< order of the baseline; 0: none

    // The model.
    std::int64_t seqlen = 512, layers = 2, heads = 8, heads_kv = 0, dim = 128; ///< heads_kv 0: as heads
    std::int64_t hashed_ngrams = 4, hash_rows = 16384;
    std::string attention = "flash", device = "auto", checkpoint = "none", dtype = "float32";
    double dropout = 0.0;
    bool alibi = true;

    // Training.
    std::int64_t batch = 1, steps = 4000;
    std::uint64_t seed = 1;
    OptimizerOptions optimizer;
    std::int64_t eval_every = 500, eval_windows = 32; ///< windows of seqlen tokens; at the end all of them
    int threads = 0;                                  ///< 0: OMP_NUM_THREADS

    // Files and output.
    std::string save, resume, json;
    std::int64_t save_every = 500;
    std::int64_t stop_after = 0;   ///< steps of this process; 0: all
    std::int64_t memory_limit = 0; ///< bytes of address space; 0: none

    // Text out of the trained model.
    std::int64_t sample = 0; ///< tokens
    std::string prompt = "\n";
    double temperature = 0.8;

    std::set<std::string> given; ///< options that the command line names: "--save"

    [[nodiscard]] ModelShape shape() const;
    [[nodiscard]] Recompute recompute() const;
    /// What the user named `save` by, for messages.
    [[nodiscard]] const char* save_option() const { return is_given("--save") ? "--save" : "--resume without --save"; }
    [[nodiscard]] bool is_given(const char* option) const { return given.contains(option); }
};

/// The command line over what `options` holds. Throws flashomp::Error with one sentence for what is no option or no
/// number. Nothing when --help was asked for and printed.
[[nodiscard]] bool parse_options(int argc, char** argv, Options& options);

/// Throws flashomp::Error with one sentence for values that are out of range or do not fit together. Paths are
/// check_paths()'s, and --attention and --device, which are of the machine and not of the model, library_options()'s.
void check_options(const Options& options);

/// Calls visit(name, value) for everything that a checkpoint holds of the options.
template <class Any, class Visit>
void for_each_saved(Any& options, const Visit& visit)
{
    visit("data", options.data);
    visit("limit", options.limit);
    visit("vocabulary", options.vocabulary);
    visit("ngram", options.ngram);
    visit("seqlen", options.seqlen);
    visit("layers", options.layers);
    visit("heads", options.heads);
    visit("heads_kv", options.heads_kv);
    visit("dim", options.dim);
    visit("hashed_ngrams", options.hashed_ngrams);
    visit("hash_rows", options.hash_rows);
    visit("attention", options.attention);
    visit("device", options.device);
    visit("checkpoint", options.checkpoint);
    visit("dtype", options.dtype);
    visit("dropout", options.dropout);
    visit("alibi", options.alibi);
    visit("batch", options.batch);
    visit("steps", options.steps);
    visit("seed", options.seed);
    visit("learning_rate", options.optimizer.learning_rate);
    visit("last_rate", options.optimizer.last_rate);
    visit("warmup", options.optimizer.warmup);
    visit("beta1", options.optimizer.beta1);
    visit("beta2", options.optimizer.beta2);
    visit("weight_decay", options.optimizer.weight_decay);
    visit("clip", options.optimizer.clip);
    visit("eval_every", options.eval_every);
    visit("eval_windows", options.eval_windows);
    visit("save_every", options.save_every);
    visit("threads", options.threads);
}

[[nodiscard]] nlohmann::json to_json(const Options& options);

/// Takes what to_json() writes and nothing else: throws flashomp::Error for an option that is missing, unknown, of
/// another type or not allowed.
[[nodiscard]] Options options_from_json(const nlohmann::json& json);

/// A whole number of a JSON object. Throws flashomp::Error for others: 1.7, text, or more than 64 bits hold.
[[nodiscard]] std::int64_t whole_number(const nlohmann::json& object, const char* name);
[[nodiscard]] std::uint64_t natural_number(const nlohmann::json& object, const char* name);

} // namespace gpt
