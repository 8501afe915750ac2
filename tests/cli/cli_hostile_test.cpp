// Hostile and unlucky use: tensors without axes, names that steer terminals, endless input, full disks.
#include "cli_support.hpp"

#include "npy.hpp"
#include "safetensors.hpp"
#include "support/sanitizers.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace flashomp::cli_test {
namespace {

class Hostile : public CliTest {
protected:
    static bool steers_a_terminal(const std::string& text)
    {
        return std::any_of(text.begin(), text.end(),
                           [](char c) { return (c >= 0 && c < ' ' && c != '\n') || c == '\x7f'; }) ||
               text.find("\xc2\x9b") != std::string::npos;
    }
};

TEST_F(Hostile, TensorsWithoutAxesAreNotTensorsThatWereNotGiven)
{
    const std::vector<std::pair<std::string, std::string>> tensors{{"alibi_slopes", "--alibi"},
                                                                   {"bias", "--bias"},
                                                                   {"key_padding_mask", "--key-padding-mask"},
                                                                   {"cu_seqlens_q", "--cu-seqlens-q"},
                                                                   {"cu_seqlens_k", "--cu-seqlens-k"},
                                                                   {"sink", "--sink"},
                                                                   {"q_scale", "--q-scale"},
                                                                   {"k_scale", "--k-scale"},
                                                                   {"v_scale", "--v-scale"},
                                                                   {"o", "--o"},
                                                                   {"lse", "--lse"}};
    const Arguments problem = small_problem("backward") + Arguments{"--out", out()};
    for (const DType dtype :
         {DType::float16, DType::float32, DType::float64, DType::int32, DType::int64, DType::boolean}) {
        const io::HostTensor number(dtype, {});
        io::write_npy(path("number.npy"), number.view());
        for (const auto& [name, flag] : tensors) {
            const std::string says = ": holds " + name + " as one number without axes (shape ()); needed are ";
            expect_refused(problem + Arguments{flag, path("number.npy")}, "number.npy" + says);
            io::write_safetensors(path("number.safetensors"), {{name, number.view()}});
            expect_refused(problem + Arguments{"--in", path("number.safetensors")}, "number.safetensors" + says);
        }
    }
    expect_refused({"forward", "--q", path("number.npy"), "--out", out()}, "holds q as one number");
}

TEST_F(Hostile, NamesInFilesDoNotSteerTheTerminal)
{
    const std::string name = "\x1b]0;owned\x07\xc2\x9b"
                             "2J";
    const io::HostTensor q = random_tensor({1, 5, 4, 8}, 1);
    io::write_safetensors(path("q.safetensors"), {{"q", q.view()}, {"k", q.view()}, {"v", q.view()}, {name, q.view()}});
    const Outcome outcome = succeed({"forward", "--in", path("q.safetensors"), "--out", out()});
    EXPECT_NE(outcome.err.find("also holds ?]0;owned??2J, which"), std::string::npos) << outcome.err;
    EXPECT_FALSE(steers_a_terminal(outcome.err + outcome.out));
    // Names of files and values of options come from scripts, and so from others, too.
    expect_refused({"forward", "--in", path("a\x1b[2Jb.safetensors"), "--out", out()},
                   "a?[2Jb.safetensors: there is no");
    expect_refused(small_problem("forward") + Arguments{"--scale", "\x1b[2J", "--out", out()}, "'?[2J'");
    expect_refused({"bench", "--shape", "\x1b[2J"}, "'?[2J'");
    expect_refused({"\x1b[2J"}, "'?[2J'");
}

TEST_F(Hostile, SentencesAreNotAsLongAsHostileFiles)
{
    std::map<std::string, ConstTensorView> tensors;
    const io::HostTensor small(DType::boolean, {1});
    const io::HostTensor q = random_tensor({1, 5, 4, 8}, 1);
    for (int i = 0; i < 2000; ++i) {
        tensors.emplace(std::string(500, 'n') + std::to_string(i), small.view());
    }
    for (const char* const name : {"q", "k", "v"}) {
        tensors.emplace(name, q.view());
    }
    io::write_safetensors(path("many.safetensors"), tensors);
    const Outcome outcome = succeed({"forward", "--in", path("many.safetensors"), "--out", out()});
    EXPECT_NE(outcome.err.find(" and 1992 more, which"), std::string::npos) << outcome.err.substr(0, 500);
    EXPECT_LT(outcome.err.size(), 1000U);
    const std::string words(100'000, 'w');
    expect_refused(small_problem("forward") + Arguments{"--causal", words, "--out", out()}, "www…'");
    expect_refused({words}, "www…'");
    expect_refused({"bench", "--shape", words}, "www…'");
    write_text(path("shapes.txt"), words);
    expect_refused({"bench", "--shapes", path("shapes.txt")}, "www…'");
}

TEST_F(Hostile, EndlessInputIsNotReadToItsEnd)
{
    expect_refused({"bench", "--shapes", "/dev/zero"}, "/dev/zero holds more than 1048576 bytes");
    const Outcome outcome = run_shell(R"("$0" bench --shapes - --device host </dev/zero)");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_EQ(outcome.err, "flashomp: standard input has a line of more than 1000 bytes; a shape is shorter.\n");
}

TEST_F(Hostile, ALargeBatchOfNothingTakesNoMemoryAndNoTime)
{
#if FLASHOMP_ADDRESS_SANITIZER // AddressSanitizer reserves more than any limit
    const std::string limits = "ulimit -t 60; ";
#else
    const std::string limits = "ulimit -t 60; ulimit -v 6000000; ";
#endif
    const io::HostTensor empty(DType::float32, {std::int64_t{1} << 30, 0, 1, 64}); // a file of 128 bytes
    io::write_npy(path("empty.npy"), empty.view());
    for (const char* const backend : {"openmp", "reference"}) {
        // Without the limits: 10.5 GB and 103 s, for a number in the report.
        const Outcome outcome = run_shell(limits + R"(cd ")" + path("").string() +
                                          R"(" && "$0" forward --q empty.npy --k empty.npy --v empty.npy --backend )" +
                                          backend + " --device host --out out");
        EXPECT_EQ(outcome.status, 0) << outcome.err;
        EXPECT_NE(outcome.out.find("(standard attention: 0 B)"), std::string::npos) << outcome.out;
    }
    const Outcome plan = run_shell(limits + R"("$0" plan --shape b1073741824_h1_n1_d1 --device host)");
    EXPECT_EQ(plan.status, 0) << plan.err;
}

