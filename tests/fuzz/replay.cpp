// Runs one harness over a folder of inputs and a number of random changes of them, without libFuzzer: what CTest runs.
// An input that crashes, breaks a property or takes too long is saved as a file, which the program replays by name.
#include "mutate.hpp"
#include "property.hpp"
#include "support/sanitizers.hpp"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#if FLASHOMP_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

FuzzFunction FLASHOMP_FUZZ_FUNCTION;

namespace flashomp::fuzz {
namespace {

namespace fs = std::filesystem;

// Signal handlers see no more than this.
const Bytes* running_input = nullptr;
const char* const saved_name = "fuzz-failure-" FLASHOMP_FUZZ_NAME;

/// Only calls that a signal handler may make.
void save_input()
{
    if (running_input == nullptr) {
        return;
    }
    const int file = ::open(saved_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); // NOLINT(*-vararg)
    const std::uint8_t* next = running_input->data();
    for (std::size_t left = running_input->size(); file >= 0 && left > 0;) {
        const ::ssize_t written = ::write(file, next, left);
        if (written <= 0) {
            break;
        }
        next += written;
        left -= static_cast<std::size_t>(written);
    }
    constexpr std::string_view said =
        "fuzz: the input is saved as fuzz-failure-" FLASHOMP_FUZZ_NAME " in the working directory.\n";
    static_cast<void>(!::write(STDERR_FILENO, said.data(), said.size()));
}

extern "C" void on_signal(int signal)
{
    if (signal == SIGPROF) {
        constexpr std::string_view said = "fuzz: violated: one input takes bounded time.\n";
        static_cast<void>(!::write(STDERR_FILENO, said.data(), said.size()));
    }
    save_input();
    static_cast<void>(std::signal(signal, SIG_DFL));
    static_cast<void>(std::raise(signal));
}

void watch_for_failures()
{
    constexpr rlim_t most_memory = rlim_t{4} << 30;
    static_cast<void>(std::signal(SIGPROF, on_signal));
#if FLASHOMP_ADDRESS_SANITIZER // the sanitizer reports crashes itself, and its shadow memory has no limit
    static_cast<void>(most_memory);
    __sanitizer_set_death_callback(save_input);
    static_cast<void>(std::signal(SIGABRT, on_signal));
#else
    const ::rlimit limit{most_memory, most_memory};
    static_cast<void>(::setrlimit(RLIMIT_AS, &limit));
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        static_cast<void>(std::signal(signal, on_signal));
    }
#endif
}

/// Seconds of processor time, of all threads, that one input may take: other work on the machine does not count.
void allow(long seconds)
{
    const ::itimerval limit{{0, 0}, {seconds, 0}};
    static_cast<void>(::setitimer(ITIMER_PROF, &limit, nullptr));
}

void run(const Bytes& input, long seconds)
{
    running_input = &input;
    allow(seconds);
    FLASHOMP_FUZZ_FUNCTION(input.data(), input.size());
    allow(0);
    running_input = nullptr;
}

Bytes contents(const fs::path& file)
{
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

struct Settings {
    std::uint64_t seed = 1;
    std::uint64_t mutations = 0;
    long seconds = 10;
    std::vector<fs::path> places; ///< files, and folders of files
};

Settings settings_of(const std::vector<std::string>& words)
{
    Settings settings;
    for (const std::string& word : words) {
        const auto number = [&](std::string_view flag, auto& value) {
            const bool is_it = word.starts_with(flag);
            if (is_it) {
                std::from_chars(word.data() + flag.size(), word.data() + word.size(), value);
            }
            return is_it;
        };
        if (!number("--seed=", settings.seed) && !number("--mutations=", settings.mutations) &&
            !number("--seconds=", settings.seconds)) {
            settings.places.emplace_back(word);
        }
    }
    return settings;
}

int replay(const Settings& settings)
{
    std::vector<fs::path> files;
    for (const fs::path& place : settings.places) {
        if (!fs::is_directory(place)) {
            files.push_back(place);
            continue;
        }
        for (const fs::directory_entry& entry : fs::directory_iterator(place)) {
            files.push_back(entry.path());
        }
    }
    std::sort(files.begin(), files.end()); // so that a seed means the same on every file system
    std::vector<Bytes> corpus;
    for (const fs::path& file : files) {
        corpus.push_back(contents(file));
        run(corpus.back(), settings.seconds);
    }
    if (corpus.empty()) {
        std::fprintf(stderr, "fuzz: no input; usage: %s [--mutations=N] [--seed=N] [--seconds=N] FILE|FOLDER...\n",
                     FLASHOMP_FUZZ_NAME);
        return 2;
    }
    std::mt19937_64 random(settings.seed);
    for (std::uint64_t i = 0; i < settings.mutations; ++i) {
        run(mutated(corpus, random), settings.seconds);
    }
    std::printf("%s: %zu inputs and %llu mutations held\n", FLASHOMP_FUZZ_NAME, corpus.size(),
                static_cast<unsigned long long>(settings.mutations));
    return 0;
}

} // namespace
} // namespace flashomp::fuzz

int main(int argc, char** argv)
{
    flashomp::fuzz::watch_for_failures();
    return flashomp::fuzz::replay(flashomp::fuzz::settings_of({argv + 1, argv + argc}));
}
