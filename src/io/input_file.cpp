#include "input_file.hpp"

#include "message.hpp"

#include <cerrno>
#include <cstddef>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace flashomp::io {

InputFile::InputFile(const std::filesystem::path& path) : path_(path)
{
    // O_NONBLOCK: a named pipe must be refused below, not waited for here. It means nothing for a regular file.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) {
        const int reason = errno;
        if (reason == ENOENT || reason == ENOTDIR) {
            fail(path_, "there is no such file; an existing file is needed.");
        }
        fail(path_, "cannot be opened ({}); a readable file is needed.", system_words(reason));
    }
    struct stat status = {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        fail(path_, "is not a regular file; a regular file is needed.");
    }
    size_ = status.st_size;
}

InputFile::~InputFile()
{
    ::close(descriptor_);
}

void InputFile::read(void* target, std::int64_t bytes)
{
    auto* next = static_cast<std::byte*>(target);
    std::int64_t missing = bytes;
    while (missing > 0) {
        const ::ssize_t got = ::read(descriptor_, next, static_cast<std::size_t>(missing));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            fail(path_, "cannot be read ({}); {} more bytes of it are needed.", system_words(errno), missing);
        }
        if (got == 0) {
            fail(path_, "became shorter while it was read; it must not change meanwhile.");
        }
        next += got;
        missing -= got;
    }
    position_ += bytes;
}

} // namespace flashomp::io
