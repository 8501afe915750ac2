#include "progress.hpp"

#include "report.hpp"

#include "printable.hpp"

#include <cstddef>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace flashomp::cli {

namespace {

constexpr auto patience = std::chrono::milliseconds(1500);
constexpr auto refresh = std::chrono::milliseconds(250);
constexpr std::size_t longest_label = 200;
constexpr const char* clear_line = "\r\x1b[K";

} // namespace

Progress::Progress(std::string label) : label_(std::move(label))
{
    if (::isatty(STDERR_FILENO) == 1) {
        thread_ = std::thread([this] { run(); });
    }
}

Progress::~Progress()
{
    {
        const std::lock_guard lock(mutex_);
        done_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
        thread_.join();
    }
}

void Progress::show(const std::string& label)
{
    const std::lock_guard lock(mutex_);
    label_ = printable(label, longest_label);
}

void Progress::print(const std::string& text)
{
    const std::lock_guard lock(mutex_);
    hide();
    fmt::print("{}", text);
    std::fflush(stdout);
}

void Progress::hide()
{
    if (std::exchange(is_shown_, false)) {
        fmt::print(stderr, "{}", clear_line);
        std::fflush(stderr);
    }
}

void Progress::run()
{
    std::unique_lock lock(mutex_);
    auto next = start_ + patience;
    while (!changed_.wait_until(lock, next, [this] { return done_; })) {
        const auto seconds =
            std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start_).count();
        fmt::print(stderr, "{}{}: {} ... {} s", clear_line, program_name(), label_, seconds);
        std::fflush(stderr);
        is_shown_ = true;
        next = std::chrono::steady_clock::now() + refresh;
    }
    hide();
}

} // namespace flashomp::cli
