#include "safetensors_header.hpp"

#include "json_text.hpp"
#include "message.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

namespace flashomp::io {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::uint64_t longest_header = 100'000'000;
constexpr std::size_t alignment = 8;
constexpr std::string_view metadata_key = "__metadata__";

struct TypeName {
    std::string_view name;
    DType dtype;
};

constexpr std::array type_names{
    TypeName{"F8_E4M3", DType::float8_e4m3}, TypeName{"F16", DType::float16},  TypeName{"BF16", DType::bfloat16},
    TypeName{"F32", DType::float32},         TypeName{"F64", DType::float64},  TypeName{"I32", DType::int32},
    TypeName{"I64", DType::int64},           TypeName{"BOOL", DType::boolean}, TypeName{"I8", DType::int8},
};

/// The reading half. Its members share the path, which every message begins with.
class HeaderParser {
public:
    HeaderParser(std::filesystem::path path, std::int64_t data_bytes) : path_(std::move(path)), data_bytes_(data_bytes)
    {
    }

    [[nodiscard]] SafetensorsHeader parse(const std::string& text) const
    {
        SafetensorsHeader header;
        for_each_member(text, [&](const std::string& name, const json& value) {
            if (name == metadata_key) {
                header.metadata = metadata(value);
            } else {
                header.entries.push_back(entry(name, value));
            }
        });
        std::sort(header.entries.begin(), header.entries.end(), [](const auto& left, const auto& right) {
            return std::tie(left.begin, left.end) < std::tie(right.begin, right.end);
        });
        check_coverage(header.entries);
        return header;
    }

private:
    /// Hands out the members of the JSON object in `text`.
    void for_each_member(const std::string& text, const OnMember& on_member) const
    {
        if (!text.starts_with('{')) {
            fail(path_, "has a header that does not begin with \"{{\"; only safetensors files are allowed.");
        }
        if (text.find_last_not_of(' ') != text.rfind('}')) {
            fail(path_,
                 "has a header that does not end with \"}}\" and padding spaces; the format allows no other end.");
        }
        try {
            constexpr std::size_t deepest = 3; // the header, a tensor, its shape
            static_cast<void>(parse_json(text, deepest, on_member));
        } catch (const JsonProblem& problem) {
            fail(path_, "has a header that {}; one JSON object as the format describes is needed.", problem.what());
        }
    }

    [[nodiscard]] Metadata metadata(const json& value) const
    {
        const bool strings =
            value.is_object() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
        if (!strings) {
            fail(path_, "has a {} that is not an object of strings; nothing else is allowed.", metadata_key);
        }
        return value.get<Metadata>();
    }

    [[nodiscard]] SafetensorsEntry entry(const std::string& name, const json& value) const
    {
        constexpr std::size_t fields = 3;
        const std::string shown = in_quotes(name);
        if (!value.is_object() || value.size() != fields || !value.contains("dtype") || !value.contains("shape") ||
            !value.contains("data_offsets")) {
            fail(path_,
                 "describes the tensor {} in another way than the format's; dtype, shape and data_offsets are "
                 "needed and nothing else is allowed.",
                 shown);
        }
        SafetensorsEntry entry;
        entry.name = name;
        entry.dtype = dtype(shown, value.at("dtype"));
        entry.shape = numbers(shown, "shape", value.at("shape"));
        const Shape offsets = numbers(shown, "data_offsets", value.at("data_offsets"));
        if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes_) {
            constexpr std::ptrdiff_t most_shown = 4;
            const auto count = static_cast<std::ptrdiff_t>(offsets.size());
            fail(path_,
                 "gives the tensor {} the data_offsets [{}{}]; a begin and an end within its {} bytes of data are "
                 "needed.",
                 shown, joined({offsets.begin(), offsets.begin() + std::min(count, most_shown)}),
                 count > most_shown ? ", ..." : "", data_bytes_);
        }
        entry.begin = offsets[0];
        entry.end = offsets[1];
        check_size(shown, entry);
        return entry;
    }

    [[nodiscard]] DType dtype(const std::string& shown, const json& value) const
    {
        const std::string text = value.is_string() ? value.get<std::string>() : value.type_name();
        const auto* const found =
            std::find_if(type_names.begin(), type_names.end(), [&](const TypeName& each) { return each.name == text; });
        if (!value.is_string() || found == type_names.end()) {
            fail(path_,
                 "gives the tensor {} the dtype {}; F8_E4M3, F16, BF16, F32, F64, I8, I32, I64 and BOOL are allowed.",
                 shown, in_quotes(text));
        }
        return found->dtype;
    }

