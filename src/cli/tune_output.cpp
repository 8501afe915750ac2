#include "tune_output.hpp"

#include <fmt/format.h>

namespace flashomp::cli {

namespace {

/// How many times as fast as plan()'s own choice; 0 where there is no time.
double ratio_of(const bench::Tuned& tuned, const bench::Trial& trial)
{
    return trial.seconds > 0 ? tuned.trials.front().seconds / trial.seconds : 0;
}

std::string verdict(const bench::Tuned& tuned, const bench::Trial& trial)
{
    if (!trial.failure.empty()) {
        return trial.is_wrong ? "wrong, " + trial.failure : trial.failure;
    }
    if (&trial != &tuned.trials[tuned.best]) {
        return "";
    }
    if (!tuned.again) {
        return "chosen";
    }
    const auto [automatic, fastest] = *tuned.again; // seconds, when only the two took turns
    if (tuned.best == 0) {
        return fmt::format("chosen: beside it alone, the fastest other took {} to its {}", time_text(fastest),
                           time_text(automatic));
    }
    return fmt::format("chosen: beside auto alone, it took {} to auto's {}", time_text(fastest), time_text(automatic));
}

} // namespace

void print_tuned(const std::vector<bench::Tuned>& all)
{
    for (const bench::Tuned& tuned : all) {
        fmt::print("{} {}: {}\n", tuned.direction, tuned.shape,
                   tuned.failure.empty() ? tuning::text_of(tuned.shape_class) : tuned.failure);
        if (!tuned.failure.empty()) {
            continue;
        }
        Table table;
        table.add({"candidate", "ran as", "median", "auto's time / its", "nearest to its bound", ""});
        int refused = 0;
        for (const bench::Trial& trial : tuned.trials) {
            if (!trial.failure.empty() && !trial.is_wrong) {
                ++refused;
                continue;
            }
            table.add({tuning::text_of(trial.choice), trial.machine, trial.is_wrong ? "" : time_text(trial.seconds),
                       trial.is_wrong ? "" : fmt::format("{:.2f}", ratio_of(tuned, trial)),
                       fmt::format("{} {:.0f} %", trial.accuracy.nearest, 100.0 * trial.accuracy.nearest_share),
                       verdict(tuned, trial)});
        }
        fmt::print("{}{}\n", table.text(),
                   refused > 0 ? fmt::format("{} more cannot run there; --json says why\n", refused) : "");
    }
}

Json tuned_json(const std::vector<bench::Tuned>& all)
{
    Json list = Json::array();
    for (const bench::Tuned& tuned : all) {
        Json one{{"shape", tuned.shape}, {"direction", tuned.direction}};
        if (!tuned.failure.empty()) {
            one["error"] = tuned.failure;
        }
        one["class"] = tuning::text_of(tuned.shape_class);
        one["candidates"] = Json::array();
        for (const bench::Trial& trial : tuned.trials) {
            Json candidate{{"candidate", tuning::text_of(trial.choice)}};
            if (!trial.failure.empty()) {
                candidate[trial.is_wrong ? "wrong" : "refused"] = trial.failure;
            } else {
                candidate["machine"] = trial.machine;
                candidate["milliseconds"] = trial.seconds * 1e3;
                candidate["repetitions"] = trial.repetitions;
                candidate["against_automatic"] = ratio_of(tuned, trial);
                candidate["error_o"] = trial.accuracy.o;
                candidate["bound_o"] = trial.accuracy.bound_o;
                candidate["compared"] = trial.accuracy.compared;
            }
            candidate["chosen"] = tuned.entry() && &trial == &tuned.trials[tuned.best];
            one["candidates"].push_back(std::move(candidate));
        }
        if (tuned.again) {
            one["again"] = {{"automatic_milliseconds", tuned.again->first * 1e3},
                            {"fastest_milliseconds", tuned.again->second * 1e3}};
        }
        list.push_back(std::move(one));
    }
    return list;
}

} // namespace flashomp::cli
