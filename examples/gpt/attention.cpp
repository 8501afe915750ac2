#include "attention.hpp"

#include "attention_flash.hpp"
#include "attention_standard.hpp"

#include "flashomp/version.hpp"

#include <charconv>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpt {

namespace {

flashomp::Device device_of(const std::string& text)
{
    using Kind = flashomp::Device::Kind;
    if (text == "auto") {
        return {};
    }
    if (text == "host") {
        return {Kind::host, 0};
    }
    int index = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, index);
    if (text.empty() || error != std::errc() || stop != end || index < 0) {
        throw flashomp::Error(fmt::format("--device was '{}'; allowed is auto, host or a GPU's number.", text));
    }
    return {Kind::gpu, index};
}

flashomp::Backend backend_of(const std::string& name)
{
    if (name == "openmp") {
        return flashomp::Backend::openmp;
    }
    if (name == "cuda") {
        return flashomp::Backend::cuda;
    }
    return name == "reference" ? flashomp::Backend::reference : flashomp::Backend::automatic;
}

} // namespace

std::vector<std::string> attention_names()
{
    std::vector<std::string> names = {"standard", "flash", "reference"};
    std::istringstream backends(flashomp::build_info().backends); // "openmp,cuda"
    for (std::string name; std::getline(backends, name, ',');) {
        names.push_back(name);
    }
    return names;
}

flashomp::Options library_options(const std::string& name, const std::string& device, int threads)
{
    const std::vector<std::string> names = attention_names();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
        throw flashomp::Error(fmt::format("--attention was '{}'; allowed is one of {}.", name, fmt::join(names, ", ")));
    }
    flashomp::Options options;
    options.device = device_of(device);
    options.backend = backend_of(name);
    options.threads = threads;
    return options;
}

template <class S>
std::unique_ptr<Attention<S>> make_attention(const std::string& name, const flashomp::Options& library)
{
    if (name == "standard") {
        return std::make_unique<StandardAttention<S>>();
    }
    return std::make_unique<FlashAttention<S>>(library);
}

template std::unique_ptr<Attention<float>> make_attention(const std::string&, const flashomp::Options&);
template std::unique_ptr<Attention<bfloat16>> make_attention(const std::string&, const flashomp::Options&);

} // namespace gpt
