#include "nonfinite_word.hpp"

#include "flashomp/error.hpp"

#include <cstddef>
#include <fmt/format.h>
#include <mutex>
#include <unistd.h>
#include <vector>

namespace flashomp {

namespace {

constexpr std::size_t line_words = 16; // of a cache line: words of different calls are apart
constexpr std::size_t page_words = 64 * line_words;

/// Words that no call has. The pages stay until the process ends.
class Pool {
public:
    unsigned* take(const Space& space)
    {
        const std::lock_guard lock(mutex_);
        if (free_.empty()) {
            auto* const page = static_cast<unsigned*>(allocate_page_locked(page_words * sizeof(unsigned), space));
            if (page == nullptr) {
                throw RunFailure(fmt::format("the driver gave no host memory that {} can write.", space.name()));
            }
            for (std::size_t word = 0; word < page_words; word += line_words) {
                free_.push_back(page + word);
            }
        }
        unsigned* const word = free_.back();
        free_.pop_back();
        return word;
    }

    void give_back(unsigned* word)
    {
        const std::lock_guard lock(mutex_);
        free_.push_back(word);
    }

private:
    std::mutex mutex_;
    std::vector<unsigned*> free_;
};

/// Never destroyed: destructors and atexit handlers that run later may make calls, too. A child of a fork makes no
/// calls on its parent's devices (place.cpp) and gives no word back, so none of them finds the mutex locked for ever.
Pool& pool()
{
    static Pool& instance = *new Pool;
    return instance;
}

} // namespace

NonfiniteWord::NonfiniteWord(const Space& space)
{
    if (space.is_host()) {
        word_ = &own_;
    } else if (!space.is_asynchronous) {
        word_ = pool().take(space);
        process_ = getpid();
    }
}

NonfiniteWord::~NonfiniteWord()
{
    if (process_ != 0 && process_ == getpid()) { // another thread may have held a forked child's mutex
        pool().give_back(word_);
    }
}

unsigned* NonfiniteWord::start(void* in_workspace, const Space& space)
{
    if (space.is_asynchronous) {
        return static_cast<unsigned*>(in_workspace);
    }
    *word_ = 0;
    return word_;
}

bool NonfiniteWord::is_set() const
{
    return __atomic_load_n(word_, __ATOMIC_RELAXED) != 0;
}

} // namespace flashomp
