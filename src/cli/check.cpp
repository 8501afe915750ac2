// flashomp check: every case of a folder, forward and backward, against expected tensors.
#include "attention_options.hpp"
#include "check_case.hpp"
#include "check_cases.hpp"
#include "commands.hpp"
#include "progress.hpp"
#include "report.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(Runs every case of DIR/cases.json, forward and backward, and compares with the expected .npy files.
Each cell shows error/bound: the largest difference, and what it may be, from the error of standard attention carried
out in the result's dtype: in 16 bits once that of o and 1.5 times that of gradients, in float32 (which LSE always is)
2 and 3 times. The root mean square, the mean and a common factor of the errors have limits too, and so have blocks of
64 rows; a limit that fails is named below the table. NaN or infinity out of place fails.

Examples:
  flashomp check tests/cases
  flashomp check tests/cases --dtype bfloat16 --device 0 --require-device
  flashomp check tests/cases --case gqa --case d80 --json
)";

struct CheckFlags {
    RunFlags run;
    std::string directory;
    std::vector<std::string> only;
    bool require_device = false;
};

/// The outcome of all cases.
struct Tally {
    std::size_t passed = 0, failed = 0, skipped = 0;
    std::size_t elsewhere = 0;                 ///< ran, but not on a device
    std::map<std::string, std::size_t> places; ///< place_text() to number of cases
};

const char* word_for(Outcome outcome)
{
    switch (outcome) {
    case Outcome::passed:
        return "pass";
    case Outcome::failed:
        return "FAIL";
    case Outcome::skipped:
        return "skip";
    }
    return "";
}

std::vector<CheckCase> chosen_cases(const CheckFlags& flags)
{
    std::vector<CheckCase> cases = read_cases(flags.directory);
    for (const std::string& name : flags.only) {
        if (std::none_of(cases.begin(), cases.end(), [&](const CheckCase& item) { return item.name == name; })) {
            throw Error(fmt::format("--case was '{}'; allowed is a case of {}.", name,
                                    (std::filesystem::path(flags.directory) / "cases.json").string()));
        }
    }
    if (!flags.only.empty()) {
        std::erase_if(cases, [&](const CheckCase& item) {
            return std::find(flags.only.begin(), flags.only.end(), item.name) == flags.only.end();
        });
    }
    return cases;
}

/// Where a call ran, and which ranks shared it.
std::string place_text(const CallReport& call)
{
    std::string where = where_text(call.report);
    if (!call.ranks) {
        return where;
    }
    const RanksReport& shared = *call.ranks;
    return fmt::format("over {} rank{}, {}, scheme {}, {}", shared.ranks, shared.ranks == 1 ? "" : "s", shared.layout,
                       with_flag_words(shared.scheme), where);
}

Tally tally(const std::vector<CaseResult>& results)
{
    Tally count;
    for (const CaseResult& result : results) {
        count.passed += result.outcome == Outcome::passed ? 1 : 0;
        count.failed += result.outcome == Outcome::failed ? 1 : 0;
        count.skipped += result.outcome == Outcome::skipped ? 1 : 0;
        if (result.ran()) {
            count.elsewhere += result.on_device() ? 0 : 1;
            ++count.places[place_text(result.backward)];
        }
    }
    return count;
}

void print_as_text(const std::vector<CaseResult>& results, const Tally& count, const CheckFlags& flags)
{
    const std::vector<std::pair<std::string, std::string>> columns{
        {"o", "o"}, {"lse", "LSE"}, {"dq", "dQ"}, {"dk", "dK"}, {"dv", "dV"}, {"dbias", "dbias"}, {"dsink", "dsink"}};
    Table table;
    std::vector<std::string> heading{"case", "dtype", "backend", "ran on"};
    for (const auto& [name, title] : columns) {
        heading.push_back(title);
    }
    heading.insert(heading.end(), {"time", "extra", "standard", "result"});
    table.add(heading);
    for (const CaseResult& result : results) {
        if (!result.ran()) {
            continue;
        }
        const Report &forward = result.forward.report, &backward = result.backward.report;
        std::vector<std::string> row{result.name, std::string(name_of(result.dtype)), implementation_text(backward),
                                     backward.ran_on};
        for (const auto& [name, title] : columns) {
            const Comparison* const found = result.find(name);
            row.push_back(found == nullptr ? ""
                                           : fmt::format("{}{}{}", error_text(found->error()),
                                                         found->error() > found->bound() ? ">"
                                                         : found->passed()               ? "/"
                                                                                         : "!",
                                                         error_text(found->bound())));
        }
        row.push_back(time_text(forward.seconds + backward.seconds));
        row.push_back(bytes_text(std::max(forward.extra_bytes, backward.extra_bytes)));
        row.push_back(bytes_text(std::max(forward.standard_bytes, backward.standard_bytes)));
        row.emplace_back(word_for(result.outcome));
        table.add(row);
    }
    fmt::print("{}", table.text());
    for (const CaseResult& result : results) {
        if (!result.ran()) {
            fmt::print("skipped {}: {}\n", result.name, result.reason);
        }
        for (const Comparison& comparison : result.comparisons) {
            if (!comparison.passed()) {
                fmt::print("{} {}: {}\n", result.name, comparison.name, comparison.verdict.failures());
            }
        }
    }
    if (flags.require_device && count.elsewhere > 0) {
        fmt::print("--require-device: {} of {} cases did not run on a device\n", count.elsewhere,
                   count.passed + count.failed);
    }
    fmt::print("{} case{} in {}: {} passed, {} failed, {} skipped", results.size(), results.size() == 1 ? "" : "s",
               name_of(results.front().dtype), count.passed, count.failed, count.skipped);
    for (const auto& [place, cases] : count.places) {
        fmt::print("; {}{}", count.places.size() > 1 ? fmt::format("{} ", cases) : "", place);
    }
    fmt::print("\n");
}