TEST_F(Hostile, FullDisksAndClosedStreams)
{
    for (const char* const words :
         {"--help", "--version", "info", "info --json", "bench --help", "bench quick --list"}) {
        const Outcome outcome = run_shell(std::string(R"("$0" )") + words + " >/dev/full");
        EXPECT_EQ(outcome.status, 2) << words;
        EXPECT_EQ(outcome.err,
                  "flashomp: the results cannot be printed to standard output; it must be open and have room for them. "
                  "Files that were asked for are complete.\n")
            << words;
    }
    EXPECT_EQ(run_shell(R"("$0" sideways 2>/dev/full)").status, 2);
    EXPECT_EQ(run_shell(R"("$0" sideways 2>&-)").status, 2);
    EXPECT_EQ(run_shell(R"("$0" info >&-)").status, 2);
}

TEST_F(Hostile, TheLimitOnFileSizesIsASentence)
{
    // 2 or 4 KiB: less than o.npy has, and more than the file that LLVM's OpenMP runtime keeps in shared memory.
    std::string line = R"(ulimit -f 4; exec "$0")";
    for (const std::string& word : small_problem("forward") + Arguments{"--out", out()}) {
        line += " '" + word + "'";
    }
    const io::HostTensor q = random_tensor({1, 5, 4, 80}, 1);
    io::write_npy(path("q.npy"), q.view());
    const io::HostTensor k = random_tensor({1, 7, 2, 80}, 1);
    io::write_npy(path("k.npy"), k.view());
    io::write_npy(path("v.npy"), k.view());
    const Outcome outcome = run_shell(line + " >/dev/null");
    EXPECT_EQ(outcome.status, 2);
    EXPECT_NE(outcome.err.find("o.npy: cannot be written (File too large)"), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(out()));
}

TEST_F(Hostile, ADanglingLinkIsNotReplaced)
{
    fs::create_directory(out());
    fs::create_symlink(path("target.npy"), out() / "o.npy");
    succeed(small_problem("forward") + Arguments{"--out", out()});
    EXPECT_TRUE(fs::is_symlink(fs::symlink_status(out() / "o.npy")));
    EXPECT_EQ(io::read_npy(path("target.npy")).shape(), (io::Shape{1, 5, 4, 8}));
}

