#include "checkpoint.hpp"

#include "corpus.hpp"
#include "parameters.hpp"

#include "input_file.hpp"
#include "json_text.hpp"
#include "message.hpp"
#include "printable.hpp"
#include "safetensors_header.hpp"

#include <algorithm>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace gpt {

namespace {

namespace fs = std::filesystem;
namespace io = flashomp::io;
using flashomp::DType;

// Of the file's metadata. The checksum is of the state's text, whatever that holds, and of all tensors.
constexpr const char* state_key = "gpt";
constexpr const char* checksum_key = "gpt.checksum";
constexpr const char* merges_name = "tokens.merges";

/// A tensor of the file and where its numbers are in memory.
struct Part {
    std::string name;
    DType dtype = DType::float32;
    io::Shape shape;
    Numbers<float> Checkpoint::*values = nullptr; ///< none: the merges
    Index first = 0;

    [[nodiscard]] std::int64_t bytes() const { return io::checked_bytes(dtype, shape).value(); }
};

/// The tensors that a checkpoint with these options has, by name.
std::vector<Part> parts_of(const Options& options)
{
    std::vector<Part> parts;
    const Layout layout(options.shape());
    for (const auto& [prefix, values] : {std::pair("", &Checkpoint::weights), std::pair("adam.m.", &Checkpoint::m),
                                         std::pair("adam.v.", &Checkpoint::v)}) {
        for (const Place& place : layout.places()) {
            parts.push_back({prefix + place.name, DType::float32, {place.rows, place.columns}, values, place.first});
        }
    }
    if (options.vocabulary > Tokens::bytes) {
        parts.push_back({merges_name, DType::int32, {options.vocabulary - Tokens::bytes, 2}});
    }
    std::sort(parts.begin(), parts.end(), [](const Part& left, const Part& right) { return left.name < right.name; });
    return parts;
}

/// The numbers of a part: of the checkpoint, or the merges as int32.
template <class AnyCheckpoint, class Merges>
auto* data_of(const Part& part, AnyCheckpoint& checkpoint, Merges& merges)
{
    using Void = std::conditional_t<std::is_const_v<AnyCheckpoint>, const void, void>;
    return part.values != nullptr ? static_cast<Void*>((checkpoint.*part.values).data() + part.first)
                                  : static_cast<Void*>(merges.data());
}

std::string checksum(const std::string& state, const std::vector<Part>& parts, const Checkpoint& checkpoint,
                     const std::vector<std::int32_t>& merges)
{
    std::uint64_t hash = fnv1a(state);
    for (const Part& part : parts) {
        const auto* const data = static_cast<const char*>(data_of(part, checkpoint, merges));
        hash = fnv1a({data, static_cast<std::size_t>(part.bytes())}, fnv1a(part.name, hash));
    }
    return fmt::format("{:016x}", hash);
}

std::string state_text(const Checkpoint& checkpoint)
{
    const nlohmann::json state = {
        {"options", to_json(checkpoint.options)}, {"step", checkpoint.step}, {"text", checkpoint.text_hash}};
    return state.dump();
}

/// The other way round.
void take_state(const fs::path& path, const std::string& text, Checkpoint& checkpoint)
{
    try {
        constexpr std::size_t deepest = 4;
        const nlohmann::json state = io::parse_json(text, deepest);
        if (!state.is_object() || !state.contains("options")) {
            throw flashomp::Error("options are missing");
        }
        checkpoint.options = options_from_json(state.at("options"));
        checkpoint.step = whole_number(state, "step");
        checkpoint.text_hash = natural_number(state, "text");
        if (checkpoint.step < 0) {
            throw flashomp::Error(fmt::format("step is {}; allowed is 0 and more", checkpoint.step));
        }
    } catch (const io::JsonProblem& problem) {
        io::fail(path, "has options that cannot be read: the text {}.", problem.what());
    } catch (const flashomp::Error& problem) {
        std::string what = problem.what();
        what.erase(what.find_last_not_of('.') + 1);
        io::fail(path, "has options that are not allowed: {}.", what);
    }
}

/// Throws unless the header names these tensors and no others.
void expect_parts(const fs::path& path, const io::SafetensorsHeader& header, const std::vector<Part>& parts)
{
    std::map<std::string_view, const io::SafetensorsEntry*> there;
    for (const io::SafetensorsEntry& entry : header.entries) {
        there.emplace(entry.name, &entry);
    }
    for (const Part& part : parts) {
        const auto found = there.find(part.name);
        if (found == there.end()) {
            io::fail(path, "has no tensor {}; with its options it needs one.", part.name);
        }
        if (found->second->dtype != part.dtype || found->second->shape != part.shape) {
            io::fail(path, "has {} in {}; with its options that is {}.", part.name,
                     io::describe(found->second->dtype, found->second->shape), io::describe(part.dtype, part.shape));
        }
        there.erase(found);
    }
    if (!there.empty()) {
        io::fail(path, "has a tensor {}; with its options it needs none.", io::in_quotes(there.begin()->first));
    }
}

void take_merges(const fs::path& path, const std::vector<std::int32_t>& ids, Checkpoint& checkpoint)
{
    for (std::size_t i = 0; i + 1 < ids.size(); i += 2) {
        const auto [least, most] = std::minmax(ids[i], ids[i + 1]);
        if (least < 0 || most >= Tokens::most) {
            io::fail(path, "joins tokens {} and {} in {}; there are {} at most.", ids[i], ids[i + 1], merges_name,
                     Tokens::most);
        }
        checkpoint.merges.emplace_back(static_cast<Tokens::Id>(ids[i]), static_cast<Tokens::Id>(ids[i + 1]));
    }
    try {
        static_cast<void>(Tokens(checkpoint.merges));
    } catch (const flashomp::Error& problem) {
        io::fail(path, "has merges that cannot be: {}", problem.what());
    }
}

} // namespace

