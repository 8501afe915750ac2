#include "durable_file.hpp"

#include "paths.hpp"

#include "message.hpp"
#include "printable.hpp"

#include "flashomp/error.hpp"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpt {

namespace {

namespace fs = std::filesystem;

constexpr mode_t all_that_umask_leaves = 0666;

/// A name beside `target`, the same for every call: a process writes one file at a time to a place.
fs::path name_beside(const fs::path& target)
{
    return target.parent_path() / fmt::format(".gpt-{}.tmp", ::getpid());
}

int open_unnamed(const fs::path& folder)
{
    if (::access("/proc/self/fd", X_OK) != 0) { // where publish() finds the file
        return -1;
    }
    return ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, all_that_umask_leaves);
}

} // namespace

DurableFile::DurableFile(std::string option, fs::path path)
    : option_(std::move(option)), path_(std::move(path)), target_(real_path(path_))
{
    struct stat replaced = {};
    const bool is_there = ::stat(path_.c_str(), &replaced) == 0;
    if (const int reason = is_there ? 0 : errno; target_.empty() || (reason != 0 && reason != ENOENT)) {
        fail(is_there ? EISDIR : reason); // "/" has no name; a name that is too long is known here, not by the folder
    }
    if (is_there && !S_ISREG(replaced.st_mode)) {
        throw flashomp::Error(
            fmt::format("{} was {}, which is no regular file; allowed is a new file, or a regular one to be replaced.",
                        option_, flashomp::printable(path_.string(), flashomp::longest_shown_path)));
    }
    descriptor_ = open_unnamed(target_.parent_path());
    if (descriptor_ < 0) {
        temporary_ = name_beside(target_);
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, all_that_umask_leaves);
        if (descriptor_ < 0) {
            const int reason = errno;
            temporary_.clear();
            fail(reason);
        }
    }
    if (is_there) { // a private file stays private
        static_cast<void>(::fchmod(descriptor_, replaced.st_mode & 0777));
    }
}

DurableFile::~DurableFile()
{
    if (descriptor_ >= 0) {
        ::close(descriptor_);
    }
    if (!temporary_.empty()) {
        ::unlink(temporary_.c_str());
    }
}

void DurableFile::fail(int reason) const
{
    throw flashomp::Error(
        fmt::format("{} was {}, which cannot be written ({}); a file in a folder that is there and has "
                    "room is needed, and one of that name is as it was.",
                    option_, flashomp::printable(path_.string(), flashomp::longest_shown_path),
                    flashomp::io::system_words(reason)));
}

void DurableFile::write(const void* data, std::size_t bytes)
{
    const auto* next = static_cast<const char*>(data);
    while (bytes > 0) {
        const ::ssize_t written = ::write(descriptor_, next, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            fail(errno);
        }
        next += written;
        bytes -= static_cast<std::size_t>(written);
    }
}

void DurableFile::take_temporary_name()
{
    if (!temporary_.empty()) {
        return;
    }
    const fs::path name = name_beside(target_);
    const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
    ::unlink(name.c_str()); // of a killed process that had this number
    if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
        fail(errno);
    }
    temporary_ = name;
}

void DurableFile::publish()
{
    // The bytes first and the name after them: a machine that stops in between has the old file.
    if (::fsync(descriptor_) != 0) {
        fail(errno);
    }
    take_temporary_name();
    if (::close(std::exchange(descriptor_, -1)) != 0 || ::rename(temporary_.c_str(), target_.c_str()) != 0) {
        fail(errno);
    }
    temporary_.clear();
    const int folder = ::open(target_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) { // a file system that has no such call does not need it, either
        ::fsync(folder);
        ::close(folder);
    }
}

} // namespace gpt
