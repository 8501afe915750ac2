// What modifies scores, for the products of a warpgroup (wgmma.cuh says which elements a lane has): scale, softcap,
// ALiBi and bias, and what dropout keeps. offload/algorithm/score.hpp has the same for one pair. Here each part is a
// loop over all of a lane's pairs, and what they have in common is computed once.
#pragma once

#include "algorithm/mask.hpp"
#include "algorithm/math.hpp"
#include "hopper_items.cuh"
#include "nvidia/ptx.hpp"
#include "tile/warpgroup.cuh"

#include "flashomp/dropout.hpp"

namespace flashomp::cuda {

/// What a kernel knows of its modifications: nothing, that there is a softcap and else at most dropout, or that there
/// is none.
enum class Softcap { asked, alone, absent };

/// The kernels of a shape, with modified scores.
template <class Shape, Softcap softcap_ = Softcap::asked>
struct Modified : Shape {
    static constexpr bool is_modified = true;
    static constexpr Softcap softcap = softcap_;
    /// Whether LSE is natural: ALiBi and bias are of any size, where the rounding of a product with log2 e would show.
    static constexpr bool is_natural = softcap_ != Softcap::alone;
    /// Of the bias that one warpgroup adds to a block: the keys in panels of 64.
    static constexpr int bias_panels = (Shape::bias_keys + 63) / 64;
    static constexpr int bias_bytes = softcap == Softcap::alone ? 0 : Shape::bias_queries * bias_panels * 128;
};

/// A block of the bias in shared memory, in parts of the warpgroups, and the barriers at which the copying thread and a
/// part's readers meet: the groups come half a block apart, and none is to wait for the other's. Where the shape has no
/// room for a block, there is none of this.
template <class Shape, bool is_there = (Shape::bias_bytes > 0)>
struct BiasBlock {
};
template <class Shape>
struct BiasBlock<Shape, true> {
    alignas(1024) unsigned char part[Shape::bias_parts][Shape::bias_bytes];
};
template <class Shape, bool is_there = (Shape::bias_bytes > 0)>
struct BiasBarriers {
};
template <class Shape>
struct BiasBarriers<Shape, true> {
    Barrier full[Shape::bias_parts], empty[Shape::bias_parts];

    __device__ __forceinline__ void init()
    {
        for (int group = 0; group < Shape::bias_parts; ++group) {
            full[group].init(1);
            empty[group].init(4 * Lane::speakers);
        }
    }

    /// The copying thread: the block from these queries and the key `first` on, each part when its last one was read.
    /// Groups have other queries or, of keys_are_rows, other keys.
    template <bool keys_are_rows>
    __device__ __forceinline__ void bring(BiasBlock<Shape>& block, const BiasMap& bias, RingPlace<1>& place,
                                          const MapRows& queries, int first)
    {
        for (int group = 0; group < Shape::bias_parts; ++group) {
            empty[group].wait(place.parity ^ 1U);
            full[group].expect(Shape::bias_bytes);
            copy_panels<Shape::bias_queries, Shape::bias_panels>(block.part[group], bias.map,
                                                                 queries.from(keys_are_rows ? 0 : 64 * group),
                                                                 full[group], first + (keys_are_rows ? 64 * group : 0));
        }
        place.advance();
    }

    /// A reader: waits for its part, calls f() and tells that it was read.
    template <class F>
    __device__ __forceinline__ void read(const Lane& at, int group, RingPlace<1>& place, const F& f)
    {
        full[group].wait(place.parity);
        f();
        // What was asked for has to be there, too: beside products that keep shared memory busy, the next part came
        // before an ldmatrix had read the last one (docs/log/cuda-history.md).
        publish_shared();
        __syncwarp();
        at.release(empty[group]);
        place.advance();
    }
};

/// A bit for each of a lane's n elements: whether dropout keeps the probability.
template <int n>
struct KeptPairs {
    std::uint32_t bits[(n + 31) / 32];

    __device__ __forceinline__ void set_all()
    {
#pragma unroll
        for (std::uint32_t& word : bits) {
            word = ~0U;
        }
    }

    __device__ __forceinline__ float of(float x, int element) const
    {
        return (bits[element / 32] >> (element % 32) & 1U) != 0 ? x : 0.0F;
    }

