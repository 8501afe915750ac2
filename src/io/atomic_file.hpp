// Output files that appear whole or not at all: written under a temporary name beside the target, then renamed.
//
// A process killed by a signal can leave a temporary (".flashomp-<process>-<number>.tmp") behind, never half a target.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace flashomp::io {

/// One output file that is not there yet. Destroying it before publish() removes every trace of it.
///
/// A target that is a symbolic link is followed. Every failure throws Error with a sentence that names the target.
class StagedFile {
public:
    /// Creates the temporary. Throws Error when the target's folder does not exist or cannot be written, or when the
    /// target exists and is not a regular file (so /dev/null is never replaced).
    explicit StagedFile(const std::filesystem::path& target);
    ~StagedFile();
    StagedFile(const StagedFile&) = delete;
    StagedFile& operator=(const StagedFile&) = delete;

    /// The target as the caller spelled it, for messages.
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

    /// Appends bytes.
    void write(const void* data, std::int64_t bytes);

    /// Ends the writing; errors that the system reports late come out here.
    void close();

    /// Closes the file if it is still open and puts it in the target's place in one step.
    void publish();

private:
    std::filesystem::path path_;
    std::filesystem::path target_; ///< absolute, symbolic links followed
    std::filesystem::path temporary_;
    int descriptor_ = -1;
};

/// Several output files, all or nothing.
class OutputSet {
public:
    using Writer = std::function<void(StagedFile&)>;

    /// Plans one file; `writer` fills it in commit(), and what it refers to must live until then.
    /// Throws Error when the same file was planned before.
    void add(const std::filesystem::path& path, Writer writer);

    /// Writes every file under a temporary name, then renames all of them. On any failure, the writers' own
    /// exceptions included, it removes the temporaries, puts back what was already replaced and rethrows: every
    /// target is as it was before. Afterwards the set is empty.
    void commit();

private:
    struct Output {
        std::filesystem::path path;
        std::filesystem::path target;
        Writer writer;
    };
    std::vector<Output> outputs_;
};

} // namespace flashomp::io
