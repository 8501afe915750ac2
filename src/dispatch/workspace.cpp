#include "workspace.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <omp.h>
#include <pthread.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace flashomp {

namespace {

constexpr std::int64_t granule = std::int64_t{1} << 16; // sizes are rounded up so that similar calls share blocks
constexpr std::size_t most_cached = 64;                 // blocks kept; older ones go first

struct Block {
    void* data;
    std::int64_t bytes;
    Space space;
};

class Cache {
public:
    Cache() = default;
    ~Cache() = delete; // cache()
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    Block take(std::int64_t bytes, const Space& space)
    {
        // Calls that do not wait return a block while their kernels still use it: the stream keeps these in order.
        const Block block = space.is_asynchronous ? make(bytes, space) : find_or_make(bytes, space);
        const std::lock_guard lock(mutex_);
        Use& use = use_of(space);
        use.now += block.bytes;
        use.peak = std::max(use.peak, use.now);
        return block;
    }

    void give_back(const Block& block)
    {
        std::unique_lock lock(mutex_);
        use_of(block.space).now -= block.bytes;
        if (block.space.is_asynchronous) {
            lock.unlock(); // streams need not wait for each other
            release(block.data, block.space);
            return;
        }
        if (free_.size() == most_cached) {
            release(free_.front().data, free_.front().space);
            free_.erase(free_.begin());
        }
        free_.push_back(block);
    }

    void clear()
    {
        const std::lock_guard lock(mutex_);
        for (const Block& block : free_) {
            release(block.data, block.space);
        }
        free_.clear();
        for (const auto& [place, use] : use_) {
            release_unused({place.first, place.second});
        }
    }

    /// A fork must not come while another thread holds the mutex, which in the child nobody would let go.
    void before_fork() { mutex_.lock(); }
    void after_fork_in_parent() { mutex_.unlock(); }

    /// The child has copies of the host's blocks. The devices' blocks are the parent's.
    void after_fork_in_child()
    {
        std::erase_if(free_, [](const Block& block) { return !block.space.is_host(); });
        std::erase_if(use_, [](const auto& use) { return use.first.first != Space::Kind::host; });
        mutex_.unlock();
    }

    /// What is leased of a space; the peak starts anew from it.
    std::int64_t restart_peak(const Space& space)
    {
        const std::lock_guard lock(mutex_);
        Use& use = use_of(space);
        use.peak = use.now;
        return use.now;
    }

    std::int64_t made(const Space& space)
    {
        const std::lock_guard lock(mutex_);
        return use_of(space).made;
    }

    std::int64_t peak(const Space& space)
    {
        const std::lock_guard lock(mutex_);
        return use_of(space).peak;
    }

private:
    struct Use {
        std::int64_t now = 0, peak = 0; ///< bytes leased
        std::int64_t made = 0;          ///< blocks that were not cached
    };

    Use& use_of(const Space& space) { return use_[{space.kind, space.device}]; }

    Block find_or_make(std::int64_t bytes, const Space& space)
    {
        {
            const std::lock_guard lock(mutex_);
            auto best = free_.end();
            for (auto block = free_.begin(); block != free_.end(); ++block) {
                // At most twice what is needed, so that one large call does not pin its memory for small ones.
                if (block->space.is_same_place(space) && block->bytes >= bytes && block->bytes <= 2 * bytes &&
                    (best == free_.end() || block->bytes < best->bytes)) {
                    best = block;
                }
            }
            if (best != free_.end()) {
                Block found = *best;
                found.space = space;
                free_.erase(best);
                return found;
            }
        }
        const Block made = make(bytes, space);
        const std::lock_guard lock(mutex_);
        ++use_of(space).made;
        return made;
    }

    Block make(std::int64_t bytes, const Space& space)
    {
        Block made{allocate(bytes, space), bytes, space};
        if (made.data == nullptr) {
            clear(); // what is cached may be what is missing
            made.data = allocate(bytes, space);
        }
        if (made.data == nullptr) {
            throw RunFailure(
                fmt::format("the call needs {} bytes of scratch memory, but {} has no more.", bytes, space.name()));
        }
        return made;
    }

    std::mutex mutex_;
    std::vector<Block> free_;
    std::map<std::pair<Space::Kind, int>, Use> use_; ///< by kind and device
};

/// Freed at exit, but never destroyed: destructors and atexit handlers that run later may make calls, too.
Cache& cache()
{
    static Cache& instance = *[] {
        // The OpenMP runtime must be up before the handler is there, so that it still is when the handler runs.
        static_cast<void>(omp_get_num_devices());
        return new Cache;
    }();
    static const bool is_watched = std::atexit([] { cache().clear(); }) == 0 &&
                                   pthread_atfork([] { cache().before_fork(); }, [] { cache().after_fork_in_parent(); },
                                                  [] { cache().after_fork_in_child(); }) == 0;
    static_cast<void>(is_watched);
    return instance;
}

} // namespace

Workspace::Workspace(std::int64_t bytes, const Space& space)
{
    const std::int64_t rounded = (bytes + granule - 1) / granule * granule;
    if (rounded == 0) {
        return;
    }
    const Block block = cache().take(rounded, space);
    data_ = block.data;
    bytes_ = block.bytes;
    space_ = block.space;
    process_ = space_.is_host() ? 0 : getpid();
}

Workspace::~Workspace()
{
    const bool is_parents = !space_.is_host() && process_ != getpid();
    if (data_ != nullptr && !is_parents) {
        cache().give_back({data_, bytes_, space_});
    }
}

void release_workspaces()
{
    cache().clear();
}

WorkspaceWatch::WorkspaceWatch(const Space& space)
    : space_(space), start_(cache().restart_peak(space)), made_(cache().made(space))
{
}

std::int64_t WorkspaceWatch::peak_bytes() const
{
    return cache().peak(space_) - start_;
}

std::int64_t WorkspaceWatch::allocations() const
{
    return cache().made(space_) - made_;
}

} // namespace flashomp
