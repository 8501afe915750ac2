#include "tune.hpp"

#include "candidates.hpp"

#include "place.hpp"
#include "store.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <new>
#include <utility>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

constexpr double long_call = 0.5; ///< seconds: warming up makes no difference
constexpr double far_behind = 2;  ///< so many times as long as plan()'s choice: not worth repetitions

/// A case whose candidates take turns.
class Contest {
public:
    Contest(BenchCase& bench, bool backward, const TimingSettings& timing)
        : bench_(bench), backward_(backward), timing_(timing)
    {
        bench_.make_outputs(false);
        bench_.forward(); // backward's input; and the first call of a process loads kernels
        if (backward_) {
            bench_.make_outputs(true);
            bench_.backward();
        }
        expected_ = expected(bench_, backward_);
    }

    /// A call that is checked, and one that is timed, the same where it is long.
    void try_out(Trial& trial)
    {
        bench_.make_outputs(backward_);
        bench_.choose(trial.choice.machine, trial.choice.tiling);
        try {
            trial.seconds = seconds_of(1, &trial.machine);
            trial.repetitions = 1;
            trial.accuracy = check(bench_, backward_, expected_);
            trial.is_wrong = !trial.accuracy.is_good();
            trial.failure = trial.is_wrong ? trial.accuracy.text() : "";
            if (!trial.is_wrong && trial.seconds < long_call && timing_.warmup > 0) {
                seconds_of(timing_.warmup);
                trial.seconds = seconds_of(1);
            }
        } catch (...) {
            trial.take_thrown("out of memory.");
        }
    }

    /// Medians of the trials, one repetition of each in turn.
    std::vector<double> take_turns(const std::vector<const Trial*>& trials)
    {
        std::vector<std::vector<double>> seconds(trials.size());
        double first = 0;
        for (const Trial* trial : trials) {
            first += std::max(timing_.least_seconds, trial->seconds);
        }
        const double affordable = std::clamp(timing_.most_seconds / std::max(first, 1e-7), 1.0, 1e6);
        const int rounds = std::min(timing_.repetitions, static_cast<int>(affordable));
        for (int round = 0; round < rounds; ++round) {
            for (std::size_t turn = 0; turn < trials.size(); ++turn) {
                const std::size_t i = (turn + static_cast<std::size_t>(round)) % trials.size(); // another begins
                const Trial& trial = *trials[i];
                bench_.choose(trial.choice.machine, trial.choice.tiling);
                const double calls = std::ceil(timing_.least_seconds / std::max(trial.seconds, 1e-7));
                seconds[i].push_back(seconds_of(static_cast<int>(std::clamp(calls, 1.0, 1e6))));
            }
        }
        repetitions_ = rounds;
        std::vector<double> medians;
        medians.reserve(trials.size());
        for (std::vector<double>& list : seconds) {
            medians.push_back(median(std::move(list)));
        }
        return medians;
    }

    [[nodiscard]] int repetitions() const { return repetitions_; }

private:
    /// Of a call, on average; `machine` is told what ran.
    double seconds_of(int calls, std::string* machine = nullptr)
    {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < calls; ++i) {
            Report report = backward_ ? bench_.backward() : bench_.forward();
            if (machine != nullptr) {
                *machine = std::move(report.machine);
            }
        }
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
    }

    BenchCase& bench_;
    bool backward_;
    TimingSettings timing_;
    Expected expected_;
    int repetitions_ = 0;
};

/// Times the trials that are right and not far behind, and names the best.
void compare(Tuned& tuned, Contest& contest, double least_gain)
{
    std::vector<Trial*> right;
    for (Trial& trial : tuned.trials) {
        if (trial.failure.empty() && trial.seconds <= far_behind * tuned.trials.front().seconds) {
            right.push_back(&trial);
        }
    }
    const std::vector<double> medians = contest.take_turns({right.begin(), right.end()});
    for (std::size_t i = 0; i < right.size(); ++i) {
        right[i]->seconds = medians[i];
        right[i]->repetitions = contest.repetitions();
    }
    const Trial& automatic = tuned.trials.front();
    const Trial& fastest = **std::min_element(right.begin(), right.end(),
                                              [](const Trial* a, const Trial* b) { return a->seconds < b->seconds; });
    const auto is_ahead = [&](double own, double other) { return own * (1 + least_gain) <= other; };
    if (&fastest == &automatic || !is_ahead(fastest.seconds, automatic.seconds)) {
        return;
    }
    const std::vector<double> again = contest.take_turns({&automatic, &fastest});
    tuned.again = {again[0], again[1]};
    if (is_ahead(again[1], again[0])) {
        tuned.best = static_cast<std::size_t>(&fastest - tuned.trials.data());
    }
}

} // namespace

bool Tuned::has_wrong() const
{
    return std::any_of(trials.begin(), trials.end(), [](const Trial& trial) { return trial.is_wrong; });
}

std::optional<tuning::Entry> Tuned::entry() const
{
    if (!failure.empty() || trials.empty() || !trials.front().failure.empty()) {
        return {};
    }
    const Trial& winner = trials[best];
    const bool is_other = best != 0 && again;
    return tuning::Entry{winner.choice, shape, winner.machine, is_other ? again->second : winner.seconds,
                         is_other ? again->first : trials.front().seconds};
}

Tuned tune(const cost::Shape& shape, bool backward, const TuneSettings& settings,
           const std::function<void(const std::string&)>& on_start)
{
    tuning::ignore_tables();
    Tuned tuned;
    tuned.shape = shape.name();
    tuned.direction = backward ? "backward" : "forward";
    try {
        const Place place = choose_place(settings.options);
        const Problem problem = cost::problem_of(shape, settings.dtype, backward, settings.options);
        tuned.shape_class = tuning::class_of(problem, place.hardware.backend);
        for (const tuning::Choice& choice : candidates(problem, place.hardware)) {
            Trial& trial = tuned.trials.emplace_back();
            trial.choice = choice;
        }
        BenchCase bench(shape, settings.dtype, settings.options, space_of(place.hardware, settings.options));
        Contest contest(bench, backward, settings.timing);
        for (Trial& trial : tuned.trials) {
            on_start(tuning::text_of(trial.choice));
            contest.try_out(trial);
        }
        if (const Trial& automatic = tuned.trials.front(); !automatic.failure.empty()) {
            static_cast<Failure&>(tuned) = automatic;
            return tuned;
        }
        on_start("all in turn");
        compare(tuned, contest, settings.least_gain);
    } catch (...) {
        tuned.take_thrown("out of memory: the tensors do not fit.");
    }
    return tuned;
}

} // namespace flashomp::bench
