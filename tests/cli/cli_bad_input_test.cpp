// Every bad input: one sentence, exit status 2, nothing written.
#include "cli_support.hpp"

#include "npy.hpp"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace flashomp::cli_test {
namespace {

using BadInput = CliTest;

TEST_F(BadInput, NoCommandOrAnUnknownOne)
{
    expect_refused({}, "a command is needed");
    expect_refused({"sideways"}, "sideways");
}

TEST_F(BadInput, UnknownOption)
{
    expect_refused(small_problem("forward") + Arguments{"--out", out(), "--causality", "none"}, "--causality");
    expect_refused({"info", "--yaml"}, "--yaml");
    expect_refused({"check", cases(), "--softcap", "1"}, "--softcap");
}

TEST_F(BadInput, OptionWithoutItsValueOrGivenTwice)
{
    expect_refused(small_problem("forward") + Arguments{"--out"}, "--out");
    expect_refused(small_problem("forward"), "--out");
    expect_refused(small_problem("forward") + Arguments{"--out", out(), "--scale", "1", "--scale", "2"}, "--scale");
    expect_refused(small_problem("forward") + Arguments{"--out", ""}, "--out");
}

TEST_F(BadInput, ValuesThatAreNotAllowed)
{
    const std::vector<std::pair<std::string, std::string>> values{
        {"--causal", "yes"},         {"--causal", "bottom_right"}, {"--window", "5"},    {"--window", "5,"},
        {"--window", "5,6,7"},       {"--window", "1.5,2"},        {"--window", "-2,3"}, {"--scale", "one"},
        {"--scale", "nan"},          {"--scale", "1.0x"},          {"--scale", "inf"},   {"--dtype", "float64"},
        {"--dtype", "half"},         {"--backend", "openacc"},     {"--device", "gpu"},  {"--device", "-1"},
        {"--device", "99999999999"}, {"--machine", "tensor"},      {"--threads", "0"},   {"--threads", "-3"},
        {"--threads", "two"},        {"--layout", "sbhd"},         {"--seed", "-1"},     {"--offset", "1.5"},
        {"--softcap", "warm"},       {"--dropout", "half"},        {"--scale", "1e39"},  {"--scale", "1e-46"},
        {"--softcap", "1e39"},       {"--softcap", "1e-46"}};
    const Arguments problem = small_problem("forward");
    for (const auto& [option, value] : values) {
        expect_refused(problem + Arguments{"--out", out(), option, value}, option.substr(2));
    }
}

TEST_F(BadInput, CudaBackendOnTheHost)
{
    const Arguments wanted{"--backend", "cuda", "--device", "host"};
    expect_refused(small_problem("forward") + Arguments{"--out", out()} + wanted, "cuda");
    expect_refused(Arguments{"check", cases()} + wanted, "cuda");
}

TEST_F(BadInput, MissingTensors)
{
    expect_refused({"forward", "--out", out()}, "q was not given");
    expect_refused({"forward", "--q", tensor("q", {1, 5, 4, 8}), "--out", out()}, "k was not given");
    const Arguments problem = small_problem("forward");
    expect_refused(Arguments{"backward"} + Arguments(problem.begin() + 1, problem.end()) + Arguments{"--out", out()},
                   "do was not given");
    expect_refused(small_problem("backward") + Arguments{"--o", tensor("o", {1, 5, 4, 8}), "--out", out()}, "lse");
    expect_refused(small_problem("backward") + Arguments{"--lse", tensor("lse", {1, 4, 5}), "--out", out()}, "lse");
}

TEST_F(BadInput, MissingFile)
{
    expect_refused({"forward", "--q", path("absent.npy"), "--k", "k.npy", "--v", "v.npy", "--out", out()}, ".npy");
    expect_refused({"forward", "--in", path("absent.safetensors"), "--out", out()}, "absent.safetensors");
    expect_refused({"check", path("absent")}, "absent");
}

TEST_F(BadInput, TruncatedFile)
{
    const Arguments problem = small_problem("forward");
    const std::string whole = contents(path("k.npy"));
    for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{60}, whole.size() - 1}) {
        write_text(path("k.npy"), whole.substr(0, size));
        expect_refused(problem + Arguments{"--out", out()}, "k.npy");
    }
}