void write_checkpoint(DurableFile& file, const Checkpoint& checkpoint)
{
    const std::vector<Part> parts = parts_of(checkpoint.options);
    std::vector<std::int32_t> merges;
    for (const auto& [left, right] : checkpoint.merges) {
        merges.insert(merges.end(), {left, right});
    }
    const std::string state = state_text(checkpoint);
    io::SafetensorsHeader header{{}, {{state_key, state}, {checksum_key, checksum(state, parts, checkpoint, merges)}}};
    std::int64_t position = 0;
    for (const Part& part : parts) { // every type has 4 bytes: each tensor is aligned behind the one before it
        header.entries.push_back({part.name, part.dtype, part.shape, position, position + part.bytes()});
        position += part.bytes();
    }
    const std::string text = io::safetensors_header_text(header, file.path());
    file.write(text.data(), text.size());
    for (const Part& part : parts) {
        file.write(data_of(part, checkpoint, merges), static_cast<std::size_t>(part.bytes()));
    }
    file.publish();
}

Checkpoint read_checkpoint(const fs::path& path)
{
    io::InputFile file(path);
    const io::SafetensorsHeader header = io::read_safetensors_header(file);
    const auto state = header.metadata.find(state_key);
    const auto expected = header.metadata.find(checksum_key);
    if (state == header.metadata.end() || expected == header.metadata.end()) {
        io::fail(path, "is no checkpoint of gpt, which has '{}' and '{}' in its metadata.", state_key, checksum_key);
    }
    Checkpoint checkpoint;
    take_state(path, state->second, checkpoint);
    const std::vector<Part> parts = parts_of(checkpoint.options);
    expect_parts(path, header, parts);
    std::vector<std::int32_t> merges;
    try {
        const auto size = static_cast<std::size_t>(Layout(checkpoint.options.shape()).size());
        for (Numbers<float>* const values : {&checkpoint.weights, &checkpoint.m, &checkpoint.v}) {
            values->resize(size);
        }
        merges.resize(2 * static_cast<std::size_t>(checkpoint.options.vocabulary - Tokens::bytes));
    } catch (const std::bad_alloc&) {
        io::fail(path, "has {} bytes, which do not fit into what this process may have.", file.size());
    } catch (const std::length_error&) {
        io::fail(path, "has {} bytes, which do not fit into what this process may have.", file.size());
    }
    for (const io::SafetensorsEntry& entry : header.entries) { // in the order of their bytes
        const auto part = std::lower_bound(parts.begin(), parts.end(), entry.name,
                                           [](const Part& each, const std::string& name) { return each.name < name; });
        file.read(data_of(*part, checkpoint, merges), part->bytes());
    }
    if (checksum(state->second, parts, checkpoint, merges) != expected->second) {
        io::fail(path, "is damaged: its options, step and tensors do not have the checksum that it names.");
    }
    take_merges(path, merges, checkpoint);
    return checkpoint;
}

void expect_same_shape(const fs::path& path, const ModelShape& in_file, const ModelShape& shape)
{
    const auto expect = [&](const char* option, auto there, auto given) {
        if (there != given) {
            throw flashomp::Error(fmt::format("{} was {}, but the model in {} has {}; a run goes on with the shape "
                                              "that it has.",
                                              option, given,
                                              flashomp::printable(path.string(), flashomp::longest_shown_path), there));
        }
    };
    expect("--vocabulary", in_file.vocabulary, shape.vocabulary);
    expect("--seqlen", in_file.seqlen, shape.seqlen);
    expect("--layers", in_file.layers, shape.layers);
    expect("--heads", in_file.heads, shape.heads);
    expect("--heads-kv", in_file.heads_kv, shape.heads_kv);
    expect("--dim", in_file.dim, shape.dim);
    expect("--alibi", in_file.alibi, shape.alibi);
    expect("--hashed-ngrams", in_file.ngrams, shape.ngrams);
    expect("--hash-rows", in_file.hash_rows, shape.hash_rows);
}

} // namespace gpt
