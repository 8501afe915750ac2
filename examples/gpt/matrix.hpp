// Matrices of activations and weights, memory that is counted, and loops over blocks of rows.
#pragma once

#include <Eigen/Core>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpt {

using Index = Eigen::Index;
using bfloat16 = Eigen::bfloat16;

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Rows of a matrix that somebody else owns: [tokens, width], or a weight [in, out].
template <class T>
using Rows = Eigen::Map<Matrix<T>>;

/// What activations stored as S are computed in. Weights, gradients and the optimiser's state have this type, too.
template <class S>
using Number = std::conditional_t<std::is_same_v<S, double>, double, float>;

/// Calls body(first, count) for blocks of `block` of `count` rows, on OpenMP's threads. The size of a block never
/// depends on the number of threads, and so no sum does. An exception of a block leaves this function.
template <class Body>
void for_blocks(Index count, Index block, const Body& body)
{
    std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1)
    for (Index first = 0; first < count; first += block) {
        try {
            body(first, std::min(block, count - first));
        } catch (...) {
#pragma omp critical(gpt_for_blocks)
            failure = std::current_exception();
        }
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
}

/// Where weights and activations begin. Eigen adds up a row from the first address that a vector register may be loaded
/// from, so that a sum's order, and its bits, depend on addresses: here they never differ.
inline constexpr std::size_t alignment = 64;

/// Memory for `count` numbers, indeterminate, from an aligned address.
template <class T>
class Aligned {
public:
    Aligned() = default;
    explicit Aligned(std::size_t count)
        : first_(static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{alignment})))
    {
    }
    [[nodiscard]] T* get() const { return first_.get(); }

private:
    struct Free {
        void operator()(T* memory) const { ::operator delete (memory, std::align_val_t{alignment}); }
    };
    std::unique_ptr<T, Free> first_;
};

/// An allocator of std::vector with that alignment.
template <class T>
struct AlignedAllocator {
    using value_type = T;
    AlignedAllocator() = default;
    template <class Other>
    AlignedAllocator(const AlignedAllocator<Other>& /*other*/) // NOLINT(google-explicit-constructor)
    {
    }
    T* allocate(std::size_t count)
    {
        return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{alignment}));
    }
    void deallocate(T* memory, std::size_t /*count*/) { ::operator delete (memory, std::align_val_t{alignment}); }
    friend bool operator==(const AlignedAllocator&, const AlignedAllocator&) { return true; }
};

/// All weights of a model, or their gradients.
template <class C>
using Numbers = std::vector<C, AlignedAllocator<C>>;

inline constexpr Index block_rows = 128; ///< of activations: a block's products stay in a core's caches

/// Bytes that are alive, and the most that were.
class Meter {
public:
    void add(std::int64_t bytes)
    {
        now_ += bytes;
        peak_ = std::max(peak_, now_);
    }
    void take(std::int64_t bytes) { now_ -= bytes; }
    void restart() { peak_ = now_; }
    [[nodiscard]] std::int64_t now() const { return now_; }
    [[nodiscard]] std::int64_t peak() const { return peak_; }

private:
    std::int64_t now_ = 0, peak_ = 0;
};

/// A matrix that a meter counts from construction to drop(): what a forward pass keeps for its backward pass.
template <class T>
class Kept {
public:
    Kept() = default;
    Kept(Meter& meter, Index rows, Index columns)
        : meter_(&meter), rows_(rows), columns_(columns), memory_(static_cast<std::size_t>(rows * columns))
    {
        meter_->add(bytes());
    }
    Kept(Kept&& other) noexcept { *this = std::move(other); }
    Kept& operator=(Kept&& other) noexcept
    {
        std::swap(meter_, other.meter_);
        std::swap(rows_, other.rows_);
        std::swap(columns_, other.columns_);
        std::swap(memory_, other.memory_);
        return *this;
    }
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() { drop(); }

    void drop()
    {
        if (meter_ != nullptr) {
            meter_->take(bytes());
            meter_ = nullptr;
            memory_ = {};
        }
    }

    [[nodiscard]] explicit operator bool() const { return meter_ != nullptr; }
    [[nodiscard]] T* data() const { return memory_.get(); }
    [[nodiscard]] Rows<T> rows() const { return {memory_.get(), rows_, columns_}; }
    [[nodiscard]] std::int64_t bytes() const { return rows_ * columns_ * static_cast<std::int64_t>(sizeof(T)); }

private:
    Meter* meter_ = nullptr;
    Index rows_ = 0, columns_ = 0;
    Aligned<T> memory_;
};

} // namespace gpt
