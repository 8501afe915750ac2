#include "io_support.hpp"
#include "npy.hpp"
#include "npy_header.hpp"

#include <sys/stat.h>

namespace flashomp::io::test {
namespace {

class NpyMalformed : public MalformedFile {
protected:
    NpyMalformed() : MalformedFile("bad.npy") {}

    void read(const std::filesystem::path& path) override { static_cast<void>(read_npy(path, options)); }

    NpyOptions options = {};
};

/// A version 1.0 file of this dictionary and that many bytes of data.
std::string npy(const std::string& dictionary, std::size_t data_bytes = 24)
{
    const std::string text = dictionary + "\n";
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes += static_cast<char>(text.size() & 0xff);
    bytes += static_cast<char>(text.size() >> 8);
    return bytes + text + std::string(data_bytes, '\0');
}

const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

std::string with_shape(const std::string& shape)
{
    return "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
}

std::string with_descr(const std::string& descr)
{
    return "{'descr': " + descr + ", 'fortran_order': False, 'shape': (2, 3), }";
}

TEST_F(NpyMalformed, TheTemplateItselfIsGood)
{
    EXPECT_EQ(sentence_for(npy(good)), "");
}

TEST_F(NpyMalformed, EveryTruncationAndOneTrailingByte)
{
    const std::string bytes = npy(good);
    for (std::size_t length = 0; length < bytes.size(); ++length) {
        expect_error(bytes.substr(0, length), "");
    }
    expect_error(bytes + '\0', "holds 25 bytes of data but its header (float32 [2, 3]) needs 24");
}

TEST_F(NpyMalformed, EverySingleByteChanged)
{
    // Whatever one byte of the file becomes, reading ends in a tensor of the file's size or in an Error.
    const std::string bytes = npy(good);
    for (std::size_t i = 0; i < bytes.size() - 24; ++i) {
        for (const char value :
             {'\0', '\x01', '\n', ' ', '\'', '(', ')', ',', '-', '0', '8', '9', ':', 'a', '}', '\xff'}) {
            std::string changed = bytes;
            changed[i] = value;
            put(file("bad.npy"), changed);
            try {
                EXPECT_EQ(read_npy(file("bad.npy")).bytes(), 24) << i << ' ' << int{value};
            } catch (const Error& error) {
                expect_sentence(error.what(), "bad.npy: ");
            }
        }
    }
}

TEST_F(NpyMalformed, PrefixAndLength)
{
    const std::string bytes = npy(good);
    const auto changed = [&](std::size_t at, char value) {
        std::string copy = bytes;
        copy[at] = value;
        return copy;
    };
    expect_error("", "has 0 bytes, too few");
    expect_error(changed(0, '\x92'), "magic string");
    expect_error("PK\3\4 a zip file, as .npz is", "magic string");
    expect_error(changed(6, '\0'), "version 0.0; 1.0, 2.0 and 3.0 are allowed");
    expect_error(changed(6, '\4'), "version 4.0");
    expect_error(changed(7, '\1'), "version 1.1");
    expect_error(changed(9, '\x10'), "the file is cut short");
    expect_error(changed(6, '\2'), "gives its header"); // the dictionary's first bytes as a length
    expect_error(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12), "gives its header 4294967295 bytes");
    expect_error(std::string("\x93NUMPY\x03\x00\x80\x00", 10), "in the middle of its .npy header");
}

TEST_F(NpyMalformed, Dictionaries)
{
    const std::vector<std::pair<std::string, std::string>> cases{
        {"", "where the dictionary is needed"},
        {"descr", "where the dictionary is needed"},
        {"{", "where a key is needed"},
        {"{}", "lacks the key \"descr\""},
        {"{,}", "where a key is needed"},
        {"{'descr': '<f4', 'shape': (2, 3)}", "lacks the key \"fortran_order\""},
        {"{'descr': '<f4', 'fortran_order': False}", "lacks the key \"shape\""},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", "the key \"descr\" twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'a': 1}", "has the key \"a\""},
        {"{'descr' '<f4'}", "where a colon is needed"},
        {"{'descr': '<f4' 'shape': (2, 3)}", "where a comma or the end of the dictionary is needed"},
        {"{'descr: <f4}", "where a string of printable characters"},
        {"{'de\\x73cr': '<f4'}", "where a string of printable characters without escapes"},
        {"{'fortran_order': 0}", "where True or False is needed"},
        {"{'fortran_order': 'False'}", "where True or False is needed"},
        {"{'fortran_order': true}", "where True or False is needed"},
        {good + " x", "where spaces and one newline"},
        {good + "\n", "where spaces and one newline"},
        {good + good, "where spaces and one newline"},
    };
    for (const auto& [dictionary, part] : cases) {
        SCOPED_TRACE(dictionary);
        expect_error(npy(dictionary), part);
    }
    std::string unended = npy(good, 0);
    unended.back() = ' ';
    expect_error(unended, "where spaces and one newline");
}