    /// x, which is not negative, with the sign of what was dropped.
    __device__ __forceinline__ float signed_of(float x, int element) const
    {
        const std::uint32_t dropped = ~bits[element / 32] << (31 - element % 32) & 0x80000000U;
        return __uint_as_float(__float_as_uint(x) | dropped);
    }
};

/// The modifications of one query head of one sequence. Math: the 16-bit type of q and, unless it is float32, of the
/// bias. Positions of rows and columns are those in the sequence; with keys_are_rows columns are queries. Made anew for
/// each block, since there are no registers for what would be kept.
template <class Math, Softcap softcap = Softcap::asked>
class ModifiedScores {
public:
    __device__ __forceinline__ ModifiedScores(const offload::Params& p, const offload::Band& band, int batch, int head)
        : p_(p), band_(band), batch_(batch), head_(head)
    {
    }

    /// What apply() leaves is logits divided by this: 1 with ALiBi and bias, whose logits are of any size, so that one
    /// more rounding would show, and of which minus the largest number hides nothing. Else the scale, which costs
    /// nothing in the factor of the exponentials.
    static __device__ __forceinline__ float unit(const offload::Params& p)
    {
        return p.alibi_slopes != nullptr || p.bias.data != nullptr ? 1.0F : p.scale;
    }

    /// Logits divided by unit() in place of dot products. row, column: of the lane's first element. A bias that the
    /// copy engine brings is add_part()'s, and then what is here first. Where it hides, pairs of -inf are hidden.
    template <bool keys_are_rows, int n>
    __device__ __forceinline__ void apply(float (&s)[n], int row, int column, bool brings_bias, bool hides) const
    {
        if (softcap == Softcap::alone || (softcap == Softcap::asked && p_.softcap > 0.0F)) {
            cap(s, hides);
        }
        if constexpr (softcap != Softcap::alone) {
            float by = p_.scale;
            if (p_.alibi_slopes != nullptr) {
                subtract_distances<keys_are_rows>(s, by, row, column);
                by = 1.0F;
            }
            if (p_.bias.data != nullptr && !brings_bias) {
                add_bias<keys_are_rows>(s, by, row, column);
            }
        }
    }

    /// Adds a bias of 16 bits from a part of a BiasBlock: panels of 64 keys of `queries` queries.
    template <bool keys_are_rows, int queries, int n>
    __device__ __forceinline__ void add_part(float (&s)[n], const unsigned char* part) const
    {
        const float by = p_.alibi_slopes != nullptr ? 1.0F : p_.scale; // else it is a factor already
        const unsigned lane = threadIdx.x % 32;
        const unsigned row = threadIdx.x / 32 % 4 * 16; // the first of the warp
        const std::uint32_t shared = shared_address(part);
#pragma unroll
        for (int i = 0; i < n; i += 8) { // 16 rows of 16 columns a warp
            const unsigned columns = i * 2;
            const unsigned query = keys_are_rows ? columns + lane / 16 * 8 + lane % 8 : row + lane % 16;
            const unsigned key = keys_are_rows ? row + lane / 8 % 2 * 8 : columns + lane / 16 * 8;
            const std::uint32_t at = shared + chunk_offset<queries>(query, key / 8);
            const ptx::Four m = keys_are_rows ? ptx::load_matrices_transposed(at) : ptx::load_matrices(at);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                s[i + 2 * k] = __builtin_fmaf(by, s[i + 2 * k], Math::low(m.x[k]));
                s[i + 2 * k + 1] = __builtin_fmaf(by, s[i + 2 * k + 1], Math::high(m.x[k]));
            }
        }
    }

    /// d(logit)/d(scaled dot product), 1 - tanh², of a logit divided by the scale that nothing but the softcap
    /// modified; 0 where it is hidden. `inverse` is scale/softcap.
    static __device__ __forceinline__ float slope_at(float logit, float inverse)
    {
        const float t = logit * inverse;
        return ptx::max(__builtin_fmaf(-t, t, 1.0F), 0.0F);
    }

