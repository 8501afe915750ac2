#include "workspace.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <new>
#include <omp.h>
#include <vector>

namespace flashomp {

namespace {

constexpr std::align_val_t alignment{64};
constexpr std::int64_t granule = std::int64_t{1} << 16; // sizes are rounded up so that similar calls share blocks
constexpr std::size_t most_cached = 32;                 // blocks kept; older ones go first

struct Block {
    void* data;
    std::int64_t bytes;
    int device;
};

void* allocate(std::int64_t bytes, int device)
{
    if (device < 0) {
        return ::operator new(static_cast<std::size_t>(bytes), alignment, std::nothrow);
    }
    return omp_target_alloc(static_cast<std::size_t>(bytes), device);
}

void release(const Block& block)
{
    if (block.device < 0) {
        ::operator delete(block.data, alignment);
    } else {
        omp_target_free(block.data, block.device);
    }
}

class Cache {
public:
    // The OpenMP runtime must be up before this object is made, so that it is still up when it is destroyed.
    Cache() { static_cast<void>(omp_get_num_devices()); }
    ~Cache() { clear(); }
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;

    Block take(std::int64_t bytes, int device)
    {
        const Block block = find_or_make(bytes, device);
        const std::lock_guard lock(mutex_);
        Use& use = use_[device];
        use.now += block.bytes;
        use.peak = std::max(use.peak, use.now);
        return block;
    }

    void give_back(const Block& block)
    {
        const std::lock_guard lock(mutex_);
        use_[block.device].now -= block.bytes;
        if (free_.size() == most_cached) {
            release(free_.front());
            free_.erase(free_.begin());
        }
        free_.push_back(block);
    }

    void clear()
    {
        const std::lock_guard lock(mutex_);
        for (const Block& block : free_) {
            release(block);
        }
        free_.clear();
    }

    /// What is leased on a device; the peak starts anew from it.
    std::int64_t restart_peak(int device)
    {
        const std::lock_guard lock(mutex_);
        Use& use = use_[device];
        use.peak = use.now;
        return use.now;
    }

    std::int64_t peak(int device)
    {
        const std::lock_guard lock(mutex_);
        return use_[device].peak;
    }

private:
    /// Bytes leased on a device.
    struct Use {
        std::int64_t now = 0, peak = 0;
    };

    Block find_or_make(std::int64_t bytes, int device)
    {
        {
            const std::lock_guard lock(mutex_);
            auto best = free_.end();
            for (auto block = free_.begin(); block != free_.end(); ++block) {
                // At most twice what is needed, so that one large call does not pin its memory for small ones.
                if (block->device == device && block->bytes >= bytes && block->bytes <= 2 * bytes &&
                    (best == free_.end() || block->bytes < best->bytes)) {
                    best = block;
                }
            }
            if (best != free_.end()) {
                const Block found = *best;
                free_.erase(best);
                return found;
            }
        }
        Block made{allocate(bytes, device), bytes, device};
        if (made.data == nullptr) {
            clear(); // what is cached may be what is missing
            made.data = allocate(bytes, device);
        }
        if (made.data == nullptr) {
            throw Error(fmt::format("the call needs {} bytes of scratch memory, but {} has no more.", bytes,
                                    device < 0 ? "the host" : fmt::format("device {}", device)));
        }
        return made;
    }

    std::mutex mutex_;
    std::vector<Block> free_;
    std::map<int, Use> use_; ///< by device
};

Cache& cache()
{
    static Cache instance;
    return instance;
}

} // namespace

Workspace::Workspace(std::int64_t bytes, int device)
{
    const std::int64_t rounded = (bytes + granule - 1) / granule * granule;
    if (rounded == 0) {
        return;
    }
    const Block block = cache().take(rounded, device);
    data_ = block.data;
    bytes_ = block.bytes;
    device_ = block.device;
}

Workspace::~Workspace()
{
    if (data_ != nullptr) {
        cache().give_back({data_, bytes_, device_});
    }
}

void release_workspaces()
{
    cache().clear();
}

WorkspaceWatch::WorkspaceWatch(int device) : device_(device), start_(cache().restart_peak(device)) {}

std::int64_t WorkspaceWatch::peak_bytes() const
{
    return cache().peak(device_) - start_;
}

} // namespace flashomp
