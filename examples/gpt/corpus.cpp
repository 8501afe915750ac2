#include "corpus.hpp"

#include "input_file.hpp"
#include "message.hpp"
#include "printable.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

namespace gpt {

namespace {

namespace fs = std::filesystem;

std::string shown(const fs::path& path)
{
    return flashomp::printable(path.string(), flashomp::longest_shown_path);
}

std::string contents(const fs::path& path)
{
    flashomp::io::InputFile file(path);
    std::string text;
    try {
        text.resize(static_cast<std::size_t>(file.size()));
    } catch (const std::bad_alloc&) {
        flashomp::io::fail(path, "has {} bytes, which do not fit into what this process may have.", file.size());
    } catch (const std::length_error&) {
        flashomp::io::fail(path, "has {} bytes, which do not fit into what this process may have.", file.size());
    }
    file.read(text.data(), file.size());
    return text;
}

/// Regular files below the folder, by name. Links and what is neither file nor folder are left out.
std::vector<fs::path> files_of(const fs::path& folder)
{
    std::vector<fs::path> files;
    std::error_code error;
    fs::recursive_directory_iterator entries(folder, error);
    while (!error && entries != fs::recursive_directory_iterator()) {
        std::error_code ignored; // of an entry that went away meanwhile
        if (fs::is_regular_file(entries->symlink_status(ignored))) {
            files.push_back(entries->path());
        }
        entries.increment(error);
    }
    if (error) {
        throw flashomp::Error(fmt::format("--data was {}, which cannot be read ({}); allowed are files and folders.",
                                          shown(folder), error.message()));
    }
    std::sort(files.begin(), files.end());
    return files;
}

/// The last twentieth, from the beginning of a line, to validation.
void split(const std::string& text, Corpus& corpus)
{
    constexpr std::size_t parts = 20;
    const std::size_t newline = text.find('\n', text.size() - text.size() / parts);
    const std::size_t cut = newline == std::string::npos ? text.size() : newline + 1;
    corpus.train.append(text, 0, cut);
    corpus.validation.append(text, cut);
}

void read_folder(const fs::path& folder, Corpus& corpus)
{
    std::error_code ignored; // what cannot be looked at is not there
    if (fs::exists(folder / "wiki.train.tokens", ignored)) {
        corpus.train += contents(folder / "wiki.train.tokens");
        corpus.validation += contents(folder / "wiki.valid.tokens");
        if (fs::exists(folder / "wiki.test.tokens", ignored)) {
            corpus.test += contents(folder / "wiki.test.tokens");
        }
        return;
    }
    for (const fs::path& file : files_of(folder)) {
        const std::string text = contents(file);
        if (text.find('\0') == std::string::npos) {
            split(text, corpus);
        }
    }
}

} // namespace

Corpus read_corpus(const std::vector<std::string>& paths, std::int64_t limit)
{
    std::vector<std::string> all = paths;
    std::error_code ignored;
    if (all.empty()) {
        if (!fs::exists(default_text, ignored)) {
            throw flashomp::Error(fmt::format("--data was not given, and the default text {} is not there; install the "
                                              "Debian package {}, or name files and folders.",
                                              default_text, default_package));
        }
        all.emplace_back(default_text);
    }
    Corpus corpus;
    for (const std::string& path : all) {
        if (fs::is_directory(path, ignored)) {
            read_folder(path, corpus);
        } else {
            split(contents(path), corpus);
        }
    }
    if (corpus.train.empty()) {
        throw flashomp::Error(fmt::format("--data was {}, which holds no text; at least one file of text is needed.",
                                          shown(all.front())));
    }
    if (limit > 0 && corpus.train.size() > static_cast<std::size_t>(limit)) {
        corpus.train.resize(static_cast<std::size_t>(limit));
    }
    return corpus;
}

std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash)
{
    for (const char byte : bytes) {
        hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3U;
    }
    return hash;
}

} // namespace gpt
