#include "atomic_file.hpp"

#include "io_support.hpp"
#include "npy.hpp"
#include "safetensors.hpp"

#include <csignal>
#include <stdexcept>

#include <sys/resource.h>
#include <sys/stat.h>

namespace flashomp::io::test {
namespace {

namespace fs = std::filesystem;

class AtomicFile : public ScratchFolder {};
class OutputSets : public ScratchFolder {
protected:
    /// Deletes every file but those, a temporary being written for one, so that putting it in place must fail.
    void lose_all_but(const std::set<std::string>& before) const
    {
        for (const std::string& name : files()) {
            if (!before.contains(name)) {
                fs::remove(file(name));
            }
        }
    }
};

OutputSet::Writer text(const std::string& words)
{
    return [words](StagedFile& staged) { staged.write(words.data(), static_cast<std::int64_t>(words.size())); };
}

/// No file of this process grows beyond `bytes` while this lives, as on a full disk.
class FullDisk {
public:
    explicit FullDisk(::rlim_t bytes)
    {
        ::getrlimit(RLIMIT_FSIZE, &before_);
        const ::rlimit limit{bytes, before_.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FullDisk()
    {
        ::setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }
    FullDisk(const FullDisk&) = delete;
    FullDisk& operator=(const FullDisk&) = delete;

private:
    void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
    ::rlimit before_{};
};

TEST_F(AtomicFile, AppearsOnlyWhenPublished)
{
    {
        StagedFile staged(file("a"));
        staged.write("new", 3);
        EXPECT_FALSE(fs::exists(file("a")));
        staged.publish();
        EXPECT_EQ(get(file("a")), "new");
    }
    {
        StagedFile abandoned(file("a"));
        abandoned.write("newer", 5);
    }
    EXPECT_EQ(get(file("a")), "new");
    EXPECT_EQ(files(), std::set<std::string>{"a"});
}

TEST_F(AtomicFile, KeepsTheOldFileWhenTheDiskIsFull)
{
    const HostTensor tensor(DType::float32, {1024});
    put(file("a.npy"), "old npy");
    put(file("a.safetensors"), "old safetensors");
    {
        const FullDisk full(1000);
        expect_sentence(sentence_of([&] { write_npy(file("a.npy"), tensor.view()); }), "a.npy: cannot be written (");
        expect_sentence(sentence_of([&] {
                            write_safetensors(file("a.safetensors"), {{"t", tensor.view()}});
                        }),
                        "a.safetensors: cannot be written (");
        expect_sentence(sentence_of([&] { write_npy(file("b.npy"), tensor.view()); }), "b.npy: cannot be written (");
    }
    EXPECT_EQ(get(file("a.npy")), "old npy");
    EXPECT_EQ(get(file("a.safetensors")), "old safetensors");
    EXPECT_EQ(files(), (std::set<std::string>{"a.npy", "a.safetensors"}));
}

TEST_F(AtomicFile, NamesTheFolderThatIsMissingOrClosed)
{
    put(file("plain"), "");
    expect_sentence(sentence_of([&] { StagedFile(file("none/a")); }), "its folder does not exist");
    expect_sentence(sentence_of([&] { StagedFile(file("plain/a")); }), "an output needs an existing folder");
    expect_sentence(sentence_of([&] { StagedFile(file("")); }), "is not the name of a file");
    expect_sentence(sentence_of([&] { StagedFile(""); }), "is not the name of a file");
    fs::create_directory(file("closed"));
    fs::permissions(file("closed"), fs::perms::owner_read | fs::perms::owner_exec);
    if (::geteuid() != 0) { // root writes everywhere
        expect_sentence(sentence_of([&] { StagedFile(file("closed/a")); }), "an output needs a writable folder");
    }
}

TEST_F(AtomicFile, ReplacesRegularFilesOnly)
{
    fs::create_directory(file("folder"));
    expect_sentence(sentence_of([&] { StagedFile(file("folder")); }), "exists and is not a regular file");
    expect_sentence(sentence_of([] { StagedFile("/dev/null"); }), "exists and is not a regular file");
    EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(AtomicFile, FollowsSymbolicLinksAndKeepsPermissions)
{
    put(file("real"), "old");
    fs::permissions(file("real"), fs::perms::owner_read | fs::perms::owner_write);
    fs::create_symlink("real", file("link"));
    StagedFile staged(file("link"));
    staged.write("new", 3);
    staged.publish();
    EXPECT_TRUE(fs::is_symlink(file("link")));
    EXPECT_EQ(get(file("real")), "new");
    EXPECT_EQ(fs::status(file("real")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(OutputSets, WritesAllOfThem)
{
    const HostTensor tensor = patterned(DType::float32, {2, 3});
    put(file("b.npy"), "old");
    OutputSet outputs;
    outputs.add(file("a.npy"), [&](StagedFile& staged) { write_npy(staged, tensor.view()); });
    outputs.add(file("b.npy"), [&](StagedFile& staged) { write_npy(staged, tensor.view()); });
    outputs.add(file("c"), [&](StagedFile& staged) { write_safetensors(staged, {{"t", tensor.view()}}); });
    EXPECT_EQ(files(), std::set<std::string>{"b.npy"});
    outputs.commit();
    expect_same(read_npy(file("a.npy")), tensor);
    expect_same(read_npy(file("b.npy")), tensor);
    expect_same(read_safetensors(file("c")).at("t"), tensor);
    EXPECT_EQ(files(), (std::set<std::string>{"a.npy", "b.npy", "c"}));
    outputs.commit(); // of nothing
}

TEST_F(OutputSets, WritesNoneWhenAWriterFails)
{
    put(file("a"), "old a");
    OutputSet outputs;
    outputs.add(file("a"), text("new a"));
    outputs.add(file("b"), [](StagedFile&) { throw std::runtime_error("the writer's own"); });
    outputs.add(file("c"), text("new c"));
    EXPECT_THROW(outputs.commit(), std::runtime_error);
    EXPECT_EQ(get(file("a")), "old a");
    EXPECT_EQ(files(), std::set<std::string>{"a"});
}

TEST_F(OutputSets, WritesNoneWhenTheDiskFillsUp)
{
    put(file("a"), "old a");
    OutputSet outputs;
    outputs.add(file("a"), text("new a"));
    outputs.add(file("b"), text(std::string(2000, 'b')));
    {
        const FullDisk full(1000);
        expect_sentence(sentence_of([&] { outputs.commit(); }), "b: cannot be written (");
    }
    EXPECT_EQ(get(file("a")), "old a");
    EXPECT_EQ(files(), std::set<std::string>{"a"});
}

TEST_F(OutputSets, PutsBackWhatWasReplacedWhenALaterRenameFails)
{
    put(file("a"), "old a");
    std::set<std::string> before;
    OutputSet outputs;
    outputs.add(file("a"), text("new a"));
    outputs.add(file("b"), [&](StagedFile& staged) { // there was no b
        staged.write("new b", 5);
        before = files();
    });
    outputs.add(file("c"), [&](StagedFile&) { lose_all_but(before); });
    outputs.add(file("d"), text("new d"));
    expect_sentence(sentence_of([&] { outputs.commit(); }), "c: cannot be put in its place");
    EXPECT_EQ(get(file("a")), "old a");
    EXPECT_EQ(files(), std::set<std::string>{"a"});
}

TEST_F(OutputSets, RefusesTheSameFileTwice)
{
    OutputSet outputs;
    outputs.add(file("a"), text("one"));
    fs::create_directory(file("folder"));
    expect_sentence(sentence_of([&] { outputs.add(file("folder/../a"), text("two")); }), "is the same file as");
    expect_sentence(sentence_of([&] { outputs.add(file("none/a"), text("two")); }), "its folder does not exist");
    outputs.commit();
    EXPECT_EQ(get(file("a")), "one");
}

TEST_F(AtomicFile, ADanglingLinkIsFollowedAndStays)
{
    fs::create_directory(file("elsewhere"));
    fs::create_symlink("elsewhere/new", file("link"));
    fs::create_symlink(file("link"), file("link to link"));
    StagedFile staged(file("link to link"));
    staged.write("text", 4);
    staged.publish();
    EXPECT_TRUE(fs::is_symlink(fs::symlink_status(file("link"))));
    EXPECT_TRUE(fs::is_symlink(fs::symlink_status(file("link to link"))));
    EXPECT_EQ(get(file("elsewhere/new")), "text");
}

TEST_F(AtomicFile, LinksThatLeadNowhereAreRefused)
{
    fs::create_symlink("b", file("a"));
    fs::create_symlink("a", file("b"));
    fs::create_symlink("absent/new", file("into absent"));
    expect_sentence(sentence_of([&] { StagedFile(file("a")); }), "a: cannot be written (Too many levels of symbolic");
    expect_sentence(sentence_of([&] { StagedFile(file("into absent")); }), "its folder does not exist");
    EXPECT_TRUE(fs::is_symlink(fs::symlink_status(file("into absent"))));
}

} // namespace
} // namespace flashomp::io::test