TEST_F(NpyMalformed, Shapes)
{
    const std::vector<std::pair<std::string, std::string>> cases{
        {"2", "where a tuple is needed"},
        {"[2, 3]", "where a tuple is needed"},
        {"(6)", "where a comma or the end of the tuple is needed"},
        {"(,)", "where a decimal integer is needed"},
        {"(2,,3)", "where a decimal integer is needed"},
        {"(2, 3", "where a decimal integer is needed"},
        {"(2 3)", "where a comma or the end of the tuple is needed"},
        {"(2, +3)", "where a decimal integer is needed"},
        {"(2, 3L)", "where a comma or the end of the tuple is needed"},
        {"(2, 3.0)", "where a comma or the end of the tuple is needed"},
        {"(2, 0x3)", "where a comma or the end of the tuple is needed"},
        {"(2, 03)", "where a decimal integer is needed"},
        {"(2, -3)", "has the extent \"-3\""},
        {"(-9223372036854775808, 3)", "has the extent \"-9223372036854775808\""},
        {"(2, 9223372036854775808)", "has the extent \"9223372036854775808\""},
        {"(4611686018427387905, 4)", "ask for more than 2^63 - 1 bytes"},
        {"(0, 4611686018427387905, 4)", "ask for more than 2^63 - 1 bytes"},
        {"(4294967296, 4294967296)", "ask for more than 2^63 - 1 bytes"},
        {"(1000000000000,)", "needs 4000000000000"},
        {"(1, 1, 1, 2, 3)", "holds an array of 5 axes; at most 4 are allowed"},
        {"(3, 3)", "holds 24 bytes of data but its header (float32 [3, 3]) needs 36"},
        {"(0,)", "holds 24 bytes of data but its header (float32 [0]) needs 0"},
    };
    for (const auto& [shape, part] : cases) {
        SCOPED_TRACE(shape);
        expect_error(npy(with_shape(shape)), part);
    }
}

TEST_F(NpyMalformed, Types)
{
    const std::vector<std::pair<std::string, std::string>> cases{
        {"'>f4'", "big-endian type \">f4\""},
        {"'|O'", "holds the type \"|O\""},
        {"'<c8'", "holds the type \"<c8\""},
        {"'|u1'", "holds the type \"|u1\""},
        {"'<U4'", "holds the type \"<U4\""},
        {"'f4'", "holds the type \"f4\""},
        {"'=f4'", "holds the type \"=f4\""},
        {"''", "holds the type \"\""},
        {"'<f4 '", "holds the type \"<f4 \""},
        {"'<u2'", "only allowed where they are said to be bfloat16"},
        {"[('x', '<f4')]", "structured types are not allowed"},
        {"4", "a type such as '<f4'"},
    };
    for (const auto& [descr, part] : cases) {
        SCOPED_TRACE(descr);
        expect_error(npy(with_descr(descr)), part);
    }
    expect_error(npy(with_descr("'|b1'"), 5) + '\2', "the byte 2 as boolean element 5; only 0 and 1 are allowed");
    options.u2_is_bfloat16 = true;
    EXPECT_EQ(sentence_for(npy(with_descr("'<u2'"), 12)), "");
}

TEST_F(NpyMalformed, WhatIsNoFile)
{
    expect_sentence(sentence_of([&] { return read_npy(file("missing.npy")); }), "missing.npy: there is no such file");
    expect_sentence(sentence_of([&] { return read_npy(file("")); }), "is not a regular file");
    ASSERT_EQ(::mkfifo(file("pipe.npy").c_str(), 0600), 0);
    expect_sentence(sentence_of([&] { return read_npy(file("pipe.npy")); }), "is not a regular file");
    put(file("secret.npy"), npy(good));
    std::filesystem::permissions(file("secret.npy"), std::filesystem::perms::none);
    if (::geteuid() != 0) { // root reads everything
        expect_sentence(sentence_of([&] { return read_npy(file("secret.npy")); }), "cannot be opened");
    }
}

} // namespace
} // namespace flashomp::io::test
