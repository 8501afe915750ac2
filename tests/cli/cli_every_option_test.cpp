// Each option of the lists (option_list.hpp) in a file or on the command line, and in cases.json: the tool computes
// with it what the API does, says so, and docs/quick_reference.md has it.
#include "cli_support.hpp"
#include "support/every_option.hpp"

#include "accuracy.hpp"
#include "npy.hpp"
#include "safetensors.hpp"

#include <nlohmann/json.hpp>

namespace flashomp::cli_test {
namespace {

using testing::OptionCase;
using testing::OptionCases;
using testing::Tensors;

class CliEveryOption : public CliTest {
protected:
    /// The reference's results: those of other backends are looked at elsewhere.
    static Tensors expected_of(const OptionCase& with)
    {
        Options options = with.options;
        options.backend = Backend::reference;
        return with.run(options);
    }

    /// Runs the case on the reference with these words for its tensors. The summary names the option.
    void expect_as_api(const OptionCase& with, const Arguments& tensors) const
    {
        const std::string command = with.is_forward_only() ? "forward" : "backward";
        Arguments arguments = Arguments{command} + tensors + with.words;
        if (with.is_float8()) {
            arguments = arguments + Arguments{"--scale", "1e-4"};
        }
        arguments = arguments + Arguments{"--backend", "reference", "--out", out().string()};
        const Outcome outcome = succeed(arguments);
        EXPECT_NE(outcome.out.substr(0, outcome.out.find('\n')).find(with.option + " "), std::string::npos)
            << outcome.out;
        for (const auto& [name, result] : expected_of(with)) {
            const io::HostTensor written = io::read_npy(out() / (name + ".npy"), {.u2_is_bfloat16 = true});
            EXPECT_LT(reference::max_error(io::doubles(written), io::doubles(result)), 1e-6) << name;
        }
        fs::remove_all(out());
        const nlohmann::json said = nlohmann::json::parse(succeed(arguments + Arguments{"--json"}).out);
        EXPECT_TRUE(said.at("options").contains(with.option) || said.at("inputs").contains(with.option)) << said;
        fs::remove_all(out());
    }
};

TEST_F(CliEveryOption, ComesFromFilesAndTheCommandLine)
{
    for (const OptionCase& with : OptionCases::all(9)) {
        if (with.is_of_programs()) {
            continue;
        }
        SCOPED_TRACE(with.option + " " + with.json);
        std::map<std::string, ConstTensorView> views;
        for (const auto& [name, tensor] : with.tensors) {
            if (!with.is_forward_only() || name != "do") {
                views.emplace(name, tensor.view());
            }
        }
        const std::string file = path("all.safetensors").string();
        io::write_safetensors(file, views);
        expect_as_api(with, {"--in", file});

        Arguments flags; // the option's tensors from files of their own
        for (const TensorOption& option : tensor_options) {
            if (views.contains(option.name)) {
                const std::string own = path(std::string(option.name) + ".npy").string();
                io::write_npy(own, views.at(option.name));
                views.erase(option.name);
                flags = flags + Arguments{option.flag, own};
            }
        }
        if (!flags.empty()) {
            io::write_safetensors(file, views);
            expect_as_api(with, Arguments{"--in", file} + flags);
        }
    }
}

TEST_F(CliEveryOption, ComesFromCasesJson)
{
    std::string list;
    int number = 0;
    for (const OptionCase& with : OptionCases::all(9)) {
        if (with.is_forward_only() || with.is_of_programs()) {
            continue; // the first have no gradients, and so no case
        }
        const std::string name = with.option + std::to_string(++number);
        std::string tensors;
        Tensors files = expected_of(with);
        for (const auto& [tensor, view] : with.tensors) {
            files.emplace(tensor, io::HostTensor::copy_of(view.view()));
        }
        for (const auto& [tensor, content] : files) {
            const fs::path file = path("cases") / name / (tensor + ".npy");
            fs::create_directories(file.parent_path());
            io::write_npy(file, std::as_const(content).view());
        }
        for (const TensorOption& option : tensor_options) {
            for (const char* const given : {option.name, option.gradient.name}) {
                if (given != nullptr && files.contains(given)) {
                    tensors += fmt::format(", \"{0}\": \"{0}.npy\"", given);
                }
            }
        }
        list += fmt::format(R"({}{{"name": "{}", "options": {{{}}}{}}})", list.empty() ? "" : ", ", name, with.json,
                            tensors);
    }
    write_text(path("cases") / "cases.json", "{\"cases\": [" + list + "]}");
    const Outcome outcome = run({"check", path("cases").string()});
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find(fmt::format("{} passed, 0 failed, 0 skipped", number)), std::string::npos)
        << outcome.out;
}

/// The line of the table of options that begins with this name; empty where there is none.
std::string documented(const std::string& name)
{
    const std::string text = contents(cases().parent_path().parent_path() / "docs" / "quick_reference.md");
    const std::size_t begin = text.find("\n| `" + name + "`");
    return begin == std::string::npos ? "" : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

TEST(EveryOptionIsDocumented, WithItsFlagAndShape)
{
    for (const TensorOption& option : tensor_options) {
        const std::string line = documented(option.name);
        std::string shape = shape_words(option);
        for (std::size_t at = shape.find('|'); at != std::string::npos; at = shape.find('|', at + 2)) {
            shape.insert(at, "\\"); // in a table
        }
        EXPECT_NE(line.find(fmt::format("`{} FILE`", option.flag)), std::string::npos) << option.name << ": " << line;
        EXPECT_NE(line.find(shape), std::string::npos) << option.name << ", " << shape << ": " << line;
    }
    for (const NumberOption& option : number_options) {
        EXPECT_NE(documented(option.name).find(fmt::format("`{} {}`", option.flag, option.placeholder)),
                  std::string::npos)
            << option.name;
    }
    for (const std::string name : other_options) {
        EXPECT_NE(documented(name).find("--" + name + " "), std::string::npos) << name;
    }
}

} // namespace
} // namespace flashomp::cli_test
