// A line on the terminal that shows that something long is going on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace flashomp::cli {

/// Shows "<label> … 3 s" on stderr while it lives, from 1.5 seconds on and only on a terminal. Leaves no trace.
class Progress {
public:
    explicit Progress(std::string label);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Changes what is shown.
    void show(const std::string& label);

    /// Prints to stdout at once, with the line out of the way.
    void print(const std::string& text);

private:
    void run();
    void hide(); ///< with the lock held

    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string label_;
    bool done_ = false;
    bool is_shown_ = false;
    std::thread thread_; ///< not started when stderr is no terminal
};

} // namespace flashomp::cli
