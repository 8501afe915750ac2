// Files of checkpoints: every byte counts, and a file is whole or not there.
#include "checkpoint.hpp"
#include "parameters.hpp"
#include "random.hpp"

#include "flashomp/error.hpp"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace gpt {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& file)
{
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/// A small checkpoint in a folder of its own.
class GptCheckpoint : public ::testing::Test {
protected:
    GptCheckpoint()
    {
        std::string name = (fs::temp_directory_path() / "gpt-checkpoint-XXXXXX").string();
        folder_ = ::mkdtemp(name.data());
        file_ = folder_ / "model.safetensors";
        Options& options = checkpoint_.options;
        options.vocabulary = 258;
        options.seqlen = 3;
        options.layers = 1;
        options.heads = 2;
        options.dim = 4;
        options.hashed_ngrams = 2;
        options.hash_rows = 3;
        options.data = {"a \"text\"", "b"};
        options.dropout = 0.1;
        options.seed = ~std::uint64_t{0};
        checkpoint_.step = 500;
        checkpoint_.text_hash = ~std::uint64_t{0} - 1;
        checkpoint_.merges = {{'a', 'b'}, {256, 'c'}};
        std::uint64_t index = 0;
        for (Numbers<float>* const values : {&checkpoint_.weights, &checkpoint_.m, &checkpoint_.v}) {
            values->resize(static_cast<std::size_t>(Layout(options.shape()).size()));
            for (float& value : *values) {
                value = static_cast<float>(random_normal(1, Stream::weights, index++));
            }
        }
        write(checkpoint_);
        good_ = contents(file_);
    }
    ~GptCheckpoint() override { fs::remove_all(folder_); }

    void write(const Checkpoint& checkpoint) const
    {
        DurableFile file("--save", file_);
        write_checkpoint(file, checkpoint);
    }

    /// The file with these bytes: one sentence that names it and holds `words`.
    void expect_refused(const std::string& bytes, const std::string& words) const
    {
        std::ofstream(file_, std::ios::binary) << bytes;
        try {
            static_cast<void>(read_checkpoint(file_));
            ADD_FAILURE() << words;
        } catch (const flashomp::Error& error) {
            const std::string what = error.what();
            EXPECT_EQ(what.find(file_.string() + ": "), 0U) << what;
            EXPECT_NE(what.find(words), std::string::npos) << what;
            EXPECT_TRUE(what.ends_with('.') && what.find('\n') == std::string::npos) << what;
            EXPECT_EQ(what.find("exception"), std::string::npos) << what;
        }
    }

    /// The good file with another header; the tensors' bytes stay.
    [[nodiscard]] std::string with_header(const std::function<void(nlohmann::json&)>& change) const
    {
        std::uint64_t length = 0;
        std::memcpy(&length, good_.data(), sizeof(length));
        nlohmann::json header = nlohmann::json::parse(good_.substr(sizeof(length), length));
        change(header);
        const std::string text = header.dump();
        const std::uint64_t now = text.size();
        std::string bytes(sizeof(now), '\0');
        std::memcpy(bytes.data(), &now, sizeof(now));
        return bytes + text + good_.substr(sizeof(length) + length);
    }

    /// The good file with another state: options, step and hash.
    [[nodiscard]] std::string with_state(const std::function<void(nlohmann::json&)>& change) const
    {
        return with_header([&](nlohmann::json& header) {
            nlohmann::json state = nlohmann::json::parse(header["__metadata__"]["gpt"].get<std::string>());
            change(state);
            header["__metadata__"]["gpt"] = state.dump();
        });
    }

    [[nodiscard]] std::ptrdiff_t entries() const { return std::distance(fs::directory_iterator(folder_), {}); }

    fs::path folder_, file_;
    Checkpoint checkpoint_;
    std::string good_;
};

TEST_F(GptCheckpoint, ComesBack)
{
    const Checkpoint read = read_checkpoint(file_);
    EXPECT_EQ(to_json(read.options), to_json(checkpoint_.options));
    EXPECT_EQ(read.step, checkpoint_.step);
    EXPECT_EQ(read.text_hash, checkpoint_.text_hash);
    EXPECT_EQ(read.merges, checkpoint_.merges);
    EXPECT_TRUE(read.weights == checkpoint_.weights && read.m == checkpoint_.m && read.v == checkpoint_.v);
    write(read);
    EXPECT_TRUE(contents(file_) == good_);
}

TEST_F(GptCheckpoint, EveryByteCounts)
{
    for (std::size_t at = 0; at < good_.size(); at += at < 8 ? 1 : 17) {
        std::string damaged = good_;
        const auto bit = 1U << random_bits(2, Stream::sampling, at) % 7; // an eighth bit is no ASCII
        damaged[at] = static_cast<char>(static_cast<unsigned char>(damaged[at]) ^ bit);
        expect_refused(damaged, "");
    }
}

TEST_F(GptCheckpoint, TensorsAreThoseOfTheOptions)
{
    expect_refused(with_header([](nlohmann::json& header) {
                       header["adam.v.layer.0.mlp.up.bia"] = header["adam.v.layer.0.mlp.up.bias"];
                       header.erase("adam.v.layer.0.mlp.up.bias");
                   }),
                   "has no tensor adam.v.layer.0.mlp.up.bias");
    expect_refused(with_header([](nlohmann::json& header) {
                       const auto end = header["tokens.merges"]["data_offsets"][1];
                       header["more"] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {end, end}}};
                   }),
                   "has a tensor \"more\"; with its options it needs none");
    expect_refused(with_state([](nlohmann::json& state) { state["options"]["vocabulary"] = 256; }), "embedding.tokens");
    // What the options claim is looked for in the file before there is memory for it.
    expect_refused(with_state([](nlohmann::json& state) {
                       state["options"]["layers"] = 1000;
                       state["options"]["heads"] = 1000;
                       state["options"]["dim"] = 512000;
                   }),
                   "with its options that is float32");
}

