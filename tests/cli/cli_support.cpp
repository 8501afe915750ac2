#include "cli_support.hpp"

#include "accuracy.hpp"
#include "npy.hpp"
#include "option_list.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace flashomp::cli_test {

namespace {

/// Runs a program with its streams in files.
int run_process(const Arguments& arguments, const fs::path& out, const fs::path& err)
{
    std::vector<std::string> words = arguments;
    std::vector<char*> argv;
    argv.reserve(words.size() + 1);
    for (std::string& word : words) {
        argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    const std::string out_name = out.string();
    const std::string err_name = err.string();
    const pid_t child = ::fork();
    if (child == 0) {
        const int none = ::open("/dev/null", O_RDONLY);
        const int out_file = ::open(out_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        const int err_file = ::open(err_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ::dup2(none, STDIN_FILENO);
        ::dup2(out_file, STDOUT_FILENO);
        ::dup2(err_file, STDERR_FILENO);
        ::execv(argv.front(), argv.data());
        ::_exit(127);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) {
        throw std::runtime_error("cannot run " + arguments.front());
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// A folder that no other test uses.
fs::path new_folder()
{
    std::string name = (fs::temp_directory_path() / "flashomp-cli-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
        throw std::runtime_error("cannot make " + name);
    }
    return name;
}

Outcome run_in(const fs::path& folder, const Arguments& words)
{
    const fs::path out = folder / ".stdout";
    const fs::path err = folder / ".stderr";
    Outcome outcome;
    outcome.status = run_process(words, out, err);
    outcome.out = contents(out);
    outcome.err = contents(err);
    fs::remove(out);
    fs::remove(err);
    return outcome;
}

} // namespace

Arguments operator+(Arguments first, const Arguments& second)
{
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

std::string contents(const fs::path& file)
{
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write_text(const fs::path& file, const std::string& text)
{
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
}

std::map<std::string, std::string> snapshot(const fs::path& folder)
{
    std::map<std::string, std::string> files;
    if (fs::exists(folder)) {
        for (const auto& entry : fs::recursive_directory_iterator(folder)) {
            files[entry.path().string()] = entry.is_regular_file() ? contents(entry.path()) : "";
        }
    }
    return files;
}

bool has_gpu()
{
    static const bool found = [] {
        const fs::path folder = new_folder();
        const Outcome info = run_in(folder, {FLASHOMP_CLI_PATH, "info", "--json"});
        fs::remove_all(folder);
        return !nlohmann::json::parse(info.out).at("devices").empty();
    }();
    return found;
}

io::HostTensor random_tensor(const io::Shape& shape, unsigned seed)
{
    io::HostTensor tensor(DType::float32, shape);
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1.5F, 1.5F);
    auto* const values = static_cast<float*>(tensor.data());
    std::generate(values, values + tensor.elements(), [&] { return uniform(generator); });
    return tensor;
}

CliTest::CliTest() : folder_(new_folder()) {}

CliTest::~CliTest()
{
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
}

Outcome CliTest::run(const Arguments& arguments) const
{
    return run_in(folder_, Arguments{tool()} + arguments);
}

Outcome CliTest::run_shell(const std::string& line) const
{
    return run_in(folder_, {"/bin/sh", "-c", line, tool()});
}

const char* CliTest::tool()
{
    return FLASHOMP_CLI_PATH;
}

Outcome CliTest::succeed(const Arguments& arguments) const
{
    Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    return outcome;
}

Arguments CliTest::case_files(const std::string& command, const std::string& name)
{
    Arguments arguments{command};
    std::map<std::string, std::string> flags{{"q", "--q"}, {"k", "--k"}, {"v", "--v"}, {"do", "--do"}};
    for (const TensorOption& option : tensor_options) {
        flags.emplace(option.name, option.flag);
    }
    for (const auto& [tensor, flag] : flags) {
        const fs::path file = cases() / name / (tensor + ".npy");
        if (fs::exists(file) && (command == "backward" || tensor != "do")) {
            arguments = arguments + Arguments{flag, file};
        }
    }
    return arguments;
}

double CliTest::difference(const fs::path& file, const fs::path& expected)
{
    const io::HostTensor a = io::read_npy(file, {.u2_is_bfloat16 = true});
    const io::HostTensor b = io::read_npy(expected);
    EXPECT_EQ(a.shape(), b.shape()) << file;
    return reference::max_error(io::doubles(a), io::doubles(b));
}

std::string CliTest::tensor(const std::string& name, const io::Shape& shape, DType dtype) const
{
    unsigned seed = 0;
    for (const char letter : name) {
        seed = seed * 31 + static_cast<unsigned char>(letter);
    }
    const io::HostTensor values = random_tensor(shape, seed);
    const fs::path file = path(name + ".npy");
    if (dtype == DType::int32 || dtype == DType::boolean) {
        const io::HostTensor zeros(dtype, shape);
        io::write_npy(file, zeros.view());
    } else {
        const io::HostTensor converted = io::converted(values, dtype);
        io::write_npy(file, converted.view());
    }
    return file.string();
}

Arguments CliTest::small_problem(const std::string& command) const
{
    Arguments arguments{
        command, "--q", tensor("q", {1, 5, 4, 8}), "--k", tensor("k", {1, 7, 2, 8}), "--v", tensor("v", {1, 7, 2, 8})};
    if (command == "backward") {
        arguments = arguments + Arguments{"--do", tensor("do", {1, 5, 4, 8})};
    }
    return arguments;
}

void CliTest::expect_refused(const Arguments& arguments, const std::string& words) const
{
    std::string line = "flashomp";
    for (const std::string& argument : arguments) {
        line += " " + argument;
    }
    SCOPED_TRACE(line);
    const auto before = snapshot(out());
    const bool existed = fs::exists(out());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.rfind("flashomp: ", 0), 0U) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    EXPECT_GE(outcome.err.size(), 2U);
    EXPECT_LE(outcome.err.size(), 1000U) << outcome.err.substr(0, 200) << "...";
    EXPECT_TRUE(std::none_of(outcome.err.begin(), outcome.err.end() - 1, [](char c) { return c >= 0 && c < ' '; }))
        << outcome.err;
    EXPECT_EQ(outcome.err.substr(outcome.err.size() - std::min<std::size_t>(2, outcome.err.size())), ".\n");
    EXPECT_EQ(fs::exists(out()), existed);
    EXPECT_EQ(snapshot(out()), before);
}

} // namespace flashomp::cli_test
