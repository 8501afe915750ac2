// Runs the built command as a user would: a process with arguments, two streams and an exit status.
#pragma once

#include "host_tensor.hpp"

#include "flashomp/tensor.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flashomp::cli_test {

namespace fs = std::filesystem;

/// What a finished process left behind.
struct Outcome {
    int status = -1; ///< exit status; -1 when a signal ended it
    std::string out, err;
};

using Arguments = std::vector<std::string>;

[[nodiscard]] inline fs::path cases()
{
    return FLASHOMP_CASES;
}

[[nodiscard]] std::string contents(const fs::path& file);

void write_text(const fs::path& file, const std::string& text);

/// Every file below a folder and what it holds; empty when there is no such folder.
[[nodiscard]] std::map<std::string, std::string> snapshot(const fs::path& folder);

/// Whether `flashomp info` finds a GPU.
[[nodiscard]] bool has_gpu();

/// Pseudo-random values of about unit size, the same for the same seed; converted to `dtype` when written.
[[nodiscard]] io::HostTensor random_tensor(const io::Shape& shape, unsigned seed);

/// A fresh folder for each test, with small tensors in it.
class CliTest : public testing::Test {
protected:
    CliTest();
    ~CliTest() override;

    [[nodiscard]] fs::path path(const std::string& name) const { return folder_ / name; }
    [[nodiscard]] fs::path out() const { return path("out"); }
    [[nodiscard]] static const char* tool();

    /// Runs flashomp with stdin closed.
    [[nodiscard]] Outcome run(const Arguments& arguments) const;

    /// Runs a line of shell, in which "$0" is flashomp.
    [[nodiscard]] Outcome run_shell(const std::string& line) const;

    /// Runs and expects success.
    Outcome succeed(const Arguments& arguments) const;

    /// The command with every input that a shipped case has.
    [[nodiscard]] static Arguments case_files(const std::string& command, const std::string& name);

    /// max |a - b| over two files, of which the first may hold bfloat16; equal infinities do not differ.
    [[nodiscard]] static double difference(const fs::path& file, const fs::path& expected);

    /// Writes a random tensor and returns its path.
    std::string tensor(const std::string& name, const io::Shape& shape, DType dtype = DType::float32) const;

    /// Options that name q, k, v (and do) of a small problem that works: [1, 5, 4, 8] and [1, 7, 2, 8].
    [[nodiscard]] Arguments small_problem(const std::string& command) const;

    /// Status 2, one sentence on stderr that holds `words`, nothing on stdout, and the output folder as it was.
    void expect_refused(const Arguments& arguments, const std::string& words) const;

private:
    fs::path folder_;
};

/// Both lists, one after the other.
[[nodiscard]] Arguments operator+(Arguments first, const Arguments& second);

} // namespace flashomp::cli_test
