// Softcap, ALiBi, bias, key padding, sinks, dropout and packed sequences on the command line: each works, alone and
// together, and each bad one gives one sentence and status 2.
#include "cli_support.hpp"

#include "npy.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::cli_test {
namespace {

class CliOptions : public CliTest {
protected:
    /// Runs backward on the fast backend and on the reference, and expects the same files with nearly the same numbers.
    void expect_as_reference(const Arguments& arguments, std::size_t files) const
    {
        (void)succeed(arguments + Arguments{"--out", out() / "fast"});
        (void)succeed(arguments + Arguments{"--backend", "reference", "--out", out() / "reference"});
        const auto written = snapshot(out() / "fast");
        EXPECT_EQ(written.size(), files);
        EXPECT_EQ(snapshot(out() / "reference").size(), files);
        for (const auto& [file, bytes] : written) {
            EXPECT_LT(difference(file, out() / "reference" / fs::path(file).filename()), 2e-5) << file;
        }
    }

    template <class Value>
    std::string exactly(const std::string& name, DType dtype, const std::vector<Value>& values,
                        const io::Shape& shape) const
    {
        io::HostTensor tensor(dtype, shape);
        std::copy(values.begin(), values.end(), static_cast<Value*>(tensor.data()));
        const fs::path file = path(name + ".npy");
        io::write_npy(file, std::as_const(tensor).view());
        return file;
    }

    std::string offsets(const std::string& name, const std::vector<std::int32_t>& values) const
    {
        return exactly(name, DType::int32, values, {static_cast<std::int64_t>(values.size())});
    }

    /// A packed problem: three sequences of 2, 0 and 3 queries, and 4, 2 and 1 keys.
    Arguments packed_problem(const std::string& command) const
    {
        Arguments arguments{command,
                            "--q",
                            tensor("packed_q", {5, 4, 8}),
                            "--k",
                            tensor("packed_k", {7, 2, 8}),
                            "--v",
                            tensor("packed_v", {7, 2, 8}),
                            "--cu-seqlens-q",
                            offsets("cu_q", {0, 2, 2, 5}),
                            "--cu-seqlens-k",
                            offsets("cu_k", {0, 4, 6, 7})};
        return command == "backward" ? arguments + Arguments{"--do", tensor("packed_do", {5, 4, 8})} : arguments;
    }

