#include "traffic_run.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

namespace fs = std::filesystem;

/// A folder that goes when this object goes.
class ScratchFolder {
public:
    ScratchFolder()
    {
        std::string name = (fs::temp_directory_path() / "flashomp-traffic-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) {
            throw RunFailure(fmt::format("{} cannot be made; the folder for temporary files must be writable.", name));
        }
        path_ = name;
    }
    ~ScratchFolder()
    {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;

    [[nodiscard]] std::string file(const char* name) const { return (path_ / name).string(); }

private:
    fs::path path_;
};

std::string contents(const std::string& file)
{
    std::ifstream stream(file);
    std::ostringstream text;
    text << stream.rdbuf();
    return text.str();
}

/// The full name of a program on PATH or in one of `folders`; empty when there is none.
std::string find_program(const std::string& name, const std::vector<std::string>& folders)
{
    const char* const path = std::getenv("PATH"); // NOLINT(concurrency-mt-unsafe)
    std::istringstream parts(path != nullptr ? path : "");
    std::vector<std::string> all;
    for (std::string part; std::getline(parts, part, ':');) {
        all.push_back(part);
    }
    all.insert(all.end(), folders.begin(), folders.end());
    for (const std::string& folder : all) {
        const fs::path file = fs::path(folder) / name;
        if (::access(file.c_str(), X_OK) == 0) {
            return file.string();
        }
    }
    return {};
}

/// Runs a program with what it prints going to `log`. Throws RunFailure with its last words when it fails.
void run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                 const std::string& log)
{
    std::vector<std::string> words = arguments;
    std::vector<std::string> settings = environment;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string text = *variable;
        const std::string key = text.substr(0, text.find('=') + 1);
        const auto is_set = [&](const std::string& setting) { return setting.rfind(key, 0) == 0; };
        if (std::none_of(environment.begin(), environment.end(), is_set)) {
            settings.push_back(text);
        }
    }
    const auto pointers = [](std::vector<std::string>& texts) {
        std::vector<char*> all;
        all.reserve(texts.size() + 1);
        for (std::string& text : texts) {
            all.push_back(text.data());
        }
        all.push_back(nullptr);
        return all;
    };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    pid_t child = 0;
    const int failed =
        ::posix_spawn(&child, words[0].c_str(), &actions, nullptr, pointers(words).data(), pointers(settings).data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) {
        throw RunFailure(fmt::format("{} cannot be started; it must be an executable program.", words[0]));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        std::istringstream lines(contents(log));
        std::string last;
        for (std::string line; std::getline(lines, line);) {
            if (line.find("ERROR") != std::string::npos || line.rfind("flashomp:", 0) == 0) {
                last = line;
            }
        }
        throw RunFailure(fmt::format("{} failed: {}.", words[0], last.empty() ? "it does not say why" : last));
    }
}

/// The fields of a line of CSV, quotes taken off.
std::vector<std::string> fields_of(const std::string& line)
{
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (const char letter : line) {
        if (letter == '"') {
            quoted = !quoted;
        } else if (letter == ',' && !quoted) {
            fields.emplace_back();
        } else {
            fields.back() += letter;
        }
    }
    return fields;
}

double bytes_in(const std::string& unit)
{
    static const std::map<std::string, double> sizes{
        {"byte", 1.0}, {"Kbyte", 1e3}, {"Mbyte", 1e6}, {"Gbyte", 1e9}, {"Tbyte", 1e12}};
    const auto found = sizes.find(unit);
    if (found == sizes.end()) {
        throw RunFailure(fmt::format("ncu's unit was '{}'; allowed are byte, Kbyte, Mbyte, Gbyte, Tbyte.", unit));
    }
    return found->second;
}

/// The cache that cachegrind is to model: a core's L2, where the host machine's tiles are meant to stay.
struct Cache {
    std::int64_t size = 0, ways = 0, line = 0;
};

Cache level_2()
{
    const Cache cache{::sysconf(_SC_LEVEL2_CACHE_SIZE), ::sysconf(_SC_LEVEL2_CACHE_ASSOC),
                      ::sysconf(_SC_LEVEL2_CACHE_LINESIZE)};
    constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
    return cache.size > 0 && cache.ways > 0 && cache.line > 0 ? cache : Cache{mebibyte, 16, 64};
}

MeasuredTraffic difference(const MeasuredTraffic& with, const MeasuredTraffic& without)
{
    return {with.read - without.read, with.written - without.written, with.tool};
}

MeasuredTraffic with_ncu(const std::string& ncu, std::vector<std::string> command, const ScratchFolder& folder)
{
    const std::string csv = folder.file("ncu.csv");
    std::vector<std::string> arguments{ncu,
                                       "--metrics",
                                       "dram__bytes_read.sum,dram__bytes_write.sum",
                                       "--clock-control",
                                       "none",
                                       "--csv",
                                       "--print-units",
                                       "base",
                                       "--force-overwrite",
                                       "--log-file",
                                       csv};
    arguments.insert(arguments.end(), command.begin(), command.end());
    run_program(arguments, {}, folder.file("log"));
    return read_ncu_csv(contents(csv) + contents(folder.file("log"))); // its warnings may be in either
}

