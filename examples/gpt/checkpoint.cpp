#include "checkpoint.hpp"

#include "corpus.hpp"
#include "parameters.hpp"

#include "json_text.hpp"
#include "message.hpp"
#include "safetensors.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace gpt {

namespace {

namespace io = flashomp::io;
using flashomp::ConstTensorView;
using flashomp::DType;

constexpr const char* key = "gpt"; ///< of the file's metadata
constexpr const char* merges_name = "tokens.merges";
constexpr const char* moment1 = "adam.m.";
constexpr const char* moment2 = "adam.v.";

std::map<std::string, ConstTensorView> views_of(const Checkpoint& checkpoint, const Layout& layout)
{
    std::map<std::string, ConstTensorView> views;
    const auto add = [&](const std::string& prefix, const Numbers<float>& values) {
        for (const Place& place : layout.places()) {
            views.emplace(prefix + place.name, ConstTensorView::contiguous(values.data() + place.first, DType::float32,
                                                                           {place.rows, place.columns}));
        }
    };
    add("", checkpoint.weights);
    add(moment1, checkpoint.m);
    add(moment2, checkpoint.v);
    return views;
}

std::uint64_t checksum(const std::map<std::string, ConstTensorView>& views)
{
    std::uint64_t hash = fnv1a("");
    for (const auto& [name, view] : views) {
        const auto bytes = static_cast<std::size_t>(view.elements() * flashomp::size_of(view.dtype));
        hash = fnv1a({static_cast<const char*>(view.data), bytes}, fnv1a(name, hash));
    }
    return hash;
}

/// Copies the file's tensors to their places.
void take(const std::filesystem::path& path, const std::map<std::string, io::HostTensor>& tensors,
          const std::string& prefix, const Layout& layout, Numbers<float>& values)
{
    values.resize(static_cast<std::size_t>(layout.size()));
    for (const Place& place : layout.places()) {
        const auto found = tensors.find(prefix + place.name);
        if (found == tensors.end()) {
            io::fail(path, "has no tensor {}; a checkpoint of its shape has one.", prefix + place.name);
        }
        const io::Shape expected = {place.rows, place.columns};
        const io::HostTensor& tensor = found->second;
        if (tensor.dtype() != DType::float32 || tensor.shape() != expected) {
            io::fail(path, "has {} in {}; with its options that is {}.", prefix + place.name,
                     io::describe(tensor.dtype(), tensor.shape()), io::describe(DType::float32, expected));
        }
        std::copy_n(static_cast<const float*>(tensor.data()), tensor.elements(), values.data() + place.first);
    }
}

} // namespace

void write_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint)
{
    std::map<std::string, ConstTensorView> views = views_of(checkpoint, Layout(checkpoint.options.shape()));
    std::vector<std::int32_t> merges;
    for (const auto& [left, right] : checkpoint.merges) {
        merges.insert(merges.end(), {left, right});
    }
    if (!merges.empty()) {
        views.emplace(merges_name, ConstTensorView::contiguous(merges.data(), DType::int32,
                                                               {static_cast<std::int64_t>(merges.size() / 2), 2}));
    }
    nlohmann::json json;
    json["options"] = to_json(checkpoint.options);
    json["step"] = checkpoint.step;
    json["text"] = checkpoint.text_hash;
    json["checksum"] = checksum(views);
    io::write_safetensors(path, views, {{key, json.dump()}});
}

Checkpoint read_checkpoint(const std::filesystem::path& path)
{
    io::Metadata metadata;
    const std::map<std::string, io::HostTensor> tensors = io::read_safetensors(path, &metadata);
    const auto entry = metadata.find(key);
    if (entry == metadata.end()) {
        io::fail(path, "is no checkpoint of gpt, which has options under '{}' in its metadata.", key);
    }
    Checkpoint checkpoint;
    std::uint64_t expected = 0;
    try {
        constexpr std::size_t deepest = 4;
        const nlohmann::json json = io::parse_json(entry->second, deepest);
        checkpoint.options = options_from_json(json.at("options"));
        json.at("step").get_to(checkpoint.step);
        json.at("text").get_to(checkpoint.text_hash);
        json.at("checksum").get_to(expected);
    } catch (const io::JsonProblem& problem) {
        io::fail(path, "has options that cannot be read: the text {}.", problem.what());
    } catch (const nlohmann::json::exception& problem) {
        io::fail(path, "has options that cannot be read ({}).", problem.what());
    } catch (const flashomp::Error& problem) {
        io::fail(path, "has options that are not allowed: {}", problem.what());
    }
    std::map<std::string, ConstTensorView> views;
    for (const auto& [name, tensor] : tensors) {
        views.emplace(name, tensor.view());
    }
    const Layout layout(checkpoint.options.shape());
    take(path, tensors, "", layout, checkpoint.weights);
    take(path, tensors, moment1, layout, checkpoint.m);
    take(path, tensors, moment2, layout, checkpoint.v);
    if (checksum(views) != expected || checkpoint.step < 0) {
        io::fail(path, "is damaged: its tensors do not have the checksum that it names.");
    }
    if (const auto found = tensors.find(merges_name); found != tensors.end()) {
        const io::HostTensor& tensor = found->second;
        if (tensor.dtype() != DType::int32 || tensor.rank() != 2 || tensor.shape()[1] != 2) {
            io::fail(path, "has {} in {}; that is int32 [merges, 2].", merges_name,
                     io::describe(tensor.dtype(), tensor.shape()));
        }
        const auto* const ids = static_cast<const std::int32_t*>(tensor.data());
        for (std::int64_t i = 0; i < tensor.shape()[0]; ++i) {
            checkpoint.merges.emplace_back(static_cast<Tokens::Id>(ids[2 * i]),
                                           static_cast<Tokens::Id>(ids[2 * i + 1]));
        }
    }
    return checkpoint;
}

void expect_same_shape(const std::filesystem::path& path, const ModelShape& in_file, const ModelShape& shape)
{
    const auto expect = [&](const char* option, Index there, Index given) {
        if (there != given) {
            throw flashomp::Error(fmt::format("{} was {}, but the model in {} has {}; a run goes on with the shape "
                                              "that it has.",
                                              option, given, path.string(), there));
        }
    };
    expect("--vocabulary", in_file.vocabulary, shape.vocabulary);
    expect("--seqlen", in_file.seqlen, shape.seqlen);
    expect("--layers", in_file.layers, shape.layers);
    expect("--heads", in_file.heads, shape.heads);
    expect("--heads-kv", in_file.heads_kv, shape.heads_kv);
    expect("--dim", in_file.dim, shape.dim);
    expect("--alibi", in_file.alibi ? 1 : 0, shape.alibi ? 1 : 0);
}

} // namespace gpt
