#include "io_support.hpp"
#include "safetensors.hpp"

#include <ctime>

#include <fmt/format.h>

namespace flashomp::io::test {
namespace {

class SafetensorsMalformed : public MalformedFile {
protected:
    SafetensorsMalformed() : MalformedFile("bad.safetensors") {}

    void read(const std::filesystem::path& path) override { static_cast<void>(read_safetensors(path)); }
};

std::string length_bytes(std::uint64_t length)
{
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    return bytes;
}

/// A file of this header and that many bytes of data.
std::string safetensors(const std::string& header, std::size_t data_bytes = 8)
{
    return length_bytes(header.size()) + header + std::string(data_bytes, '\0');
}

/// One tensor called t of 8 bytes.
std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets)
{
    return R"("t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

const std::string good = "{" + tensor(R"("F32")", "[2]", "[0,8]") + "}";

TEST_F(SafetensorsMalformed, TheTemplateItselfIsGood)
{
    EXPECT_EQ(sentence_for(safetensors(good)), "");
    EXPECT_EQ(sentence_for(safetensors(good + "   ")), "");
}

TEST_F(SafetensorsMalformed, EveryTruncationAndOneTrailingByte)
{
    const std::string bytes = safetensors(good);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        expect_error(bytes.substr(0, length), "");
    }
    expect_error(bytes + '\0', "holds 9 bytes of data but its tensors need 8");
}

TEST_F(SafetensorsMalformed, EverySingleByteChanged)
{
    const std::string bytes = safetensors(good);
    for (std::size_t i = 0; i < bytes.size() - 8; ++i) {
        for (const char value :
             {'\0', '\x01', '\n', ' ', '"', '[', ']', ',', '-', '0', '8', '9', ':', 'a', '}', '\xff'}) {
            std::string changed = bytes;
            changed[i] = value;
            put(file("bad.safetensors"), changed);
            try {
                for (const auto& [name, read] : read_safetensors(file("bad.safetensors"))) {
                    EXPECT_EQ(read.bytes(), 8) << i << ' ' << int{value};
                }
            } catch (const Error& error) {
                expect_sentence(error.what(), "bad.safetensors: ");
            }
        }
    }
}

TEST_F(SafetensorsMalformed, HeaderLengths)
{
    expect_error("", "has 0 bytes, too few");
    expect_error(length_bytes(0), "does not begin with \"{\"");
    expect_error(length_bytes(100) + good, "the file is cut short");
    expect_error(length_bytes(100'000'001) + good, "gives its header 100000001 bytes; at most 100000000 are allowed");
    expect_error(length_bytes(UINT64_MAX) + good, "gives its header 18446744073709551615 bytes");
    expect_error(length_bytes(std::uint64_t{1} << 63) + good, "gives its header 9223372036854775808 bytes");
}

TEST_F(SafetensorsMalformed, Headers)
{
    const std::vector<std::pair<std::string, std::string>> cases{
        {"[]", "does not begin with"},
        {" " + good, "does not begin with"},
        {"{", "does not end with"},
        {good + "\n", "does not end with"},
        {good + "x", "does not end with"},
        {good + "}", "is not valid JSON at byte"},
        {"{\"t\"}", "is not valid JSON at byte 5"},
        {"{\"\xff\":1}", "is not valid JSON"},
        {"{" + tensor(R"("F32")", "[1e999]", "[0,8]") + "}", "a number out of range"},
        {"{" + tensor(R"("F32")", "[[2]]", "[0,8]") + "}", "nested more than 3 levels deep"},
        {R"({"t":)" + std::string(10000, '[') + "}", "nested more than 3 levels deep"},
        {"{" + tensor(R"("F32")", "[1]", "[0,4]") + "," + tensor(R"("F32")", "[1]", "[4,8]") + "}",
         "the key \"t\" twice"},
        {R"({"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "the key \"dtype\" twice"},
        {R"({"__metadata__":{"a":1}})", "not an object of strings"},
        {R"({"__metadata__":["a"]})", "not an object of strings"},
        {R"({"__metadata__":{"a":"b","a":"c"}})", "the key \"a\" twice"},
    };
    for (const auto& [header, part] : cases) {
        SCOPED_TRACE(header.substr(0, 100));
        expect_error(safetensors(header), part);
    }
}

TEST_F(SafetensorsMalformed, Tensors)
{
    const std::string f32 = R"("F32")";
    const std::vector<std::pair<std::string, std::string>> cases{
        {R"("t":5)", "in another way than the format's"},
        {R"("t":{"dtype":"F32","shape":[2]})", "in another way than the format's"},
        {R"("t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", "in another way than the format's"},
        {R"("t":{"dtype":"F32","shape":[2],"offsets":[0,8]})", "in another way than the format's"},
        {tensor("4", "[2]", "[0,8]"), "the dtype \"number\""},
        {tensor(R"("U8")", "[8]", "[0,8]"),
         "the dtype \"U8\"; F8_E4M3, F16, BF16, F32, F64, I8, I32, I64 and BOOL are allowed"},
        {tensor(R"("f32")", "[2]", "[0,8]"), "the dtype \"f32\""},
        {tensor(f32, "2", "[0,8]"), "a shape that is not an array of integers"},
        {tensor(f32, "[-2]", "[0,8]"), "a shape that is not an array of integers"},
        {tensor(f32, "[2.0]", "[0,8]"), "a shape that is not an array of integers"},
        {tensor(f32, "[true]", "[0,8]"), "a shape that is not an array of integers"},
        {tensor(f32, "[9223372036854775808]", "[0,8]"), "a shape that is not an array of integers"},
        {tensor(f32, "[99999999999999999999]", "[0,8]"), "a shape that is not an array of integers"},
        {tensor(f32, "[4611686018427387904,4]", "[0,8]"), "needs more than 2^63 - 1"},
        {tensor(f32, "[4611686018427387904,4,0]", "[0,0]"), "needs more than 2^63 - 1"},
        {tensor(f32, "[3]", "[0,8]"), "(float32 [3]) 8 bytes of data where its shape needs 12"},
        {tensor(f32, "[1,1,1,1,2]", "[0,8]"), "5 axes; at most 4 are allowed"},
        {tensor(f32, "[2]", "[8]"), "the data_offsets [8]"},
        {tensor(f32, "[2]", "[0,4,8]"), "the data_offsets [0, 4, 8]"},
        {tensor(f32, "[2]", "[8,0]"), "the data_offsets [8, 0]"},
        {tensor(f32, "[2]", "[-8,0]"), "a data_offsets that is not an array of integers"},
        {tensor(f32, "[3]", "[0,12]"), "an end within its 8 bytes of data"},
        {tensor(f32, "[2]", "[9223372036854775800,9223372036854775807]"), "an end within its 8 bytes of data"},
        {tensor(f32, "[1]", "[0,4]"), "holds 8 bytes of data but its tensors need 4"},
        {tensor(f32, "[1]", "[4,8]"), "gaps and overlaps are not allowed"},
        {tensor(f32, "[1]", "[2,6]"), "float32 needs a multiple of 4"},
        {tensor(f32, "[2]", "[0,8]") + R"(,"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
         "gaps and overlaps are not allowed"},
        {tensor(f32, "[2]", "[0,8]") + R"(,"u":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
         "gaps and overlaps are not allowed"},
        {tensor(f32, "[2]", "[0,8]") + R"(,"u":{"dtype":"F32","shape":[0],"data_offsets":[4,4]})",
         "gaps and overlaps are not allowed"},
    };
    for (const auto& [header, part] : cases) {
        SCOPED_TRACE(header);
        expect_error(safetensors("{" + header + "}"), part);
    }
    expect_error(safetensors("{" + tensor(R"("BOOL")", "[8]", "[0,8]") + "}", 7) + '\3',
                 "the byte 3 as boolean element 7");
    expect_error(safetensors("{}"), "holds 8 bytes of data but its tensors need 0");
    expect_sentence(sentence_of([&] { return read_safetensors(file("none")); }), "none: there is no such file");
}

TEST_F(SafetensorsMalformed, ManyTensorsTakeTimeInProportion)
{
    constexpr int count = 40'000;
    std::string header = R"({"__metadata__":{"a":"b"})";
    for (int i = 0; i < count; ++i) {
        header += fmt::format(R"(,"t{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})", i, 4 * i, 4 * i + 4);
    }
    put(file("many.safetensors"), safetensors(header + "}", std::size_t{4} * count));
    const std::clock_t start = std::clock();
    EXPECT_EQ(read_safetensors(file("many.safetensors")).size(), std::size_t{count});
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10.0); // 81 s, once
}

TEST_F(SafetensorsMalformed, LongSentencesAreCut)
{
    std::string offsets = "0";
    for (int i = 0; i < 100'000; ++i) {
        offsets += ",0";
    }
    const std::string text = sentence_for(safetensors("{" + tensor(R"("F32")", "[2]", "[" + offsets + "]") + "}"));
    EXPECT_NE(text.find("the data_offsets [0, 0, 0, 0, ...]"), std::string::npos) << text.substr(0, 500);
    const std::string name(1'000'000, 'n');
    expect_error(safetensors("{\"" + name + "\":1}"), "nnn…\" in another way");
    EXPECT_LT(sentence_for(safetensors("{\"" + name + "\":1}")).size(), 500U);
}

} // namespace
} // namespace flashomp::io::test