TEST_F(Hostile, TensorsInTheOtherOrderOfAxesAreToldOfLayout)
{
    // Batch 1, 4 query heads, 2 key heads, 5 queries, 7 keys.
    const std::string hint = "; the tensors would fit with --layout bhsd.";
    const Arguments qkv{"--q", tensor("q", {1, 4, 5, 8}), "--k",   tensor("k", {1, 2, 7, 8}),
                        "--v", tensor("v", {1, 2, 7, 8}), "--out", out()};
    expect_refused(Arguments{"forward"} + qkv, hint);
    expect_refused(Arguments{"backward", "--do", tensor("do", {1, 4, 5, 8})} + qkv, hint);
    // As many keys as queries and equally many heads: only LSE tells.
    const std::string q = tensor("square", {1, 4, 5, 8});
    const Arguments square{
        "backward", "--q", q, "--k", q, "--v", q, "--do", q, "--o", q, "--lse", tensor("lse", {1, 4, 5}),
        "--out",    out()};
    expect_refused(square, hint);
    succeed(square + Arguments{"--layout", "bhsd"});
    fs::remove_all(out());
    const Arguments bshd{"forward",
                         "--layout",
                         "bhsd",
                         "--q",
                         tensor("q", {1, 5, 4, 8}),
                         "--k",
                         tensor("k", {1, 7, 2, 8}),
                         "--v",
                         tensor("v", {1, 7, 2, 8}),
                         "--out",
                         out()};
    expect_refused(bshd, "; the tensors would fit with --layout bshd.");
    // Where neither fits, there is nothing to say about it.
    const Outcome neither = run({"forward", "--q", q, "--k", tensor("k", {1, 3, 3, 8}), "--v", q, "--out", out()});
    EXPECT_EQ(neither.err.find("--layout"), std::string::npos) << neither.err;
}

TEST_F(Hostile, TwoOutputsAreTwoFiles)
{
    const std::string file = path("same").string();
    expect_refused({"bench", "--shape", "b1_h1_n16_d8", "--out", file, "--csv", file},
                   "--out and --csv were the same file");
    expect_refused({"bench", "--shape", "b1_h1_n16_d8", "--out", file, "--csv", path("x/../same").string()},
                   "--out and --csv were the same file");
    EXPECT_FALSE(fs::exists(file));
}

#if !FLASHOMP_ADDRESS_SANITIZER && !FLASHOMP_THREAD_SANITIZER
/// OpenMP's run time ends a process that it cannot start a thread for: no room, or a stack that no thread can have.
TEST_F(Hostile, StacksForWhichThereIsNoRoomLeaveOneThread)
{
    const std::string q = tensor("q", {1, 256, 8, 8});
    const std::string call = "\"$0\" forward --threads 2 --q " + q + " --k " + q + " --v " + q + " --out ";
    for (const std::string where :
         {"ulimit -v 800000; OMP_STACKSIZE=1G ", "ulimit -v 4000000; OMP_STACKSIZE=17179869184b ",
          "ulimit -v 4000000; OMP_STACKSIZE=20000000000 ", "OMP_STACKSIZE=16K ", "OMP_STACKSIZE=24 ",
          "OMP_STACKSIZE=100000G ", "GOMP_STACKSIZE=16K ", "OMP_STACKSIZE=x GOMP_STACKSIZE=16K "}) {
        const Outcome outcome = run_shell(where + call + out().string());
        EXPECT_EQ(outcome.status, 0) << where << outcome.err;
        EXPECT_NE(outcome.out.find("host (1 thread)"), std::string::npos) << where << outcome.out;
    }
    // Too small for any thread, or no size: OpenMP's run time then takes the default.
    for (const std::string where : {"OMP_STACKSIZE=8b ", "OMP_STACKSIZE=16KB ", "OMP_STACKSIZE= "}) {
        const Outcome outcome = run_shell(where + call + out().string());
        EXPECT_NE(outcome.out.find("host (2 threads)"), std::string::npos) << where << outcome.out << outcome.err;
    }
    EXPECT_NE(run_shell("OMP_STACKSIZE=4M " + call + out().string()).out.find("host (2 threads)"), std::string::npos);
}
#endif

} // namespace
} // namespace flashomp::cli_test