TEST_F(BadInput, WrongShapes)
{
    const Arguments problem = small_problem("forward") + Arguments{"--out", out()};
    const auto with = [&](const std::string& flag, const io::Shape& shape) {
        Arguments changed = problem;
        for (std::size_t i = 0; i + 1 < changed.size(); ++i) {
            if (changed[i] == flag) {
                changed[i + 1] = tensor("other", shape);
            }
        }
        return changed;
    };
    expect_refused(with("--k", {1, 7, 2, 9}), "head_dim");
    expect_refused(with("--k", {1, 7, 3, 8}), "heads");
    expect_refused(with("--k", {1, 6, 2, 8}), "v has shape");
    expect_refused(with("--k", {2, 7, 2, 8}), "batch");
    expect_refused(with("--q", {5, 4, 8}), "axes");
    expect_refused(with("--q", {8}), "axes");
    expect_refused(with("--v", {7, 8}), "axes");
    expect_refused(with("--q", {}), "q");
    expect_refused(small_problem("backward") +
                       Arguments{"--o", tensor("o", {1, 5, 4, 9}), "--lse", tensor("lse", {1, 4, 5}), "--out", out()},
                   "o is float32");
    expect_refused(small_problem("backward") +
                       Arguments{"--o", tensor("o", {1, 5, 4, 8}), "--lse", tensor("lse", {1, 5, 4}), "--out", out()},
                   "lse");
}

TEST_F(BadInput, HeadDimBeyondTheMost)
{
    const std::string big = tensor("big", {1, 3, 1, 600});
    expect_refused({"forward", "--q", big, "--k", big, "--v", big, "--out", out()}, "600");
    const std::string small = tensor("small", {1, 3, 1, 8});
    expect_refused({"forward", "--q", small, "--k", small, "--v", big, "--out", out()}, "600");
}

TEST_F(BadInput, HeadsThatDoNotDivide)
{
    const std::string q = tensor("q", {1, 3, 5, 8});
    const std::string k = tensor("k", {1, 3, 2, 8});
    expect_refused({"forward", "--q", q, "--k", k, "--v", k, "--out", out()}, "divisible");
}

TEST_F(BadInput, MixedOrUnsuitableDtypes)
{
    const std::string q = tensor("q", {1, 3, 2, 8});
    const std::string k = tensor("k", {1, 3, 2, 8}, DType::float16);
    const std::string integers = tensor("integers", {1, 3, 2, 8}, DType::int32);
    expect_refused({"forward", "--q", q, "--k", k, "--v", k, "--out", out()}, "float16");
    expect_refused({"forward", "--q", integers, "--k", q, "--v", q, "--out", out()}, "int32");
    expect_refused({"forward", "--q", integers, "--k", q, "--v", q, "--dtype", "float32", "--out", out()}, "int32");
}

TEST_F(BadInput, Float8WhereThereIsNone)
{
    const Arguments float8{"--dtype", "float8_e4m3", "--out", out()};
    expect_refused(small_problem("forward") + float8 + Arguments{"--device", "host"}, "q is float8_e4m3");
    expect_refused(small_problem("backward") + float8, "--dtype was 'float8_e4m3'");
    const std::string scale = tensor("scale", {4});
    expect_refused(small_problem("forward") + Arguments{"--q-scale", scale, "--out", out()}, "q_scale was given");
    expect_refused(small_problem("forward") + float8 + Arguments{"--q-scale", scale}, "q_scale was given");
}

TEST_F(BadInput, DeviceThatIsNotThere)
{
    const Arguments problem = small_problem("forward") + Arguments{"--out", out()};
    expect_refused(problem + Arguments{"--device", "4096"}, "4096");
    if (has_gpu()) {
        GTEST_SKIP() << "device 0 exists here";
    }
    expect_refused(problem + Arguments{"--device", "0"}, "device was 0");
    expect_refused({"check", cases(), "--device", "0"}, "device was 0");
}

/// An environment variable that the processes of one test see.
class Environment {
public:
    Environment(const char* name, const char* value) : name_(name)
    {
        const char* const before = std::getenv(name); // NOLINT(concurrency-mt-unsafe)
        before_ = before == nullptr ? std::nullopt : std::optional<std::string>(before);
        ::setenv(name, value, 1); // NOLINT(concurrency-mt-unsafe)
    }
    ~Environment()
    {
        if (before_) {
            ::setenv(name_, before_->c_str(), 1); // NOLINT(concurrency-mt-unsafe)
        } else {
            ::unsetenv(name_); // NOLINT(concurrency-mt-unsafe)
        }
    }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    const char* name_;
    std::optional<std::string> before_;
};

