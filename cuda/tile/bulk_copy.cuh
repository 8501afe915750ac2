// Hopper's copy engine (PTX ISA, "cp.async.bulk.tensor"), the barriers in shared memory that count its bytes
// ("mbarrier"), and what else warps of one block tell each other.
#pragma once

#include <cstdint>
#include <cuda.h>

namespace flashomp::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer)
{
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// A barrier in shared memory whose phases end when all that were announced have arrived, and all bytes.
struct Barrier {
    std::uint64_t state;

    /// mbarrier.init
    __device__ __forceinline__ void init(unsigned arrivals)
    {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals));
    }
    /// mbarrier.arrive
    __device__ __forceinline__ void arrive()
    {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
    }
    /// mbarrier.arrive.expect_tx: the phase also waits for so many bytes.
    __device__ __forceinline__ void expect(unsigned bytes)
    {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                     : "memory");
    }
    /// mbarrier.try_wait.parity, until the phase of this parity has ended.
    __device__ __forceinline__ void wait(unsigned parity)
    {
        asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;"
                     " @done bra ready; bra again; ready: }" ::"r"(shared_address(this)),
                     "r"(parity)
                     : "memory");
    }
};

/// fence.mbarrier_init: the copy engine sees the barriers' first state.
__device__ __forceinline__ void publish_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// fence.proxy.async: what this thread wrote to shared memory, or read from it, comes before what wgmma and the copy
/// engine do there.
__device__ __forceinline__ void publish_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// A place in a ring of stages, and the parity of its barriers' phase.
template <int stages>
struct RingPlace {
    int index = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void advance()
    {
        if (++index == stages) {
            index = 0;
            parity ^= 1U;
        }
    }

    __device__ __forceinline__ RingPlace before() const
    {
        return index == 0 ? RingPlace{stages - 1, parity ^ 1U} : RingPlace{index - 1, parity};
    }
};

/// Where a block of rows begins in a tensor's map.
struct MapRows {
    int row, head, batch;

    __device__ __forceinline__ MapRows from(int first) const { return {row + first, head, batch}; }
};

/// cp.async.bulk.tensor.4d, by one thread: a box of the map from a column of `at` on.
__device__ __forceinline__ void copy_box(void* shared, const CUtensorMap& map, int column, const MapRows& at,
                                         Barrier& barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
                 "%5}], [%6];" ::"r"(shared_address(shared)),
                 "l"(&map), "r"(column), "r"(at.row), "r"(at.head), "r"(at.batch), "r"(shared_address(&barrier))
                 : "memory");
}

/// As many boxes of `rows` rows as the columns of a block take, from `first` on, which follow one another.
template <int rows, int panels, int columns = 64>
__device__ __forceinline__ void copy_panels(unsigned char* shared, const CUtensorMap& map, const MapRows& at,
                                            Barrier& barrier, int first = 0)
{
    for (int panel = 0; panel < panels; ++panel) {
        copy_box(shared + panel * rows * 128, map, first + columns * panel, at, barrier);
    }
}

/// cp.async.bulk, by one thread: a multiple of 16 bytes that lies at one, too.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, unsigned bytes, Barrier& barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
}

/// cp.async.bulk and cp.reduce.async.bulk, by one thread: to memory, or added to the floats there.
__device__ __forceinline__ void send_bulk(void* global, const void* shared, unsigned bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void add_bulk(void* global, const void* shared, unsigned bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(global)),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}
/// cp.async.bulk.commit_group, and wait_group: until what was sent has been read, or has arrived.
__device__ __forceinline__ void commit_bulk()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void wait_bulk_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_bulk()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/// fence.proxy.async.global: what this thread was told of memory comes before what it has the copy engine do there. The
/// other way round none is needed: the end of a copy is one (PTX ISA, "Async proxy").
__device__ __forceinline__ void publish_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// ld.acquire and st.release for the whole GPU.
__device__ __forceinline__ int load_acquire(const int* address)
{
    int value;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                 : "=r"(value)
                 : "l"(__cvta_generic_to_global(address))
                 : "memory");
    return value;
}
__device__ __forceinline__ void store_release(int* address, int value)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(address)), "r"(value) : "memory");
}

/// setmaxnreg: warpgroups that only copy leave registers to those that compute.
template <int registers>
__device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/// bar.sync: waits until `threads` have come to barrier `number`.
__device__ __forceinline__ void sync_threads(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// bar.arrive: comes there without waiting.
__device__ __forceinline__ void arrive_threads(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// stmatrix.x4: four 8x8 matrices of 16-bit elements, lane l giving the address of row l%8 of matrix l/8.
__device__ __forceinline__ void store_matrices(std::uint32_t shared, const std::uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(m[0]), "r"(m[1]),
                 "r"(m[2]), "r"(m[3])
                 : "memory");
}

/// stmatrix.x4.trans: the same, each matrix transposed.
__device__ __forceinline__ void store_matrices_transposed(std::uint32_t shared, const std::uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(m[0]),
                 "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
}

/// ld.shared.v4: 16 bytes.
__device__ __forceinline__ uint4 load_shared_16(std::uint32_t shared)
{
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(shared)
                 : "memory");
    return x;
}

/// Byte offset of a 16-byte chunk of a row of a block of `rows` rows, as the copy engine lays it: in panels of 64
/// 16-bit columns, with a 128-byte swizzle.
template <int rows>
__device__ __forceinline__ std::uint32_t chunk_offset(unsigned r, unsigned chunk)
{
    return chunk / 8 * rows * 128 + r * 128 + ((chunk % 8) ^ (r % 8)) * 16;
}

/// Zeros from row `first` on in a block of panels, by the 128 threads of a warpgroup, which meet at this barrier.
/// Loops that stay loops: it is seldom done, and unrolled amid products it would leave the assembler too few registers
/// to let these run beside one another (its message C7512).
template <int rows, int panels>
__device__ __forceinline__ void clear_rows(unsigned char* block, int first, int barrier)
{
#pragma unroll 1
    for (int panel = 0; panel < panels; ++panel) {
        auto* const chunks = reinterpret_cast<uint4*>(block + panel * rows * 128);
#pragma unroll 1
        for (int i = first * 8 + static_cast<int>(threadIdx.x % 128); i < rows * 8; i += 128) {
            chunks[i] = uint4{};
        }
    }
    publish_shared();
    sync_threads(barrier, 128);
}

} // namespace flashomp::cuda
