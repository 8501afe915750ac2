// What messages show of text from outside.
#include "printable.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace flashomp {
namespace {

TEST(Printable, WordsStayAsTheyAre)
{
    for (const char* const text : {"", "q", "Größe 2×3 … €", "naïve.npy", "日本語", "😀", "a b\"'\\"}) {
        EXPECT_EQ(printable(text), text);
    }
}

TEST(Printable, WhatSteersATerminalDoesNot)
{
    const std::vector<std::pair<std::string, std::string>> texts{
        {"\x1b[2J", "?[2J"},
        {"a\nb\tc\r", "a?b?c?"},
        {std::string("\0x", 2), "?x"},
        {"\x7f", "?"},
        {"\xc2\x9b" // CSI in one character
         "2J",
         "?2J"},
        {"\u202egnp.exe", "?gnp.exe"},
        {"\u2028\u2066", "??"},
    };
    for (const auto& [text, shown] : texts) {
        EXPECT_EQ(printable(text), shown);
    }
}

TEST(Printable, BytesThatAreNotUtf8)
{
    const std::vector<std::pair<std::string, std::string>> texts{
        {"\xff\xfe", "??"},
        {"a\x80", "a?"},
        {"\xc3", "?"},
        {"\xc0\xaf", "??"},
        {"\xe0\x80\xaf", "???"},
        {"\xed\xa0\x80", "???"},
        {"\xf4\x90\x80\x80", "????"},
        {"\xe2\x82", "??"},
        {"\xf0\x9f\x98", "???"},
        {"\xc3(", "?("},
    };
    for (const auto& [text, shown] : texts) {
        EXPECT_EQ(printable(text), shown);
    }
}

TEST(Printable, LongTextIsCutBetweenCharacters)
{
    EXPECT_EQ(printable("abc", 3), "abc");
    EXPECT_EQ(printable("abcd", 3), "abc…");
    EXPECT_EQ(printable("aüü", 4), "aü…");
    EXPECT_EQ(printable("\x1b\x1b", 1), "?…");
    EXPECT_EQ(printable(std::string(1'000'000, 'x'), 40).size(), 43U);
}

} // namespace
} // namespace flashomp
