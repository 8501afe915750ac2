#include "status.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <new>

namespace flashomp::capi {

namespace {

/// Of this thread. An array, not a string: it needs no memory when there is none, and no destructor, after which a call
/// in another destructor of the thread would find it.
constinit thread_local std::array<char, 1024> last_sentence{};

/// Before what a defect says of itself.
constexpr std::string_view defect_words = "a defect of flashomp, or of a function that it was given: ";

void keep_sentence(std::string_view begin, std::string_view end) noexcept
{
    auto* at = last_sentence.begin();
    for (const std::string_view part : {begin, end}) {
        const auto room = static_cast<std::size_t>(last_sentence.end() - at) - 1;
        at = std::copy_n(part.begin(), std::min(part.size(), room), at);
    }
    *at = '\0';
}

} // namespace

void keep_sentence(std::string_view sentence) noexcept
{
    keep_sentence(sentence, {});
}

flashomp_status keep_exception() noexcept
{
    try {
        throw;
    } catch (const Error& error) {
        keep_sentence(error.what());
        return FLASHOMP_BAD_ARGUMENT;
    } catch (const RunFailure& failure) {
        keep_sentence(failure.what());
        return FLASHOMP_RUN_FAILURE;
    } catch (const std::bad_alloc&) {
        keep_sentence("the host has no memory for the lists of the call.");
        return FLASHOMP_OUT_OF_MEMORY;
    } catch (const std::exception& defect) {
        keep_sentence(defect_words, defect.what());
        return FLASHOMP_UNEXPECTED;
    } catch (...) {
        keep_sentence(defect_words, "an exception of an unknown type.");
        return FLASHOMP_UNEXPECTED;
    }
}

} // namespace flashomp::capi

extern "C" const char* flashomp_last_error()
{
    return flashomp::capi::last_sentence.data();
}
