#include "atomic_file.hpp"

#include "message.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <deque>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace flashomp::io {

namespace fs = std::filesystem;

namespace {

/// A name in the target's folder that this process has not used; another process may still hold it.
fs::path fresh_name_beside(const fs::path& target)
{
    static std::atomic<unsigned> counter{0};
    return target.parent_path() / fmt::format(".flashomp-{}-{}.tmp", ::getpid(), counter++);
}

/// `path` made absolute and, while it is a symbolic link, what that names: also a file that does not exist yet, which
/// fs::weakly_canonical() does not follow a link to.
fs::path last_link_followed(const fs::path& path, std::error_code& error)
{
    constexpr int most_links = 40; // as Linux has it
    fs::path target = fs::absolute(path, error);
    for (int links = 0; !error && fs::is_symlink(fs::symlink_status(target, error)); ++links) {
        if (links == most_links) {
            error = std::make_error_code(std::errc::too_many_symbolic_link_levels);
            break;
        }
        const fs::path next = fs::read_symlink(target, error);
        target = target.parent_path() / next; // which is `next` where that is absolute
    }
    if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
        error.clear(); // there is no such folder, which is said in its place
    }
    return target;
}

/// Where a write to `path` ends up: absolute, symbolic links followed. Refuses what is no place for a file.
fs::path resolved_target(const fs::path& path)
{
    if (!path.has_filename()) {
        fail(path, "is not the name of a file; an output needs one.");
    }
    std::error_code error;
    const fs::path followed = last_link_followed(path, error);
    fs::path target = error ? fs::path() : fs::weakly_canonical(followed, error);
    if (error) {
        fail(path, "cannot be written ({}); an output needs an existing folder.", error.message());
    }
    const fs::file_type type = fs::status(target, error).type();
    if (type != fs::file_type::regular && type != fs::file_type::not_found) {
        fail(path, "exists and is not a regular file; an output may only replace a regular file.");
    }
    if (!fs::is_directory(target.parent_path(), error)) {
        fail(path, "cannot be written because its folder does not exist; an output needs an existing folder.");
    }
    return target;
}

/// What a target held before it is replaced: a second name for the old file, or the knowledge that there was none.
class Backup {
public:
    Backup(const fs::path& path, fs::path target) : target_(std::move(target))
    {
        std::error_code error;
        if (!fs::exists(target_, error)) {
            return;
        }
        do {
            kept_ = fresh_name_beside(target_);
            fs::create_hard_link(target_, kept_, error);
        } while (error == std::errc::file_exists);
        if (error) { // no hard links here
            fs::copy_file(target_, kept_, error);
        }
        if (error) {
            fs::remove(std::exchange(kept_, {}), error);
            fail(path, "the file it replaces cannot be kept for the case of a failure; nothing was written.");
        }
    }

    ~Backup()
    {
        std::error_code ignored;
        if (!kept_.empty()) {
            fs::remove(kept_, ignored);
        }
    }

    Backup(const Backup&) = delete;
    Backup& operator=(const Backup&) = delete;

    /// Undoes the replacement.
    void restore()
    {
        std::error_code ignored;
        if (kept_.empty()) {
            fs::remove(target_, ignored);
        } else {
            fs::rename(kept_, target_, ignored);
        }
    }

private:
    fs::path target_;
    fs::path kept_; ///< empty when there was no file
};

} // namespace

StagedFile::StagedFile(const fs::path& target) : path_(target), target_(resolved_target(target))
{
    do {
        temporary_ = fresh_name_beside(target_);
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) {
        fail(path_, "cannot be written ({}); an output needs a writable folder.", system_words(errno));
    }
    struct stat replaced = {};
    if (::stat(target_.c_str(), &replaced) == 0) { // a private file stays private
        static_cast<void>(::fchmod(descriptor_, replaced.st_mode & 0777));
    }
}

StagedFile::~StagedFile()
{
    if (descriptor_ >= 0) {
        ::close(descriptor_);
    }
    if (!temporary_.empty()) {
        ::unlink(temporary_.c_str());
    }
}

void StagedFile::write(const void* data, std::int64_t bytes)
{
    const auto* next = static_cast<const std::byte*>(data);
    while (bytes > 0) {
        const ::ssize_t written = ::write(descriptor_, next, static_cast<std::size_t>(bytes));
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            fail(path_, "cannot be written ({}); {} more bytes are needed.", system_words(errno), bytes);
        }
        next += written;
        bytes -= written;
    }
}

void StagedFile::close()
{
    if (descriptor_ >= 0 && ::close(std::exchange(descriptor_, -1)) != 0) {
        fail(path_, "cannot be written ({}); all of it must reach the disk.", system_words(errno));
    }
}

void StagedFile::publish()
{
    close();
    std::error_code error;
    fs::rename(temporary_, target_, error);
    if (error) {
        fail(path_, "cannot be put in its place ({}); what it replaces, if anything, is unchanged.", error.message());
    }
    temporary_.clear();
}

void OutputSet::add(const fs::path& path, Writer writer)
{
    fs::path target = resolved_target(path);
    for (const Output& other : outputs_) {
        if (other.target == target) {
            fail(path, "is the same file as the output {}; every output needs its own.", other.path.string());
        }
    }
    outputs_.push_back({path, std::move(target), std::move(writer)});
}

void OutputSet::commit()
{
    const std::vector<Output> outputs = std::exchange(outputs_, {});
    std::deque<StagedFile> staged;
    std::deque<Backup> backups;
    for (const Output& output : outputs) {
        output.writer(staged.emplace_back(output.path));
        staged.back().close();
    }
    for (const Output& output : outputs) {
        backups.emplace_back(output.path, output.target);
    }
    std::size_t published = 0;
    try {
        for (StagedFile& file : staged) {
            file.publish();
            ++published;
        }
    } catch (...) {
        while (published > 0) {
            backups[--published].restore();
        }
        throw;
    }
}

} // namespace flashomp::io
