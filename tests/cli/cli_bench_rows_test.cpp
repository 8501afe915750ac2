// Rows of `flashomp bench` come when they are there, not at the end.
#include "cli_support.hpp"

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace flashomp::cli_test {
namespace {

using CliBenchRows = CliTest;

TEST_F(CliBenchRows, TheFirstIsThereBeforeTheLast)
{
    const fs::path shown = path("shown");
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        ::dup2(::open(shown.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
        // The second shape takes seconds, and is not waited for.
        ::execl(tool(), tool(), "bench", "--device", "host", "--direction", "forward", "--shape", "b1_h1_n32_d8",
                "--shape", "b1_h32_n4096_d128", "--repetitions", "100", "--min-time", "0", "--time-limit", "1000",
                nullptr);
        ::_exit(127);
    }
    std::string text;
    bool is_running = true;
    for (int tries = 0; tries < 6000 && is_running && text.find("\nforward") == std::string::npos; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        is_running = ::waitpid(child, nullptr, WNOHANG) == 0;
        text = contents(shown);
    }
    EXPECT_TRUE(is_running) << text;
    EXPECT_NE(text.find("\nforward   b1_h1_n32_d8 "), std::string::npos) << text;
    EXPECT_EQ(text.find("\nforward   b1_h32_n4096_d128"), std::string::npos) << text;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
}

} // namespace
} // namespace flashomp::cli_test