TEST_F(BadInput, MandatoryDeviceThatIsNotThere)
{
    if (has_gpu()) {
        GTEST_SKIP() << "there is a GPU here";
    }
    const Environment mandatory("OMP_TARGET_OFFLOAD", "MANDATORY");
    const Arguments problem = small_problem("forward") + Arguments{"--out", out()};
    expect_refused(problem, "OMP_TARGET_OFFLOAD demands a GPU");
    expect_refused(problem + Arguments{"--device", "auto", "--machine", "plain"}, "OMP_TARGET_OFFLOAD demands a GPU");
    expect_refused({"check", cases()}, "OMP_TARGET_OFFLOAD demands a GPU");
    // Whoever names the host, or what runs there only, gets it and is told.
    for (const Arguments& named : {Arguments{"--device", "host"}, Arguments{"--device", "host", "--machine", "plain"},
                                   Arguments{"--machine", "host"}, Arguments{"--backend", "reference"}}) {
        const Outcome outcome = run(problem + named);
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        EXPECT_NE((outcome.out + outcome.err).find("although OMP_TARGET_OFFLOAD is MANDATORY"), std::string::npos)
            << outcome.out << outcome.err;
    }
}

TEST_F(BadInput, PlacesThatCannotBeWritten)
{
    const Arguments problem = small_problem("forward");
    write_text(path("file"), "here already");
    expect_refused(problem + Arguments{"--out", path("file")}, "not a folder");
    expect_refused(problem + Arguments{"--out", path("file") / "deeper" / "folder"}, "not a folder");
    expect_refused(problem + Arguments{"--out", path("file") / "results.safetensors"}, "not a folder");
    expect_refused(problem + Arguments{"--out", "/proc/flashomp-results"}, "/proc/flashomp-results");
    fs::create_directories(path("folder.safetensors"));
    expect_refused(problem + Arguments{"--out", path("folder.safetensors")}, "folder.safetensors");
    fs::create_directories(path("busy") / "lse.npy"); // a folder where a result has to go
    expect_refused(problem + Arguments{"--out", path("busy")}, "lse.npy");
    EXPECT_FALSE(fs::exists(path("busy") / "o.npy"));
    EXPECT_EQ(contents(path("file")), "here already");
}

TEST_F(BadInput, FolderThatMayNotBeWritten)
{
    if (::geteuid() == 0) {
        GTEST_SKIP() << "root may write everywhere";
    }
    const Arguments problem = small_problem("forward");
    fs::create_directories(out());
    fs::permissions(out(), fs::perms::owner_read | fs::perms::owner_exec);
    expect_refused(problem + Arguments{"--out", out()}, "may not be written");
    fs::permissions(out(), fs::perms::owner_all);
}

TEST_F(BadInput, ResultsThatWouldOverwriteAnInput)
{
    const std::string o = tensor("o", {1, 5, 4, 8});
    const std::string before = contents(o);
    Arguments problem = small_problem("forward");
    problem[2] = o; // q is o.npy in the output folder
    expect_refused(problem + Arguments{"--out", path("")}, "overwrite");
    EXPECT_EQ(contents(o), before);
}

TEST_F(BadInput, EarlierResultsStayWhenARunFails)
{
    write_text(out() / "o.npy", "the results of an earlier run");
    write_text(out() / "notes.txt", "keep");
    expect_refused(small_problem("forward") + Arguments{"--out", out(), "--scale", "nan"}, "scale");
    fs::create_directories(out() / "lse.npy");
    expect_refused(small_problem("forward") + Arguments{"--out", out()}, "lse.npy");
    EXPECT_EQ(contents(out() / "o.npy"), "the results of an earlier run");
}

TEST_F(BadInput, FullOutputStream)
{
    if (!fs::exists("/dev/full")) {
        GTEST_SKIP() << "no /dev/full here";
    }
    const std::string command = std::string(FLASHOMP_CLI_PATH) + " info > /dev/full 2> " + path("err").string();
    EXPECT_NE(std::system(command.c_str()), 0); // NOLINT(cert-env33-c,concurrency-mt-unsafe)
    EXPECT_NE(contents(path("err")).find("standard output"), std::string::npos);
}

} // namespace
} // namespace flashomp::cli_test