TEST_F(GptCheckpoint, TheStateIsStrict)
{
    const auto with = [&](const char* name, const nlohmann::json& value) {
        return with_state(
            [&](nlohmann::json& state) { (state.contains(name) ? state : state["options"])[name] = value; });
    };
    expect_refused(with("step", 1.7), "step is 1.7; allowed is a whole number");
    expect_refused(with("step", -1), "step is -1");
    expect_refused(with("step", ~std::uint64_t{0}), "step is 18446744073709551615");
    expect_refused(with("step", 501), "is damaged");
    expect_refused(with("text", 5), "is damaged");
    expect_refused(with("seed", 2), "is damaged");
    expect_refused(with("seed", "2"), "seed is \"2\"; allowed is a whole number");
    expect_refused(with("threads", 1e10), "threads is 10000000000.0");
    expect_refused(with("threads", 10000000000), "threads is 10000000000");
    expect_refused(with("alibi", 1), "alibi is 1; allowed is true or false");
    expect_refused(with("dropout", true), "dropout is true; allowed is a number");
    expect_refused(with("data", {"a", 1}), "an array of strings");
    expect_refused(with("heads", 3), "--dim was 4 with --heads 3");
    expect_refused(with("colour", "red"), "colour is no option");
    expect_refused(with_state([](nlohmann::json& state) { state["options"].erase("clip"); }), "clip is missing");
    expect_refused(with_state([](nlohmann::json& state) { state.erase("options"); }), "options are missing");
    expect_refused(with_state([](nlohmann::json& state) { state["options"] = 3; }), "options");
    expect_refused(with_header([](nlohmann::json& header) { header["__metadata__"]["gpt"] = "{"; }), "cannot be read");
    expect_refused(with_header([](nlohmann::json& header) { header["__metadata__"].erase("gpt.checksum"); }),
                   "is no checkpoint of gpt");
}

TEST(GptOptions, AFileFromBeforeThereWereTablesHasNone)
{
    nlohmann::json object = to_json(Options());
    object.erase("hash_rows");
    EXPECT_THROW(static_cast<void>(options_from_json(object)), flashomp::Error);
    object.erase("hashed_ngrams");
    EXPECT_EQ(options_from_json(object).hashed_ngrams, 0);
}

TEST_F(GptCheckpoint, MergesAreThoseOfTokensThatAreThere)
{
    checkpoint_.merges = {{'a', 'b'}, {257, 'c'}};
    write(checkpoint_);
    expect_refused(contents(file_), "has merges that cannot be: merge 1 joins tokens 257");
}

TEST_F(GptCheckpoint, AFileIsReplacedWholeOrNotAtAll)
{
    ASSERT_EQ(::chmod(file_.c_str(), 0600), 0);
    fs::create_symlink(file_, folder_ / "link");
    {
        DurableFile file("--save", folder_ / "link");
        file.write("new", 3);
    }
    EXPECT_TRUE(contents(file_) == good_);
    EXPECT_EQ(entries(), 2);
    {
        DurableFile file("--save", folder_ / "link");
        file.write("new", 3);
        file.publish();
    }
    EXPECT_EQ(contents(file_), "new");
    EXPECT_EQ(fs::status(file_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
    EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
    EXPECT_EQ(entries(), 2);
    EXPECT_THROW(DurableFile("--save", folder_ / "nowhere" / "model"), flashomp::Error);
    EXPECT_THROW(DurableFile("--save", folder_ / std::string(300, 'x')), flashomp::Error);
    EXPECT_THROW(DurableFile("--save", folder_), flashomp::Error);
    EXPECT_THROW(DurableFile("--save", "/"), flashomp::Error);
}

TEST_F(GptCheckpoint, AKilledWriterLeavesNothing)
{
    const int unnamed = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY, 0600);
    const std::ptrdiff_t left = unnamed < 0 ? 1 : 0; // on a file system that has no files without a name
    ::close(unnamed);
    const ::pid_t child = ::fork();
    if (child == 0) {
        DurableFile file("--save", file_);
        file.write("new", 3);
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(entries(), 1 + left);
    EXPECT_TRUE(contents(file_) == good_);
}

} // namespace
} // namespace gpt