    /// What dropout keeps. A Philox call has the draws of four neighbouring keys (dropout_draws()), which several lanes
    /// share: each makes one of their calls and tells the others. row, column as above, where keys begin at a multiple
    /// of 4.
    template <bool keys_are_rows, int n>
    __device__ __forceinline__ void draw(KeptPairs<n>& kept, int row, int column) const
    {
        const unsigned lane = threadIdx.x % 32;
        // Of queries as rows, neighbouring lanes share the four keys of the upper and of the lower row. Of keys as
        // rows, lanes 4, 8 and 12 apart share four pairs of a query and four keys.
        const unsigned own = keys_are_rows ? lane / 4 % 4 : lane % 2;
        const int half = static_cast<int>(keys_are_rows ? own / 2 : own);
        const int query = p_.place_q.first + (keys_are_rows ? column + static_cast<int>(own % 2) : row + 8 * half);
        const int key = p_.place_k.first + (keys_are_rows ? row + 8 * half : column);
#pragma unroll
        for (int word = 0; word < (n + 31) / 32; ++word) {
            constexpr int groups = n < 32 ? n / 4 : 8; // of eight columns, of which a lane has four elements
            std::uint32_t drawn = 0;
#pragma unroll 4
            for (int g = 0; g < groups && 32 * word + 4 * g < n; ++g) {
                const int on = 8 * (8 * word + g);
                const PhiloxBlock draws =
                    dropout_draws(p_.dropout_key, static_cast<std::uint32_t>(p_.first_sequence + batch_),
                                  static_cast<std::uint32_t>(p_.first_head + head_),
                                  static_cast<std::uint32_t>(query + (keys_are_rows ? on : 0)),
                                  static_cast<std::uint32_t>(key + (keys_are_rows ? 0 : on)) / 4);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    drawn |= (draws.word[i] >= p_.dropout_threshold ? 1U : 0U) << (4 * g + i);
                }
            }
            kept.bits[word] = keys_are_rows ? of_keys_as_rows(drawn, lane, own) : of_keys_as_columns(drawn, own);
        }
    }

