#include "everywhere.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <new>
#include <vector>

namespace flashomp::mpi {

namespace {

/// What a rank threw; of several ranks the larger one counts.
enum class Thrown : std::int64_t { nothing, failure, not_built, error };

/// Throws on all ranks what the first rank has that has the largest kind.
void rethrow_everywhere(const Messages& messages, Thrown kind, const std::string& text)
{
    const std::vector<std::int64_t> kinds = messages.all_numbers({static_cast<std::int64_t>(kind)});
    const auto first = std::max_element(kinds.begin(), kinds.end());
    if (*first == 0) {
        return;
    }
    const auto rank = static_cast<std::size_t>(first - kinds.begin());
    const std::string sentence = fmt::format("rank {}: {}", rank, messages.all_texts(text)[rank]);
    switch (static_cast<Thrown>(*first)) {
    case Thrown::error:
        throw Error(sentence);
    case Thrown::not_built:
        throw NotBuilt(sentence);
    default:
        throw RunFailure(sentence);
    }
}

} // namespace

void expect_everywhere(const Messages& messages, const std::function<void()>& local)
{
    Thrown kind = Thrown::nothing;
    std::string text;
    const auto keep = [&](Thrown thrown, const char* what) {
        kind = thrown;
        text = what;
    };
    try {
        local();
    } catch (const NotBuilt& missing) {
        keep(Thrown::not_built, missing.what());
    } catch (const Error& refused) {
        keep(Thrown::error, refused.what());
    } catch (const std::bad_alloc&) {
        keep(Thrown::failure, "memory for the call's buffers ran out.");
    } catch (const std::exception& failed) {
        keep(Thrown::failure, failed.what());
    }
    rethrow_everywhere(messages, kind, text);
}

void expect_no_failure(const Messages& messages, const std::string& failure)
{
    rethrow_everywhere(messages, failure.empty() ? Thrown::nothing : Thrown::failure, failure);
}

} // namespace flashomp::mpi