    [[nodiscard]] Shape numbers(const std::string& shown, std::string_view field, const json& value) const
    {
        constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
        const bool valid = value.is_array() && std::all_of(value.begin(), value.end(), [](const json& number) {
                               return number.is_number_unsigned() && number.get<std::uint64_t>() <= largest;
                           });
        if (!valid) {
            fail(path_,
                 "gives the tensor {} a {} that is not an array of integers from 0 to 2^63 - 1; nothing else is "
                 "allowed.",
                 shown, field);
        }
        return value.get<Shape>();
    }

    void check_size(const std::string& shown, const SafetensorsEntry& entry) const
    {
        if (entry.shape.size() > ConstTensorView::max_rank) {
            fail(path_, "gives the tensor {} {} axes; at most {} are allowed.", shown, entry.shape.size(),
                 ConstTensorView::max_rank);
        }
        const auto needed = checked_bytes(entry.dtype, entry.shape);
        if (!needed || *needed != entry.end - entry.begin) {
            fail(path_, "gives the tensor {} ({}) {} bytes of data where its shape needs {}; the two must agree.",
                 shown, describe(entry.dtype, entry.shape), entry.end - entry.begin,
                 needed ? fmt::format("{}", *needed) : "more than 2^63 - 1");
        }
        if (entry.begin % size_of(entry.dtype) != 0) {
            fail(path_, "begins the tensor {} at byte {} of the data; {} needs a multiple of {}.", shown, entry.begin,
                 name_of(entry.dtype), size_of(entry.dtype));
        }
    }

    /// `entries` are sorted.
    void check_coverage(const std::vector<SafetensorsEntry>& entries) const
    {
        std::int64_t covered = 0;
        for (const SafetensorsEntry& entry : entries) {
            if (entry.begin != covered) {
                fail(path_,
                     "begins the tensor {} at byte {} of the data but the one before it ends at {}; gaps and "
                     "overlaps are not allowed.",
                     in_quotes(entry.name), entry.begin, covered);
            }
            covered = entry.end;
        }
        if (covered != data_bytes_) {
            fail(path_, "holds {} bytes of data but its tensors need {}; the file must match its header exactly.",
                 data_bytes_, covered);
        }
    }

    std::filesystem::path path_;
    std::int64_t data_bytes_;
};

} // namespace

SafetensorsHeader read_safetensors_header(InputFile& file)
{
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t length = 0;
    if (file.remaining() < static_cast<std::int64_t>(sizeof(length))) {
        fail(file.path(), "has {} bytes, too few for a safetensors file; its header's length alone takes 8.",
             file.size());
    }
    file.read(&length, sizeof(length));
    if (length > longest_header) {
        fail(file.path(), "gives its header {} bytes; at most {} are allowed.", length, longest_header);
    }
    const auto text_bytes = static_cast<std::int64_t>(length);
    if (text_bytes > file.remaining()) {
        fail(file.path(), "gives its header {} bytes but ends after {} of them; the file is cut short.", length,
             file.remaining());
    }
    std::string text(length, '\0');
    file.read(text.data(), text_bytes);
    return HeaderParser(file.path(), file.remaining()).parse(text);
}

std::string safetensors_header_text(const SafetensorsHeader& header, const std::filesystem::path& path)
{
    ordered_json root = ordered_json::object();
    if (!header.metadata.empty()) {
        root[std::string(metadata_key)] = header.metadata;
    }
    for (const SafetensorsEntry& entry : header.entries) {
        if (entry.name == metadata_key) {
            fail(path, "a tensor to write is called {}; the format keeps that name for itself.", metadata_key);
        }
        const auto* const type = std::find_if(type_names.begin(), type_names.end(),
                                              [&](const TypeName& each) { return each.dtype == entry.dtype; });
        root[entry.name] = {{"dtype", type->name}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
    }
    std::string text;
    try {
        text = root.dump();
    } catch (const ordered_json::type_error&) {
        fail(path, "a name or metadata string to write is not valid UTF-8; only UTF-8 is allowed.");
    }
    text.append((alignment - text.size() % alignment) % alignment, ' ');
    const std::uint64_t length = text.size();
    std::string result(sizeof(length), '\0');
    std::memcpy(result.data(), &length, sizeof(length));
    return result + text;
}

} // namespace flashomp::io
