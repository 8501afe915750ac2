#include "file.hpp"

#include "words.hpp"

#include "atomic_file.hpp"
#include "message.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

namespace flashomp::tuning {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr int format_version = 1;
constexpr const char* version_name = "flashomp_tuning";
constexpr std::size_t most_tables = 64; ///< of a file: builds come and go, and the oldest give way

Json entry_json(const ShapeClass& shape, const Entry& entry)
{
    const Tiling& tiling = entry.choice.tiling;
    return {{"backend", word_of(shape.backend)},
            {"direction", word_of(shape.is_backward)},
            {"dtype", word_of(shape.dtype)},
            {"head_dim", shape.depth},
            {"mask", word_of(shape.mask)},
            {"modified", shape.is_modified},
            {"packed", shape.is_packed},
            {"seqlen_q", shape.seqlen_q},
            {"seqlen_k", shape.seqlen_k},
            {"query_heads", shape.query_heads},
            {"key_heads", shape.key_heads},
            {"machine", word_of(entry.choice.machine)},
            {"resident_rows", tiling.resident_rows},
            {"stream_rows", tiling.stream_rows},
            {"teams", tiling.teams},
            {"team_threads", tiling.team_threads},
            {"global_memory", tiling.global_memory},
            {"measured", entry.shape},
            {"ran_as", entry.machine},
            {"milliseconds", entry.seconds * 1e3},
            {"automatic_milliseconds", entry.automatic_seconds * 1e3}};
}

template <class Value>
Value word_at(const Json& json, const char* name)
{
    const auto& word = json.at(name).get_ref<const std::string&>();
    const auto value = value_of<Value>(word);
    if (!value) {
        throw Error(std::string(name) + " is " + io::in_quotes(word));
    }
    return *value;
}

/// A size, or 0. Not more than anybody stores: a call must not fail for want of the memory that a table asks for.
int size_at(const Json& json, const char* name, int most)
{
    const int value = json.at(name).get<int>();
    if (value < 0 || value > most) {
        throw Error(std::string(name) + " is " + std::to_string(value));
    }
    return value;
}

std::pair<ShapeClass, Entry> parse_entry(const Json& json)
{
    ShapeClass shape;
    shape.backend = word_at<Backend>(json, "backend");
    shape.is_backward = word_at<bool>(json, "direction");
    shape.dtype = word_at<DType>(json, "dtype");
    shape.depth = size_at(json, "head_dim", 256);
    shape.mask = word_at<Mask>(json, "mask");
    shape.is_modified = json.at("modified").get<bool>();
    shape.is_packed = json.at("packed").get<bool>();
    shape.seqlen_q = json.at("seqlen_q").get<std::int64_t>();
    shape.seqlen_k = json.at("seqlen_k").get<std::int64_t>();
    shape.query_heads = json.at("query_heads").get<std::int64_t>();
    shape.key_heads = json.at("key_heads").get<std::int64_t>();
    Entry entry;
    entry.choice.machine = word_at<Machine>(json, "machine");
    Tiling& tiling = entry.choice.tiling;
    constexpr int most_rows = 1024, most_teams = 1024, most_threads = 32;
    tiling.resident_rows = size_at(json, "resident_rows", most_rows);
    tiling.stream_rows = size_at(json, "stream_rows", most_rows);
    tiling.teams = size_at(json, "teams", most_teams);
    tiling.team_threads = size_at(json, "team_threads", most_threads);
    tiling.global_memory = json.at("global_memory").get<bool>();
    entry.shape = json.at("measured").get<std::string>();
    entry.machine = json.at("ran_as").get<std::string>();
    entry.seconds = json.at("milliseconds").get<double>() * 1e-3;
    entry.automatic_seconds = json.at("automatic_milliseconds").get<double>() * 1e-3;
    return {shape, entry};
}

/// Keeps others from changing files of a folder in this way for as long as it lives, where the file system can.
class FolderLock {
public:
    explicit FolderLock(const fs::path& folder) : descriptor_(::open(folder.c_str(), O_RDONLY | O_CLOEXEC))
    {
        while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
        }
    }
    ~FolderLock()
    {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
    }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    int descriptor_;
};

} // namespace

std::string json_text(const std::vector<Table>& tables)
{
    Json list = Json::array();
    for (const Table& table : tables) {
        Json entries = Json::array();
        for (const auto& [shape, entry] : table.entries) {
            entries.push_back(entry_json(shape, entry));
        }
        list.push_back({{"device", table.key.device},
                        {"driver", table.key.driver},
                        {"build", table.key.build},
                        {"entries", std::move(entries)}});
    }
    const Json file{{version_name, format_version}, {"tables", std::move(list)}};
    return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<Table> parse_tables(std::string_view text, const fs::path& name)
{
    try {
        const Json file = Json::parse(text);
        if (const int version = file.at(version_name).get<int>(); version != format_version) {
            throw Error(std::string(version_name) + " is " + std::to_string(version));
        }
        std::vector<Table> tables;
        for (const Json& json : file.at("tables")) {
            Table& table = tables.emplace_back();
            table.key = {json.at("device").get<std::string>(), json.at("driver").get<std::string>(),
                         json.at("build").get<std::string>()};
            for (const Json& entry : json.at("entries")) {
                table.entries.insert(parse_entry(entry));
            }
        }
        return tables;
    } catch (const Json::exception&) {
        io::fail(name, "is not a tuning table; a file that `flashomp tune` wrote is needed.");
    } catch (const Error& error) {
        io::fail(name, "is not a tuning table of this version ({}); one that this `flashomp tune` wrote is needed.",
                 error.what());
    }
}

std::vector<Table> read_tables(const fs::path& file)
{
    std::error_code error;
    const fs::file_status status = fs::status(file, error);
    if (status.type() == fs::file_type::not_found) {
        return {};
    }
    std::ifstream stream;
    if (!error && status.type() == fs::file_type::regular) { // to open a FIFO would be to wait for its writer
        stream.open(file, std::ios::binary);
    }
    if (!stream.is_open()) {
        io::fail(file, "cannot be read; a tuning table is a regular file that its user can read.");
    }
    const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    return parse_tables(text, file);
}

void merge(std::vector<Table>& tables, const Table& found)
{
    Table merged{found.key, {}};
    const auto same = std::find_if(tables.begin(), tables.end(), [&](const Table& t) { return t.key == found.key; });
    if (same != tables.end()) {
        merged = std::move(*same);
        tables.erase(same);
    }
    for (const auto& [shape, entry] : found.entries) {
        merged.entries.insert_or_assign(shape, entry);
    }
    tables.push_back(std::move(merged)); // the newest last
}

void expect_storable(const fs::path& file)
{
    static_cast<void>(read_tables(file));
    std::error_code error;
    fs::create_directories(fs::absolute(file).parent_path(), error); // where it fails, StagedFile says so
    const io::StagedFile probe(file);
}

void store(const fs::path& file, const Table& found)
{
    expect_storable(file);
    const FolderLock lock(fs::absolute(file).parent_path());
    std::vector<Table> tables = read_tables(file);
    merge(tables, found);
    while (tables.size() > most_tables) {
        tables.erase(tables.begin());
    }
    const std::string text = json_text(tables);
    io::StagedFile staged(file);
    staged.write(text.data(), static_cast<std::int64_t>(text.size()));
    staged.publish();
}

} // namespace flashomp::tuning