private:
    /// softcap·tanh(scale·s/softcap)/scale. Where all of a warp's are near zero a polynomial does, and the units that
    /// exponentials need are free.
    template <int n>
    __device__ __forceinline__ void cap(float (&s)[n], bool hides) const
    {
        const float inner = offload::quotient(p_.scale, p_.softcap);
        const float square = inner * inner;
        float most = 0.0F;
        if (hides) { // hidden pairs choose no formula for others
#pragma unroll
            for (const float x : s) {
                most = ptx::max(most, x == -offload::infinity ? 0.0F : x * x);
            }
        } else {
#pragma unroll
            for (const float x : s) {
                most = ptx::max(most, x * x);
            }
        }
        most *= square;
        if (!ptx::any_lane(most >= 0.0625F)) { // |tanh's argument| < 1/4: x + x³(a + b·x²), relative error below 5e-7
            const float a = -0.333246082F * square;
            const float b = 0.128771126F * square * square;
#pragma unroll
            for (float& x : s) {
                const float z = x * x;
                x = __builtin_fmaf(z * __builtin_fmaf(b, z, a), x, x);
            }
        } else if (!ptx::any_lane(most >= near_zero * near_zero)) {
#pragma unroll
            for (float& x : s) {
                x = __builtin_fmaf(tanh_excess(x * x * square), x, x);
            }
        } else {
            const float outer = offload::quotient(p_.softcap, p_.scale);
#pragma unroll
            for (float& x : s) {
                x = outer * tanh_of(x * inner);
            }
        }
    }

    /// by·s - slope·|i + delta - j|
    template <bool keys_are_rows, int n>
    __device__ __forceinline__ void subtract_distances(float (&s)[n], float by, int row, int column) const
    {
        const int delta = offload::whole_delta(p_, {0, 0, band_.q_len, band_.k_len}) + offload::shift_of(p_);
        const float slope = p_.alibi_slopes[batch_ * p_.alibi_batch_stride + head_];
        const int first = row - column + (keys_are_rows ? -delta : delta);
        const float from[2] = {static_cast<float>(first), static_cast<float>(first + 8)};
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const float distance = __builtin_fabsf(from[i / 2 % 2] - static_cast<float>(i / 4 * 8 + i % 2));
            s[i] = __builtin_fmaf(-slope, distance, by * s[i]);
        }
    }

    /// by·s + bias, from anywhere in memory. Rows and columns past the end have the last one's.
    template <bool keys_are_rows, int n>
    __device__ __forceinline__ void add_bias(float (&s)[n], float by, int row, int column) const
    {
        const int bytes = p_.bias.element == offload::Element::float32 ? 4 : 2;
        const int last_row = (keys_are_rows ? band_.k_len : band_.q_len) - 1;
        const int last_column = (keys_are_rows ? band_.q_len : band_.k_len) - 1;
        // hopper_supports() has strides of less than 2^31 bytes.
        const int across = static_cast<int>(keys_are_rows ? p_.bias.key : p_.bias.query) * bytes;
        const int along = static_cast<int>(keys_are_rows ? p_.bias.query : p_.bias.key) * bytes;
        const char* const head =
            static_cast<const char*>(p_.bias.data) + (batch_ * p_.bias.batch + head_ * p_.bias.head) * bytes;
        const char* rows[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            rows[half] = head + static_cast<std::int64_t>(min(row + 8 * half, last_row)) * across;
        }
        if constexpr (!keys_are_rows) {
            constexpr int width = n / 4 * 8;
            const bool is_whole = column - static_cast<int>(threadIdx.x % 4 * 2) + width - 1 <= last_column;
            const bool is_aligned = ((reinterpret_cast<std::uintptr_t>(head) | across) & (2 * bytes - 1)) == 0;
            if (is_whole && along == bytes && is_aligned) {
                add_pairs(s, by, rows[0] + std::int64_t{column} * bytes, rows[1] + std::int64_t{column} * bytes);
                return;
            }
        }
        const bool is_float32 = bytes == 4;
#pragma unroll
        for (int i = 0; i < n; ++i) {
            const int at = min(column + i / 4 * 8 + i % 2, last_column);
            const char* const place = rows[i / 2 % 2] + static_cast<std::int64_t>(at) * along;
            const float bias = is_float32 ? *reinterpret_cast<const float*>(place)
                                          : Math::value(*reinterpret_cast<const typename Math::Stored*>(place));
            s[i] = __builtin_fmaf(by, s[i], bias);
        }
    }

    /// The same where a lane's two neighbouring columns are one load.
    template <int n>
    __device__ __forceinline__ void add_pairs(float (&s)[n], float by, const char* upper, const char* lower) const
    {
        if (p_.bias.element == offload::Element::float32) {
#pragma unroll
            for (int i = 0; i < n; i += 2) {
                const float2 bias = *reinterpret_cast<const float2*>((i / 2 % 2 == 0 ? upper : lower) + i / 4 * 32);
                s[i] = __builtin_fmaf(by, s[i], bias.x);
                s[i + 1] = __builtin_fmaf(by, s[i + 1], bias.y);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < n; i += 2) {
            const auto bias = *reinterpret_cast<const std::uint32_t*>((i / 2 % 2 == 0 ? upper : lower) + i / 4 * 16);
            s[i] = __builtin_fmaf(by, s[i], Math::low(bias));
            s[i + 1] = __builtin_fmaf(by, s[i + 1], Math::high(bias));
        }
    }

    static constexpr float near_zero = 0.625F;

    /// tanh(x)/x - 1 of z = x², |x| below near_zero (Cephes tanhf).
    static __device__ __forceinline__ float tanh_excess(float z)
    {
        float y = -5.70498872745e-3F;
        y = y * z + 2.06390887954e-2F;
        y = y * z - 5.37397155531e-2F;
        y = y * z + 1.33314422036e-1F;
        y = y * z - 3.33332819422e-1F;
        return y * z;
    }

    static __device__ __forceinline__ float tanh_of(float x)
    {
        const float size = __builtin_fabsf(x);
        const float bounded = size > 20.0F ? 20.0F : size; // tanh(20) rounds to 1; more would be no number
        const float far = 1.0F - offload::quotient(2.0F, ptx::exp2_approx(2.0F * offload::log2_e * bounded) + 1.0F);
        return size < near_zero ? __builtin_fmaf(tanh_excess(x * x), x, x) : __builtin_copysignf(far, x);
    }

    /// Bits 4g + k of `drawn`: key k of the four, in the eight columns g, of the lane's row `own`. A lane's columns are
    /// the first two of the four keys, or with an odd lane the last two.
    static __device__ __forceinline__ std::uint32_t of_keys_as_columns(std::uint32_t drawn, unsigned own)
    {
        const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, drawn, 1);
        const std::uint32_t upper = (own == 0 ? drawn : other) >> (2 * own);
        const std::uint32_t lower = (own == 0 ? other : drawn) >> (2 * own);
        return (upper & 0x33333333U) | (lower & 0x33333333U) << 2U;
    }

    /// Bits 4g + k of `drawn`: key k of the four, for element `own` of the eight columns g.
    static __device__ __forceinline__ std::uint32_t of_keys_as_rows(std::uint32_t drawn, unsigned lane, unsigned own)
    {
        std::uint32_t kept = 0;
#pragma unroll
        for (unsigned element = 0; element < 4; ++element) {
            const std::uint32_t from = __shfl_sync(0xFFFFFFFFU, drawn, (lane & ~12U) | element << 2U);
            kept |= (from >> own & 0x11111111U) << element;
        }
        return kept;
    }

    const offload::Params& p_;
    const offload::Band& band_;
    const int batch_, head_;
};

} // namespace flashomp::cuda
