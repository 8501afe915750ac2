// info, forward and backward on input that works.
#include "cli_support.hpp"

#include "npy.hpp"
#include "quantized.hpp"
#include "safetensors.hpp"

#include "flashomp/version.hpp"

#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

namespace flashomp::cli_test {
namespace {

using nlohmann::json;

class Results : public CliTest {
protected:
    static bool same_bits(const ConstTensorView& a, const ConstTensorView& b)
    {
        const io::HostTensor x = io::HostTensor::copy_of(a);
        const io::HostTensor y = io::HostTensor::copy_of(b);
        return x.dtype() == y.dtype() && x.shape() == y.shape() &&
               std::memcmp(x.data(), y.data(), static_cast<std::size_t>(x.bytes())) == 0;
    }
};

TEST_F(Results, InfoNamesTheBuild)
{
    const Outcome text = succeed({"info"});
    EXPECT_NE(text.out.find(FLASHOMP_VERSION), std::string::npos);
    EXPECT_EQ(text.err, "");
    const json info = json::parse(succeed({"info", "--json"}).out);
    EXPECT_EQ(info.at("build").at("version"), FLASHOMP_VERSION);
    for (const char* const key : {"commit", "compiler", "flags", "offload", "backends"}) {
        EXPECT_TRUE(info.at("build").at(key).is_string()) << key;
    }
    EXPECT_GE(info.at("host").at("threads").get<int>(), 1);
    EXPECT_TRUE(info.at("devices").is_array());
}

TEST_F(Results, HelpAndVersion)
{
    EXPECT_NE(succeed({"--version"}).out.find(FLASHOMP_VERSION), std::string::npos);
    for (const Arguments& command : {Arguments{}, {"info"}, {"forward"}, {"backward"}, {"check"}}) {
        const Outcome help = succeed(command + Arguments{"--help"});
        EXPECT_NE(help.out.find("Examples"), std::string::npos);
        EXPECT_EQ(help.err, "");
    }
}

TEST_F(Results, ForwardWritesWhatPyTorchComputed)
{
    const Outcome outcome =
        succeed(case_files("forward", "odd_113x203_causal") + Arguments{"--causal", "bottom-right", "--out", out()});
    EXPECT_LT(difference(out() / "o.npy", cases() / "odd_113x203_causal" / "o.npy"), 1e-5);
    EXPECT_LT(difference(out() / "lse.npy", cases() / "odd_113x203_causal" / "lse.npy"), 1e-5);
    EXPECT_NE(outcome.out.find("ran on "), std::string::npos);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(snapshot(out()).size(), 2U); // no temporary stays behind
}

TEST_F(Results, EveryOptionReachesTheComputation)
{
    const std::map<std::string, Arguments> options{
        {"window_17_0", {"--causal", "bottom-right", "--window", "17,0"}},
        {"window_10_20_cross", {"--window", "10,20"}},
        {"causal_top_left_113x203", {"--causal", "top-left", "--window", "-1,-1"}},
        {"scale_1", {"--scale", "1"}},
        {"mha_d64", {"--backend", "reference", "--device", "host"}},
        {"gqa", {"--machine", "host", "--threads", "1", "--backend", "openmp"}}};
    for (const auto& [name, arguments] : options) {
        SCOPED_TRACE(name);
        (void)succeed(case_files("backward", name) + arguments + Arguments{"--out", out() / name});
        for (const char* const result : {"o", "lse", "dq", "dk", "dv"}) {
            const std::string file = std::string(result) + ".npy";
            EXPECT_LT(difference(out() / name / file, cases() / name / file), 2e-5) << result;
        }
    }
}

TEST_F(Results, BackwardFromSavedOutputsGivesTheSameBits)
{
    (void)succeed(small_problem("backward") + Arguments{"--out", out() / "whole"});
    (void)succeed(small_problem("forward") + Arguments{"--out", out() / "first"});
    (void)succeed(small_problem("backward") + Arguments{"--o", out() / "first" / "o.npy", "--lse",
                                                        out() / "first" / "lse.npy", "--out", out() / "second"});
    EXPECT_EQ(snapshot(out() / "whole").size(), 5U);
    EXPECT_EQ(snapshot(out() / "second").size(), 3U);
    for (const char* const name : {"o.npy", "lse.npy"}) {
        EXPECT_EQ(contents(out() / "whole" / name), contents(out() / "first" / name)) << name;
    }
    for (const char* const name : {"dq.npy", "dk.npy", "dv.npy"}) {
        EXPECT_EQ(contents(out() / "whole" / name), contents(out() / "second" / name)) << name;
    }
}

TEST_F(Results, LayoutsDifferInTheFilesOnly)
{
    (void)succeed(small_problem("backward") + Arguments{"--out", out() / "bshd"});
    Arguments transposed = small_problem("backward");
    for (std::size_t i = 2; i < transposed.size(); i += 2) { // every file
        const io::HostTensor tensor = io::read_npy(transposed[i]);
        const fs::path file = path("transposed-" + fs::path(transposed[i]).filename().string());
        io::write_npy(file, tensor.view().transposed(1, 2));
        transposed[i] = file;
    }
    (void)succeed(transposed + Arguments{"--layout", "bhsd", "--out", out() / "bhsd"});
    for (const char* const name : {"o.npy", "dq.npy", "dk.npy", "dv.npy"}) {
        const io::HostTensor bshd = io::read_npy(out() / "bshd" / name);
        const io::HostTensor bhsd = io::read_npy(out() / "bhsd" / name);
        EXPECT_TRUE(same_bits(bshd.view(), bhsd.view().transposed(1, 2))) << name;
    }
    EXPECT_EQ(contents(out() / "bshd" / "lse.npy"), contents(out() / "bhsd" / "lse.npy"));
}

TEST_F(Results, Float8IsWhatItsElementsAndScalesAre)
{
    const Arguments where{"--backend", "reference", "--out"};
    const Arguments problem = small_problem("forward");
    (void)succeed(problem + where + Arguments{out() / "float32"});
    (void)succeed(problem + Arguments{"--dtype", "float8_e4m3"} + where + Arguments{out() / "float8"});
    EXPECT_LT(difference(out() / "float8" / "o.npy", out() / "float32" / "o.npy"), 0.15); // 3 bits of fraction
    EXPECT_GT(difference(out() / "float8" / "o.npy", out() / "float32" / "o.npy"), 1e-3);

    std::map<std::string, io::Quantized> tensors;
    std::map<std::string, ConstTensorView> views;
    for (const char* const name : {"q", "k", "v"}) {
        io::Quantized& tensor = tensors[name] = io::quantized(io::read_npy(path(std::string(name) + ".npy")), 2);
        views[name] = std::as_const(tensor.elements).view();
        views[name + std::string("_scale")] = std::as_const(tensor.scale).view();
    }
    io::write_safetensors(path("float8.safetensors"), views);
    (void)succeed(Arguments{"forward", "--in", path("float8.safetensors")} + where + Arguments{out() / "again"});
    EXPECT_EQ(contents(out() / "again" / "o.npy"), contents(out() / "float8" / "o.npy"));
    EXPECT_EQ(contents(out() / "again" / "lse.npy"), contents(out() / "float8" / "lse.npy"));
}

/// Files of a cache of 8 bits: that of float8_e4m3 in .safetensors, that of int8 in both; q may be converted.
TEST_F(Results, ACacheOfEightBitsIsWhatItsElementsAndScalesAre)
{
    const Arguments problem = small_problem("forward");
    std::map<std::string, io::HostTensor> tensors;
    std::map<std::string, ConstTensorView> narrow, wide;
    for (const char* const name : {"k", "v"}) {
        io::Quantized eight = io::quantized(io::read_npy(path(std::string(name) + ".npy")), 2);
        io::HostTensor product = io::converted(eight.elements, DType::float32);
        const io::Shape& s = product.shape();
        for (std::int64_t i = 0; i < product.elements(); ++i) {
            const auto* const scale = static_cast<const float*>(eight.scale.data());
            static_cast<float*>(product.data())[i] *= scale[i / (s[1] * s[2] * s[3]) * s[2] + i / s[3] % s[2]];
        }
        tensors[name] = std::move(eight.elements);
        tensors[name + std::string("_scale")] = std::move(eight.scale);
        tensors[name + std::string("_wide")] = std::move(product);
        wide[name] = std::as_const(tensors[name + std::string("_wide")]).view();
        narrow[name] = std::as_const(tensors[name]).view();
        narrow[name + std::string("_scale")] = std::as_const(tensors[name + std::string("_scale")]).view();
    }
    tensors["q"] = io::read_npy(path("q.npy"));
    narrow["q"] = wide["q"] = std::as_const(tensors["q"]).view();
    io::write_safetensors(path("narrow.safetensors"), narrow);
    io::write_safetensors(path("wide.safetensors"), wide);
    (void)succeed({"forward", "--in", path("narrow.safetensors"), "--out", out() / "narrow"});
    (void)succeed({"forward", "--in", path("wide.safetensors"), "--out", out() / "wide"});
    EXPECT_LT(difference(out() / "narrow" / "o.npy", out() / "wide" / "o.npy"), 1e-5);
    (void)succeed({"forward", "--in", path("narrow.safetensors"), "--dtype", "bfloat16", "--out", out() / "bfloat16"});
    const io::HostTensor rounded =
        io::converted(io::read_npy(out() / "bfloat16" / "o.npy", {.u2_is_bfloat16 = true}), DType::float32);
    const io::HostTensor exact = io::read_npy(out() / "wide" / "o.npy");
    for (std::int64_t i = 0; i < exact.elements(); ++i) {
        EXPECT_NEAR(static_cast<const float*>(rounded.data())[i], static_cast<const float*>(exact.data())[i], 0.03F);
    }

    io::HostTensor bytes(DType::int8, tensors.at("k").shape());
    std::memset(bytes.data(), 3, static_cast<std::size_t>(bytes.bytes()));
    io::write_npy(path("int8.npy"), bytes.view());
    (void)succeed(
        {"forward", "--q", path("q.npy"), "--k", path("int8.npy"), "--v", path("int8.npy"), "--out", out() / "int8"});
    const io::HostTensor o = io::read_npy(out() / "int8" / "o.npy");
    for (std::int64_t i = 0; i < o.elements(); ++i) {
        EXPECT_NEAR(static_cast<const float*>(o.data())[i], 3.0F, 1e-5F);
    }
    expect_refused({"backward", "--q", path("q.npy"), "--k", path("int8.npy"), "--v", path("int8.npy"), "--do",
                    path("q.npy"), "--out", out() / "int8"},
                   "which only the forward pass takes");
}

TEST_F(Results, SafetensorsHoldTheSameAsNpy)
{
    const Arguments problem = small_problem("backward");
    (void)succeed(problem + Arguments{"--out", out() / "npy"});
    std::map<std::string, io::HostTensor> tensors;
    std::map<std::string, ConstTensorView> views;
    for (const char* const name : {"q", "k", "v", "do"}) {
        tensors[name] = io::read_npy(path(std::string(name) + ".npy"));
        views[name] = std::as_const(tensors[name]).view();
    }
    views["stray"] = views["q"];
    io::write_safetensors(path("in.safetensors"), views);
    const Outcome outcome =
        succeed({"backward", "--in", path("in.safetensors"), "--out", out() / "results.safetensors"});
    EXPECT_NE(outcome.err.find("stray"), std::string::npos) << outcome.err;
    const auto results = io::read_safetensors(out() / "results.safetensors");
    EXPECT_EQ(results.size(), 5U);
    for (const auto& [name, tensor] : results) {
        const io::HostTensor expected = io::read_npy(out() / "npy" / (name + ".npy"));
        EXPECT_TRUE(same_bits(tensor.view(), expected.view())) << name;
    }
    // A tensor comes from one place only; one that the file lacks may come from elsewhere.
    expect_refused({"forward", "--in", path("in.safetensors"), "--q", path("q.npy"), "--out", out()}, "one place");
}

TEST_F(Results, DtypeConvertsTheInputs)
{
    for (const char* const dtype : {"bfloat16", "float16"}) {
        SCOPED_TRACE(dtype);
        const fs::path folder = out() / dtype;
        (void)succeed(case_files("forward", "mha_d64") + Arguments{"--dtype", dtype, "--out", folder});
        const io::HostTensor o = io::read_npy(folder / "o.npy", {.u2_is_bfloat16 = true});
        EXPECT_EQ(name_of(o.dtype()), dtype);
        EXPECT_EQ(io::read_npy(folder / "lse.npy").dtype(), DType::float32);
        EXPECT_LT(difference(folder / "o.npy", cases() / "mha_d64" / "o.npy"), 2e-2);
    }
}

TEST_F(Results, Bfloat16FilesAreReadAsSuch)
{
    const std::string q = tensor("q", {1, 4, 2, 8}, DType::bfloat16);
    (void)succeed({"forward", "--q", q, "--k", q, "--v", q, "--out", out()});
    EXPECT_EQ(io::read_npy(out() / "o.npy", {.u2_is_bfloat16 = true}).dtype(), DType::bfloat16);
}

TEST_F(Results, Float64FilesBecomeFloat32WithANote)
{
    const std::string q = tensor("q", {1, 4, 2, 8}, DType::float64);
    const Outcome outcome = succeed({"forward", "--q", q, "--k", q, "--v", q, "--out", out()});
    EXPECT_NE(outcome.err.find("float64 to float32"), std::string::npos) << outcome.err;
    EXPECT_EQ(io::read_npy(out() / "o.npy").dtype(), DType::float32);
}

TEST_F(Results, EmptyAndDeadRows)
{
    const std::string q = tensor("q", {1, 3, 2, 8});
    const std::string none = tensor("none", {1, 0, 2, 8});
    (void)succeed({"forward", "--q", q, "--k", none, "--v", none, "--out", out()});
    const io::HostTensor o = io::read_npy(out() / "o.npy");
    const io::HostTensor lse = io::read_npy(out() / "lse.npy");
    for (std::int64_t i = 0; i < o.elements(); ++i) {
        EXPECT_EQ(static_cast<const float*>(o.data())[i], 0.0F);
    }
    for (std::int64_t i = 0; i < lse.elements(); ++i) {
        EXPECT_EQ(static_cast<const float*>(lse.data())[i], -INFINITY);
    }
    (void)succeed({"forward", "--q", none, "--k", q, "--v", q, "--out", out()});
    EXPECT_EQ(io::read_npy(out() / "o.npy").shape(), (io::Shape{1, 0, 2, 8}));
}

TEST_F(Results, JsonSaysWhatRanAndWhere)
{
    const json result = json::parse(succeed(small_problem("backward") + Arguments{"--json", "--out", out()}).out);
    EXPECT_EQ(result.at("command"), "backward");
    EXPECT_EQ(result.at("inputs").at("q").at("shape"), json({1, 5, 4, 8}));
    for (const char* const pass : {"forward", "backward"}) {
        const json& report = result.at("passes").at(pass);
        EXPECT_FALSE(report.at("ran_on").get<std::string>().empty());
        EXPECT_GT(report.at("seconds").get<double>(), 0.0);
        EXPECT_GT(report.at("extra_bytes").get<std::int64_t>(), 0);
        const std::string backends = build_info().backends; // the default one on a GPU is the first
        EXPECT_EQ(report.at("backend"), report.at("on_device") ? backends.substr(0, backends.find(',')) : "openmp");
    }
    for (const char* const name : {"o", "lse", "dq", "dk", "dv"}) {
        EXPECT_TRUE(fs::exists(result.at("outputs").at(name).get<std::string>())) << name;
    }
}

TEST_F(Results, NamingTheHostIsObeyed)
{
    const json result = json::parse(
        succeed(small_problem("forward") + Arguments{"--device", "host", "--threads", "1", "--json", "--out", out()})
            .out);
    EXPECT_EQ(result.at("on_device"), false);
    EXPECT_EQ(result.at("ran_on"), "host (1 thread)");
}

} // namespace
} // namespace flashomp::cli_test