    Arguments every_option() const
    {
        return {"--causal", "bottom-right",     "--window", "6,2",      "--softcap", "20",      "--dropout",
                "0.25",     "--seed",           "3",        "--offset", "4",         "--alibi", tensor("alibi", {4}),
                "--sink",   tensor("sink", {4})};
    }
};

TEST_F(CliOptions, CasesWithOptionsGiveWhatPyTorchComputed)
{
    const std::map<std::string, Arguments> options{{"softcap_15", {"--softcap", "15"}},
                                                   {"alibi_causal", {"--causal", "bottom-right"}},
                                                   {"key_padding", {}},
                                                   {"bias_full", {}},
                                                   {"bias_broadcast", {"--causal", "bottom-right"}},
                                                   {"varlen_causal", {"--causal", "bottom-right"}},
                                                   {"varlen_empty", {}}};
    for (const auto& [name, arguments] : options) {
        SCOPED_TRACE(name);
        (void)succeed(case_files("backward", name) + arguments + Arguments{"--out", out() / name});
        std::vector<std::string> results{"o", "lse", "dq", "dk", "dv"};
        if (fs::exists(cases() / name / "bias.npy")) {
            results.emplace_back("dbias");
        }
        EXPECT_EQ(snapshot(out() / name).size(), results.size());
        for (const std::string& result : results) {
            const std::string file = result + ".npy";
            EXPECT_LT(difference(out() / name / file, cases() / name / file), 3e-5) << result;
        }
    }
}

TEST_F(CliOptions, SinkAndDropoutGiveWhatTheReferenceComputes)
{
    const Arguments problem = small_problem("backward");
    expect_as_reference(problem + Arguments{"--sink", tensor("sink", {4})}, 6);
    EXPECT_EQ(io::read_npy(out() / "fast" / "dsink.npy").shape(), io::Shape{4});
    fs::remove_all(out());
    expect_as_reference(problem + Arguments{"--dropout", "0.3", "--seed", "18446744073709551615"}, 5);
}

TEST_F(CliOptions, AllOptionsTogether)
{
    const std::string mask = exactly<std::uint8_t>("mask", DType::boolean, {1, 0, 1, 1, 1, 0, 1}, {1, 7});
    expect_as_reference(small_problem("backward") + every_option() +
                            Arguments{"--bias", tensor("bias", {1, 1, 5, 7}), "--key-padding-mask", mask},
                        7);
    EXPECT_EQ(io::read_npy(out() / "fast" / "dbias.npy").shape(), (io::Shape{1, 1, 5, 7}));
}

TEST_F(CliOptions, AllOptionsTogetherOnPackedSequences)
{
    expect_as_reference(packed_problem("backward") + every_option() + Arguments{"--bias", tensor("bias", {3, 4, 1, 4})},
                        7);
    EXPECT_EQ(io::read_npy(out() / "fast" / "lse.npy").shape(), (io::Shape{4, 5}));
    EXPECT_EQ(io::read_npy(out() / "fast" / "o.npy").shape(), (io::Shape{5, 4, 8}));
    EXPECT_EQ(io::read_npy(out() / "fast" / "dbias.npy").shape(), (io::Shape{3, 4, 1, 4}));
}

TEST_F(CliOptions, BackwardFromSavedOutputsGivesTheSameBits)
{
    const Arguments options = every_option() + Arguments{"--bias", tensor("bias", {1, 4, 1, 4})};
    (void)succeed(packed_problem("backward") + options + Arguments{"--out", out() / "whole"});
    (void)succeed(packed_problem("forward") + options + Arguments{"--out", out() / "first"});
    (void)succeed(
        packed_problem("backward") + options +
        Arguments{"--o", out() / "first" / "o.npy", "--lse", out() / "first" / "lse.npy", "--out", out() / "second"});
    EXPECT_EQ(snapshot(out() / "first").size(), 2U);
    EXPECT_EQ(snapshot(out() / "second").size(), 5U);
    for (const char* const name : {"dq.npy", "dk.npy", "dv.npy", "dbias.npy", "dsink.npy"}) {
        EXPECT_EQ(contents(out() / "whole" / name), contents(out() / "second" / name)) << name;
    }
}

TEST_F(CliOptions, SixteenBitTensorsWithFloat32Options)
{
    for (const char* const dtype : {"bfloat16", "float16"}) {
        (void)succeed(small_problem("backward") + every_option() +
                      Arguments{"--bias", tensor("bias", {1, 4, 5, 7}), "--dtype", dtype, "--out", out() / dtype});
        EXPECT_EQ(io::read_npy(out() / dtype / "dsink.npy").dtype(), DType::float32);
        EXPECT_EQ(io::read_npy(out() / dtype / "dbias.npy").dtype(), DType::float32);
        EXPECT_EQ(io::read_npy(out() / dtype / "lse.npy").dtype(), DType::float32);
    }
}

TEST_F(CliOptions, BadOnesAreRefused)
{
    const std::vector<std::pair<Arguments, std::string>> bad{
        {{"--softcap", "-1"}, "softcap was -1"},
        {{"--softcap", "nan"}, "softcap"},
        {{"--softcap", "inf"}, "softcap"},
        {{"--dropout", "1"}, "dropout was 1"},
        {{"--dropout", "-0.1"}, "dropout was -0.1"},
        {{"--dropout", "nan"}, "dropout"},
        {{"--scale", "nan"}, "scale"},
        {{"--window", "-2,0"}, "window left was -2"},
        {{"--alibi", tensor("alibi3", {3})}, "alibi_slopes is float32 [3]"},
        {{"--alibi", tensor("alibi24", {2, 4})}, "alibi_slopes is float32 [2, 4]"},
        {{"--alibi", tensor("alibi_int", {4}, DType::int32)}, "alibi_slopes is int32"},
        {{"--bias", tensor("bias3", {4, 5, 7})}, "bias has shape [4, 5, 7]"},
        {{"--bias", tensor("bias2", {1, 2, 5, 7})}, "bias has shape [1, 2, 5, 7]"},
        {{"--bias", tensor("bias_int", {1, 1, 5, 7}, DType::int32)}, "bias is int32"},
        {{"--key-padding-mask", tensor("mask_float", {1, 7})}, "key_padding_mask is float32"},
        {{"--key-padding-mask", tensor("mask_int", {1, 7}, DType::int32)}, "key_padding_mask is int32"},
        {{"--key-padding-mask", tensor("mask5", {1, 5}, DType::boolean)}, "key_padding_mask is boolean [1, 5]"},
        {{"--sink", tensor("sink2", {2})}, "sink is float32 [2]"},
        {{"--sink", tensor("sink_int", {4}, DType::int32)}, "sink is int32"},
        {{"--cu-seqlens-q", offsets("cu5", {0, 5})}, "axes"},
    };
    for (const auto& [option, words] : bad) {
        for (const char* const command : {"forward", "backward"}) {
            expect_refused(small_problem(command) + Arguments{"--out", out()} + option, words);
        }
    }
}

TEST_F(CliOptions, BadPackingIsRefused)
{
    const auto with = [&](const std::string& flag, const std::string& file) {
        Arguments changed = packed_problem("backward") + Arguments{"--out", out()};
        *(std::find(changed.begin(), changed.end(), flag) + 1) = file;
        return changed;
    };
    expect_refused(with("--cu-seqlens-q", offsets("down", {0, 3, 2, 5})), "cu_seqlens_q decreases");
    expect_refused(with("--cu-seqlens-q", offsets("short", {0, 2, 2, 4})), "cu_seqlens_q ends at 4");
    expect_refused(with("--cu-seqlens-k", offsets("long", {0, 4, 6, 8})), "cu_seqlens_k ends at 8");
    expect_refused(with("--cu-seqlens-k", offsets("late", {1, 4, 6, 7})), "cu_seqlens_k starts at 1");
    expect_refused(with("--cu-seqlens-k", offsets("few", {0, 4, 7})), "sequences");
    expect_refused(with("--cu-seqlens-k", tensor("floats", {4})), "cu_seqlens_k is float32");
    expect_refused(with("--cu-seqlens-k", exactly<std::int64_t>("wide", DType::int64, {0, 4, 6, 7}, {4})),
                   "cu_seqlens_k is int64");
    Arguments only_one = packed_problem("forward") + Arguments{"--out", out()};
    const auto at = std::find(only_one.begin(), only_one.end(), "--cu-seqlens-k");
    only_one.erase(at, at + 2);
    expect_refused(only_one, "cu_seqlens_k was not given");
    expect_refused(packed_problem("forward") +
                       Arguments{"--out", out(), "--key-padding-mask", tensor("mask", {3, 7}, DType::boolean)},
                   "key_padding_mask is boolean [3, 7]");
    // do, o and lse are packed as well.
    expect_refused(with("--do", tensor("do", {1, 5, 4, 8})), "dout");
    expect_refused(packed_problem("backward") +
                       Arguments{"--o", tensor("o", {5, 4, 8}), "--lse", tensor("lse", {5, 4}), "--out", out()},
                   "lse");
}

} // namespace
} // namespace flashomp::cli_test
