// A file that is whole, and on the disk, before it has its name: a crash of the program or of the machine at any moment
// leaves what was there before.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace gpt {

/// Linux gives memory of a disk without a name (O_TMPFILE), which the end of the process takes away, a kill included.
/// On file systems without it the file has a temporary name beside its place, which a kill leaves behind.
class DurableFile {
public:
    /// Throws flashomp::Error where no file can be written there: the sentence begins with `option`, "--save". A link
    /// is followed.
    DurableFile(std::string option, std::filesystem::path path);
    ~DurableFile(); ///< without publish(): nothing is left
    DurableFile(const DurableFile&) = delete;
    DurableFile& operator=(const DurableFile&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; } ///< as it was given

    void write(const void* data, std::size_t bytes);

    /// Waits for the disk and puts the file in its place. Throws flashomp::Error, as write() does, where that fails; a
    /// file of that name is then as it was.
    void publish();

private:
    [[noreturn]] void fail(int reason) const;
    void take_temporary_name();

    std::string option_;
    std::filesystem::path path_, target_, temporary_; ///< given; with links followed; the name until then, or none
    int descriptor_ = -1;
};

} // namespace gpt
