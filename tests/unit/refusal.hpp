// What a refused call looks like: an Error of one sentence, and outputs as they were.
#pragma once

#include "support/attention_case.hpp"

#include <algorithm>
#include <functional>
#include <string>

namespace flashomp::testing {

/// Calls, and expects an Error that is one sentence with `says` in it.
inline void expect_refused(const std::string& says, const std::function<void()>& call)
{
    SCOPED_TRACE(says);
    try {
        call();
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        const std::string sentence = error.what();
        EXPECT_NE(sentence.find(says), std::string::npos) << sentence;
        EXPECT_EQ(sentence.back(), '.') << sentence;
        EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
    }
}

inline bool is_poison(const HostTensor& tensor)
{
    const auto* bytes = static_cast<const unsigned char*>(tensor.data());
    return std::all_of(bytes, bytes + tensor.bytes(), [](unsigned char byte) { return byte == 0xff; });
}

} // namespace flashomp::testing
