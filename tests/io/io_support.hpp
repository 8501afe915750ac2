// What the io tests share: a scratch folder, whole files as strings, and the sentence an Error carries.
#pragma once

#include "host_tensor.hpp"

#include "flashomp/error.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <unistd.h>

namespace flashomp::io::test {

inline constexpr std::array all_dtypes{DType::float16, DType::bfloat16, DType::float32, DType::float64,
                                       DType::int32,   DType::int64,    DType::boolean, DType::int8};

/// A folder of its own for every test, removed with it.
class ScratchFolder : public ::testing::Test {
protected:
    void SetUp() override
    {
        std::string name = (std::filesystem::temp_directory_path() / "flashomp-io-XXXXXX").string();
        ASSERT_NE(::mkdtemp(name.data()), nullptr);
        folder_ = name;
    }

    void TearDown() override { std::filesystem::remove_all(folder_); }

    [[nodiscard]] std::filesystem::path file(std::string_view name) const { return folder_ / name; }

    /// Names of all files in the folder; shows temporaries left behind.
    [[nodiscard]] std::set<std::string> files() const
    {
        std::set<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
            names.insert(entry.path().filename().string());
        }
        return names;
    }

private:
    std::filesystem::path folder_;
};

inline void put(const std::filesystem::path& path, const std::string& bytes)
{
    std::ofstream stream(path, std::ios::binary);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(stream.flush().good()) << path;
}

inline std::string get(const std::filesystem::path& path)
{
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/// The sentence of the Error that `action` throws; "" when it throws none. Anything but an Error fails the test.
template <class Action>
std::string sentence_of(Action action)
{
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

/// That `sentence` is one sentence that contains `part`.
inline void expect_sentence(const std::string& sentence, std::string_view part)
{
    EXPECT_NE(sentence.find(part), std::string::npos) << "got: " << sentence << "\nwithout: " << part;
    EXPECT_TRUE(sentence.ends_with('.')) << sentence;
    EXPECT_EQ(sentence.find_first_of("\n\r\t"), std::string::npos) << sentence;
}

/// A file that tests spoil, and the sentence that reading it ends with.
class MalformedFile : public ScratchFolder {
protected:
    explicit MalformedFile(std::string_view name) : name_(name) {}

    virtual void read(const std::filesystem::path& path) = 0;

    std::string sentence_for(const std::string& bytes)
    {
        put(file(name_), bytes);
        return sentence_of([&] { read(file(name_)); });
    }

    void expect_error(const std::string& bytes, std::string_view part)
    {
        const std::string sentence = sentence_for(bytes);
        expect_sentence(sentence, part);
        EXPECT_TRUE(sentence.starts_with(file(name_).string() + ": ")) << sentence;
    }

private:
    std::string name_;
};

/// A tensor whose elements all differ as far as the type allows, none of them zero bytes only.
inline HostTensor patterned(DType dtype, const Shape& shape)
{
    HostTensor tensor(dtype, shape, Fill::poison);
    auto* const bytes = static_cast<std::uint8_t*>(tensor.data());
    for (std::int64_t i = 0; i < tensor.bytes(); ++i) {
        bytes[i] = dtype == DType::boolean ? static_cast<std::uint8_t>(i % 3 == 0) : static_cast<std::uint8_t>(i + 1);
    }
    return tensor;
}

inline void expect_same(const HostTensor& left, const HostTensor& right)
{
    ASSERT_EQ(left.dtype(), right.dtype());
    ASSERT_EQ(left.shape(), right.shape());
    ASSERT_EQ(left.bytes(), right.bytes());
    EXPECT_EQ(std::memcmp(left.data(), right.data(), static_cast<std::size_t>(left.bytes())), 0);
}

} // namespace flashomp::io::test
