// The text that a model is trained on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpt {

/// The default text: the quotations of the Debian package fortunes, 2.5 MB of English, whose files are under the BSD
/// licence of the package (/usr/share/doc/fortunes/copyright).
inline constexpr const char* default_text = "/usr/share/games/fortunes";
inline constexpr const char* default_package = "fortunes";

struct Corpus {
    std::string train, validation;
    std::string test; ///< of WikiText alone
};

/// Reads files and folders; nothing given is the default text. Of a folder with wiki.train.tokens those three files of
/// WikiText are read as they are. Of any other folder all files are, by name, but for links and for files with a zero
/// byte, which are no text; and the last twentieth of each file, from the beginning of a line, is for validation.
/// At most `limit` bytes are for training; 0 is no limit. Throws flashomp::Error for an empty text and for what cannot
/// be read.
[[nodiscard]] Corpus read_corpus(const std::vector<std::string>& paths, std::int64_t limit);

/// FNV-1a (Fowler, Noll and Vo), 64 bits, over more bytes: tells texts and checkpoints apart.
[[nodiscard]] std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = 0xCBF29CE484222325U);

} // namespace gpt
