#include "attention_inputs.hpp"

#include "flashomp/error.hpp"

#include "message.hpp"
#include "npy.hpp"
#include "option_list.hpp"
#include "printable.hpp"
#include "quantized.hpp"
#include "safetensors.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace flashomp::cli {

namespace {

constexpr std::size_t longest_shown_name = 60;
constexpr std::size_t most_shown_names = 8;

bool is_floating(DType dtype)
{
    return dtype == DType::float8_e4m3 || dtype == DType::float16 || dtype == DType::bfloat16 ||
           dtype == DType::float32 || dtype == DType::float64;
}

/// The tensors that share one dtype and the axis order of --layout.
bool is_main(const std::string& name)
{
    return name == "q" || name == "k" || name == "v" || name == "do" || name == "o";
}

/// Whether an option's tensor has to be float32. `has_dtype_of_q`: it has the dtype of q now.
bool is_float32_option(const std::string& name, bool has_dtype_of_q)
{
    return std::any_of(tensor_options.begin(), tensor_options.end(), [&](const TensorOption& option) {
        return name == option.name && option.dtype == DType::float32 && !option.is_float8_only &&
               !(option.may_have_dtype_of_q && has_dtype_of_q);
    });
}

} // namespace

InputFiles input_files(const AttentionFlags& flags, bool backward)
{
    InputFiles files;
    files.npy.insert(flags.files.begin(), flags.files.end());
    files.safetensors = flags.in;
    files.layout = flags.layout;
    files.dtype = flags.run.dtype;
    files.backward = backward;
    return files;
}

AttentionInputs::AttentionInputs(const InputFiles& files) : layout_(files.layout)
{
    read(files);
    require(files.backward ? std::vector<std::string>{"q", "k", "v", "do"} : std::vector<std::string>{"q", "k", "v"});
    convert(files.dtype);
}

void AttentionInputs::read(const InputFiles& files)
{
    if (!files.safetensors.empty()) {
        files_.push_back(files.safetensors);
        std::vector<std::string> unused;
        for (auto& [name, tensor] : io::read_safetensors(files.safetensors)) {
            const std::string wanted = name;
            const std::vector<InputTensor>& known = input_tensors();
            const bool used = std::any_of(known.begin(), known.end(), [&](const InputTensor& option) {
                return wanted == option.name && (files.backward || !option.backward_only);
            });
            if (used) {
                tensors_[name] = std::move(tensor);
                expect_axes(name, files.safetensors);
            } else {
                unused.push_back(printable(name, longest_shown_name));
            }
        }
        if (!unused.empty()) {
            const std::size_t shown = std::min(unused.size(), most_shown_names);
            notes_.push_back(
                fmt::format("{} also holds {}{}, which this command does not read", files.safetensors.string(),
                            fmt::join(unused.begin(), unused.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                            shown < unused.size() ? fmt::format(" and {} more", unused.size() - shown) : ""));
        }
    }
    for (const auto& [name, path] : files.npy) {
        if (tensors_.contains(name)) {
            throw Error(fmt::format("{} was given as {} and is also in {}; a tensor comes from one place only.", name,
                                    path.string(), files.safetensors.string()));
        }
        files_.push_back(path);
        tensors_[name] = io::read_npy(path, {.u2_is_bfloat16 = true});
        expect_axes(name, path);
    }
}

void AttentionInputs::expect_axes(const std::string& name, const std::filesystem::path& path) const
{
    if (tensors_.at(name).rank() > 0) {
        return;
    }
    const std::vector<InputTensor>& all = input_tensors();
    const auto option = std::find_if(all.begin(), all.end(), [&](const InputTensor& one) { return name == one.name; });
    io::fail(path, "holds {} as one number without axes (shape ()); needed are {}.", name,
             option == all.end() ? "axes" : option->help);
}

void AttentionInputs::require(const std::vector<std::string>& names) const
{
    for (const std::string& name : names) {
        if (!tensors_.contains(name)) {
            throw Error(fmt::format("{0} was not given; {1} FILE.npy or a tensor named {0} in --in FILE.safetensors is "
                                    "needed.",
                                    name, flag_of(name)));
        }
    }
}

void AttentionInputs::quantize()
{
    for (const std::string name : {"q", "k", "v"}) {
        io::HostTensor& tensor = tensors_.at(name);
        if (tensor.dtype() == DType::float8_e4m3) {
            continue;
        }
        const std::string scale = name + "_scale";
        if (tensors_.contains(scale)) {
            throw Error(
                fmt::format("{} was given, but {} is {}; allowed are scales with float8_e4m3 tensors, others get "
                            "theirs when they are converted.",
                            scale, name, name_of(tensor.dtype())));
        }
        io::Quantized result = io::quantized(tensor, layout_ == Layout::bshd ? 2 : 1);
        tensor = std::move(result.elements);
        tensors_[scale] = std::move(result.scale);
    }
}

void AttentionInputs::convert(std::optional<DType> dtype)
{
    if (dtype == DType::float8_e4m3) {
        quantize();
    }
    // The dtype of the computation, from q where the user names none. Types that no conversion can help are left for
    // the library to refuse.
    const DType q_dtype = tensors_.at("q").dtype();
    const DType compute = dtype.value_or(q_dtype == DType::float64 ? DType::float32 : q_dtype);
    std::vector<std::string> silently_narrowed;
    for (auto& [name, tensor] : tensors_) {
        const DType from = tensor.dtype();
        DType to = from;
        if (is_main(name)) {
            to = dtype.value_or(from == DType::float64 ? DType::float32 : from);
        } else if (is_float32_option(name, from == compute) || (name == "lse" && from == DType::float64)) {
            to = DType::float32;
        }
        const bool is_of_cache = from == DType::float8_e4m3 && (name == "k" || name == "v") && q_dtype != from;
        if (from == to || !is_floating(from) || is_of_cache) { // whose scales would be lost
            continue;
        }
        tensor = io::converted(tensor, to);
        if (from == DType::float64 && !(is_main(name) && dtype)) {
            silently_narrowed.push_back(name);
        }
    }
    if (!silently_narrowed.empty()) {
        notes_.push_back(fmt::format("converted from float64 to float32: {}", fmt::join(silently_narrowed, ", ")));
    }
}

ConstTensorView AttentionInputs::view(const std::string& name) const
{
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
        return {};
    }
    return is_main(name) ? in_layout(found->second.view(), layout_) : found->second.view();
}

Options AttentionInputs::with_tensors(Options options) const
{
    for (const TensorOption& option : tensor_options) {
        options.*option.member = view(option.name);
    }
    return options;
}

} // namespace flashomp::cli