Json comparison_json(const Comparison& comparison)
{
    Json limits;
    for (const reference::Limit& limit : comparison.verdict.limits) {
        limits[limit.name] = {{"value", limit.value}, {"bound", limit.bound}};
    }
    return {{"error", comparison.error()},
            {"bound", comparison.bound()},
            {"passed", comparison.passed()},
            {"limits", limits}};
}

void print_as_json(const std::vector<CaseResult>& results, const Tally& count, const CheckFlags& flags, int status)
{
    Json json;
    json["command"] = "check";
    json["directory"] = flags.directory;
    json["dtype"] = name_of(results.front().dtype);
    json["cases"] = Json::array();
    for (const CaseResult& result : results) {
        Json item{{"name", result.name}, {"result", word_for(result.outcome)}};
        if (!result.ran()) {
            item["reason"] = result.reason;
        } else {
            for (const Comparison& comparison : result.comparisons) {
                item["comparisons"][comparison.name] = comparison_json(comparison);
            }
            item["forward"] = report_json(result.forward);
            item["backward"] = report_json(result.backward);
        }
        json["cases"].push_back(item);
    }
    json["passed"] = count.passed;
    json["failed"] = count.failed;
    json["skipped"] = count.skipped;
    json["not_on_a_device"] = count.elsewhere;
    json["device_required"] = flags.require_device;
    json["where"] = Json::array();
    for (const auto& [place, cases] : count.places) {
        json["where"].push_back({{"place", place}, {"cases", cases}});
    }
    json["status"] = status;
    json["build"] = build_json();
    print_json(json);
}

int run_check(const CheckFlags& flags, const Runner& runner)
{
    std::vector<CheckCase> cases;
    runner.together([&] { cases = chosen_cases(flags); });
    std::vector<CaseResult> results;
    {
        Progress progress("check");
        for (const CheckCase& item : cases) {
            progress.show(fmt::format("check: case {} of {}, {}", results.size() + 1, cases.size(), item.name));
            results.push_back(run_case(item, flags.run, runner));
        }
    }
    const Tally count = tally(results);
    if (count.skipped == results.size()) {
        throw Error(fmt::format("{}: nothing could be checked, since every case was skipped: {}", flags.directory,
                                results.front().reason));
    }
    const bool short_of = count.failed > 0 || (flags.require_device && count.elsewhere > 0);
    const int status = short_of ? status_falls_short : status_ok;
    if (flags.run.json) {
        print_as_json(results, count, flags, status);
    } else {
        print_as_text(results, count, flags);
    }
    return status;
}

} // namespace

void add_check_command(CLI::App& app, Command& chosen, const Runner& runner)
{
    CLI::App* const command = app.add_subcommand("check", "Forward and backward against expected tensors");
    command->footer(details);
    const auto flags = std::make_shared<CheckFlags>();
    command->add_option("DIR", flags->directory, "folder with cases.json and one folder for each case")->required();
    command->add_option("--case", flags->only, "only this case; may be repeated")->type_name("NAME")->take_all();
    command->add_flag("--require-device", flags->require_device, "exit with 1 when a case did not run on a GPU");
    add_run_options(*command, flags->run);
    command->callback([flags, runner, &chosen] { chosen = [flags, runner] { return run_check(*flags, runner); }; });
}

} // namespace flashomp::cli
