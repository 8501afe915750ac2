// flashomp check: exit status 0 when all is well, 1 when a case falls short, 2 on bad input.
#include "cli_support.hpp"

#include "npy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace flashomp::cli_test {
namespace {

using nlohmann::json;

class Check : public CliTest {
protected:
    /// A folder with a copy of one shipped case.
    fs::path copied_case(const std::string& name) const
    {
        fs::create_directories(path("cases"));
        fs::copy(cases() / name, path("cases") / name);
        write_text(path("cases") / "cases.json", R"({"cases": [{"name": ")" + name + R"(", "options": {}}]})");
        return path("cases");
    }
};

TEST_F(Check, OneCasePassesInEveryDtype)
{
    for (const char* const dtype : {"float32", "bfloat16", "float16"}) {
        const Outcome outcome = run({"check", cases(), "--case", "gqa", "--dtype", dtype});
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        EXPECT_NE(outcome.out.find("1 passed, 0 failed, 0 skipped"), std::string::npos) << outcome.out;
        EXPECT_NE(outcome.out.find(dtype), std::string::npos);
        EXPECT_NE(outcome.out.find("ran on "), std::string::npos);
    }
}

TEST_F(Check, JsonHoldsErrorsBoundsAndWhereItRan)
{
    const Outcome outcome = run({"check", cases(), "--case", "d40", "--case", "mqa", "--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const json result = json::parse(outcome.out);
    ASSERT_EQ(result.at("cases").size(), 2U);
    EXPECT_EQ(result.at("passed"), 2);
    EXPECT_EQ(result.at("status"), 0);
    for (const json& item : result.at("cases")) {
        EXPECT_EQ(item.at("result"), "pass");
        for (const char* const name : {"o", "lse", "dq", "dk", "dv"}) {
            const json& comparison = item.at("comparisons").at(name);
            EXPECT_LE(comparison.at("error").get<double>(), comparison.at("bound").get<double>());
        }
        EXPECT_GT(item.at("forward").at("standard_bytes").get<std::int64_t>(), 0);
        EXPECT_FALSE(item.at("backward").at("ran_on").get<std::string>().empty());
    }
}

TEST_F(Check, ReferenceBackendPassesToo)
{
    const Outcome outcome = run({"check", cases(), "--case", "window_17_0", "--backend", "reference"});
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find("reference/"), std::string::npos);
}

TEST_F(Check, AWrongValueFallsShort)
{
    const fs::path folder = copied_case("one_by_one");
    ASSERT_EQ(run({"check", folder}).status, 0);
    for (const char* const name : {"o", "lse", "dq", "dk", "dv"}) {
        SCOPED_TRACE(name);
        const fs::path file = folder / "one_by_one" / (std::string(name) + ".npy");
        const std::string before = contents(file);
        for (const double wrong : {1e-3, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
            io::HostTensor tensor = io::converted(io::read_npy(file), DType::float64);
            static_cast<double*>(tensor.data())[0] += wrong;
            io::write_npy(file, tensor.view());
            const Outcome outcome = run({"check", folder});
            EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
            EXPECT_NE(outcome.out.find("FAIL"), std::string::npos);
            EXPECT_NE(outcome.out.find("0 passed, 1 failed"), std::string::npos);
            write_text(file, before);
        }
    }
}

/// LSE is float32 in every dtype: bfloat16's naive error excuses nothing in it. A gradient's common factor is not to be
/// larger than what rounding makes it.
TEST_F(Check, AWrongLseOrFactorFallsShortInSixteenBits)
{
    const fs::path folder = copied_case("gqa");
    ASSERT_EQ(run({"check", folder, "--dtype", "bfloat16"}).status, 0);
    const auto change = [](const char* name, double& value) { value = name[0] == 'l' ? value + 1e-3 : value * 1.005; };
    for (const char* const name : {"lse", "dq", "dk", "dv"}) {
        SCOPED_TRACE(name);
        const fs::path file = folder / "gqa" / (std::string(name) + ".npy");
        const std::string before = contents(file);
        io::HostTensor tensor = io::converted(io::read_npy(file), DType::float64);
        auto* values = static_cast<double*>(tensor.data());
        std::for_each(values, values + tensor.elements(), [&](double& value) { change(name, value); });
        io::write_npy(file, tensor.view());
        const Outcome outcome = run({"check", folder, "--dtype", "bfloat16"});
        EXPECT_EQ(outcome.status, 1) << outcome.out << outcome.err;
        EXPECT_NE(outcome.out.find(std::string("gqa ") + name + ": "), std::string::npos) << outcome.out;
        write_text(file, before);
    }
}

/// Of large logits the naive errors are large, too: they excuse a gradient that nobody has computed in no dtype.
TEST_F(Check, AGradientOfZerosFallsShortOfLargeLogits)
{
    const fs::path folder = copied_case("large_logits");
    for (const char* const name : {"dq", "dk", "dv"}) {
        SCOPED_TRACE(name);
        const fs::path file = folder / "large_logits" / (std::string(name) + ".npy");
        const std::string before = contents(file);
        io::HostTensor tensor = io::converted(io::read_npy(file), DType::float64);
        auto* const values = static_cast<double*>(tensor.data());
        // The results stay and what is expected grows: beside it they are as zeros beside what was expected.
        std::for_each(values, values + tensor.elements(), [](double& value) { value *= 1e3; });
        io::write_npy(file, tensor.view());
        for (const char* const dtype : {"float32", "bfloat16", "float16"}) {
            EXPECT_EQ(run({"check", folder, "--dtype", dtype}).status, 1) << dtype;
        }
        write_text(file, before);
    }
}

TEST_F(Check, ARequiredDeviceIsRequired)
{
    const Outcome outcome = run({"check", cases(), "--case", "d8", "--device", "host", "--require-device"});
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    EXPECT_NE(outcome.out.find("did not run on a device"), std::string::npos) << outcome.out;
}

TEST_F(Check, EveryShippedCasePassesInEveryDtypeAndNothingIsSkipped)
{
    const auto folders = std::count_if(fs::directory_iterator(cases()), fs::directory_iterator(),
                                       [](const fs::directory_entry& entry) { return entry.is_directory(); });
    for (const char* const dtype : {"float32", "bfloat16", "float16"}) {
        const Outcome outcome = run({"check", cases(), "--dtype", dtype});
        EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
        EXPECT_NE(outcome.out.find(std::to_string(folders) + " passed, 0 failed, 0 skipped"), std::string::npos)
            << outcome.out;
    }
}

TEST_F(Check, ListsThatAreNotAsTheyShouldBe)
{
    const std::string good = R"({"name": "one_by_one", "options": {}})";
    const fs::path folder = copied_case("one_by_one");
    const auto list_of = [](const std::string& item) { return R"({"cases": [)" + item + "]}"; };
    const std::vector<std::pair<std::string, std::string>> lists{
        {"", "not valid JSON"},
        {"{\"cases\": [", "not valid JSON"},
        {"[]", "object"},
        {"{}", "cases"},
        {R"({"cases": []})", "cases"},
        {R"({"cases": {}})", "cases"},
        {R"({"cases": [], "version": 2})", "version"},
        {R"({"layout": 3, "cases": [)" + good + "]}", "layout"},
        {R"({"cases": [)" + good + R"(], "cases": []})", "twice"},
        {list_of(good + "," + good), "twice"},
        {list_of("7"), "object"},
        {list_of(R"({"options": {}})"), "name"},
        {list_of(R"({"name": "one_by_one"})"), "options"},
        {list_of(R"({"name": "../one_by_one", "options": {}})"), "without a path"},
        {list_of(R"({"name": "..", "options": {}})"), "without a path"},
        {list_of(R"({"name": 3, "options": {}})"), "without a path"},
        {list_of(R"({"name": "one_by_one", "options": {}, "seed": 1})"), "seed"},
        {list_of(R"({"name": "one_by_one", "options": {"casual": "none"}})"), "casual"},
        {list_of(R"({"name": "one_by_one", "options": {"causal": true}})"), "causal"},
        {list_of(R"({"name": "one_by_one", "options": {"dropout": 0.5}})"), "object"},
        {list_of(R"({"name": "one_by_one", "options": {"dropout": {"seed": 1}}})"), "needs 'probability'"},
        {list_of(R"({"name": "one_by_one", "options": {"dropout": {"probability": "1"}}})"), "probability"},
        {list_of(R"({"name": "one_by_one", "options": {"dropout": {"probability": 0.5, "seed": -1}}})"), "seed"},
        {list_of(R"({"name": "one_by_one", "options": {"dropout": {"probability": 0.5, "offset": 1.5}}})"), "offset"},
        {list_of(R"({"name": "one_by_one", "options": {"dropout": {"probability": 0.5, "key": 1}}})"), "key"},
        {list_of(R"({"name": "one_by_one", "options": {"dropout": {"probability": 1.5}}})"), "dropout"},
        {list_of(R"({"name": "one_by_one", "options": {"window": [1]}})"), "window"},
        {list_of(R"({"name": "one_by_one", "options": {"window": [1.5, 2]}})"), "window"},
        {list_of(R"({"name": "one_by_one", "options": {"window": [18446744073709551615, 0]}})"),
         "case 'one_by_one': 'window' must be two whole numbers [left, right], each from -1 to 2^63 - 1."},
        {list_of(R"({"name": "one_by_one", "options": {"window": [0, 9223372036854775808]}})"), "to 2^63 - 1."},
        {list_of(R"({"name": "one_by_one", "options": {"window": [-2, 0]}})"), "window"},
        {list_of(R"({"name": "one_by_one", "options": {"scale": 1e999}})"), "cases.json: has a number out of range"},
        {list_of(R"({"name": "\u001b[2J", "options": {}})"), "printable"},
        {list_of(R"({"name": ")" + std::string(256, 'n') + R"(", "options": {}})"), "at most 255"},
        {list_of(R"({"name": "one_by_one", "options": {}, ")" + std::string(1'000'000, 'k') + R"(": 1})"), "kkk…"},
        {list_of(std::string(1000, '[')), "nested more than 5 levels"},
        {list_of(R"({"name": "one_by_one", "options": {"scale": "1"}})"), "scale"},
        {list_of(R"({"name": "one_by_one", "options": {"scale": 1, "scale": 2}})"), "twice"},
        {list_of(R"({"name": "one_by_one", "options": {}, "bias": "/etc/passwd"})"), "without a path"},
        {list_of(R"({"name": "one_by_one", "options": {}, "dbias": "dbias.npy"})"), "needs 'bias'"},
        {list_of(R"({"name": "absent", "options": {}})"), "absent"}};
    for (const auto& [text, words] : lists) {
        write_text(folder / "cases.json", text);
        expect_refused({"check", folder}, words);
    }
}

TEST_F(Check, CasesThatCannotBeRead)
{
    expect_refused({"check"}, "DIR");
    expect_refused({"check", path("")}, "cases.json");
    expect_refused({"check", cases(), "--case", "unheard_of"}, "unheard_of");
    const fs::path folder = copied_case("one_by_one");
    const io::HostTensor other = random_tensor({1, 1, 2, 31}, 1);
    io::write_npy(folder / "one_by_one" / "o.npy", other.view());
    expect_refused({"check", folder}, "o.npy");
    fs::remove(folder / "one_by_one" / "dv.npy");
    expect_refused({"check", folder}, ".npy");
}

} // namespace
} // namespace flashomp::cli_test
