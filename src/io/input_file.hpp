// A regular file being read from front to back, whose size is known before anything of it is believed.
#pragma once

#include <cstdint>
#include <filesystem>

namespace flashomp::io {

/// Opens a regular file and remembers its size. Every failure throws Error with a sentence that names the file.
class InputFile {
public:
    /// Throws Error when the file does not exist, may not be read or is not a regular file.
    explicit InputFile(const std::filesystem::path& path);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

    /// Bytes of the whole file.
    [[nodiscard]] std::int64_t size() const { return size_; }

    /// Bytes not read yet.
    [[nodiscard]] std::int64_t remaining() const { return size_ - position_; }

    /// Reads the next `bytes` bytes to `target`. The caller has compared `bytes` with remaining() and worded what a
    /// short file means; this throws Error when the system fails or the file shrank in the meantime.
    void read(void* target, std::int64_t bytes);

private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    std::int64_t size_ = 0;
    std::int64_t position_ = 0;
};

} // namespace flashomp::io