MeasuredTraffic with_cachegrind(const std::string& valgrind, const std::vector<std::string>& command,
                                const ScratchFolder& folder)
{
    const Cache cache = level_2();
    const std::string out = folder.file("cachegrind.out");
    std::vector<std::string> arguments{valgrind, "--tool=cachegrind", "--cache-sim=yes",
                                       fmt::format("--LL={},{},{}", cache.size, cache.ways, cache.line),
                                       "--cachegrind-out-file=" + out};
    arguments.insert(arguments.end(), command.begin(), command.end());
    // Its simulated x86-64 ends at AVX2, and one core's cache is what is modelled.
#if defined(__x86_64__)
    const std::string isa = "avx2";
#else
    const std::string isa = "baseline";
#endif
    run_program(arguments, {"OMP_NUM_THREADS=1", "FLASHOMP_HOST_ISA=" + isa}, folder.file("log"));
    MeasuredTraffic traffic = read_cachegrind(contents(out), cache.line);
    traffic.tool = fmt::format("cachegrind, misses of a modelled {} KiB L2 cache of one core, one thread, {}",
                               cache.size / 1024, isa);
    return traffic;
}

} // namespace

MeasuredTraffic read_ncu_csv(const std::string& text)
{
    std::istringstream lines(text);
    std::map<std::string, std::size_t> columns;
    MeasuredTraffic traffic;
    bool found = false;
    for (std::string line; std::getline(lines, line);) {
        const std::vector<std::string> fields = fields_of(line);
        if (columns.empty()) {
            for (std::size_t i = 0; fields.front() == "ID" && i < fields.size(); ++i) {
                columns[fields[i]] = i;
            }
            continue;
        }
        if (fields.size() < columns.size()) {
            continue;
        }
        const std::string& metric = fields[columns.at("Metric Name")];
        std::string number = fields[columns.at("Metric Value")];
        std::erase(number, ',');
        const auto bytes = [&] { return std::stod(number) * bytes_in(fields[columns.at("Metric Unit")]); };
        if (metric == "dram__bytes_read.sum") {
            traffic.read += bytes();
            found = true;
        } else if (metric == "dram__bytes_write.sum") {
            traffic.written += bytes();
            found = true;
        }
    }
    if (!found && text.find("No kernels were profiled") == std::string::npos) {
        throw RunFailure("ncu counted no kernels; it must be allowed to read the GPU's counters.");
    }
    traffic.tool = "ncu, device memory, all kernels of the call, clocks as they are";
    return traffic;
}

MeasuredTraffic read_cachegrind(const std::string& text, std::int64_t line_bytes)
{
    std::istringstream lines(text);
    std::vector<std::string> events;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string first;
        words >> first;
        if (first == "events:") {
            for (std::string event; words >> event;) {
                events.push_back(event);
            }
        } else if (first == "summary:") {
            std::map<std::string, double> totals;
            for (const std::string& event : events) {
                words >> totals[event];
            }
            if (words && totals.contains("DLmr") && totals.contains("DLmw")) {
                const auto size = static_cast<double>(line_bytes);
                return {(totals["DLmr"] + totals["DLmw"]) * size, totals["DLmw"] * size, "cachegrind"};
            }
        }
    }
    throw RunFailure("cachegrind counted nothing; its output must have the events DLmr and DLmw.");
}

MeasuredTraffic measure_traffic(const std::vector<std::string>& command, bool on_device)
{
    const std::string program = on_device ? find_program("ncu", {"/usr/local/cuda/bin", "/opt/nvidia/nsight-compute"})
                                          : find_program("valgrind", {});
    if (program.empty()) {
        throw RunFailure(on_device ? "--measure-traffic needs ncu (NVIDIA Nsight Compute) on PATH, which is not there."
                                   : "--measure-traffic on the host needs valgrind on PATH, which is not there.");
    }
    const ScratchFolder folder;
    std::array<MeasuredTraffic, 2> counted;
    for (std::size_t calls = 0; calls < counted.size(); ++calls) {
        std::vector<std::string> arguments = command;
        arguments.insert(arguments.end(), {"--only-calls", std::to_string(calls)});
        counted.at(calls) =
            on_device ? with_ncu(program, arguments, folder) : with_cachegrind(program, arguments, folder);
    }
    if (counted[1].read + counted[1].written == 0) {
        throw RunFailure(
            fmt::format("{} counted no kernel of the call; it must see those of {}.", program, command.front()));
    }
    return difference(counted[1], counted[0]);
}

} // namespace flashomp::bench
