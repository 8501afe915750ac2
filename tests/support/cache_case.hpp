// A random problem whose keys are in a key/value cache, in every form that a cache may have. Memory that belongs to
// nobody holds NaN, and tables there hold numbers that are no pages.
#pragma once

#include "attention_case.hpp"
#include "features.hpp"

#include "float8.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

namespace flashomp::testing {

/// How the keys of a case are given.
enum class CacheForm : std::uint8_t { contiguous, batch_index, block_table, compressed };

constexpr std::array<CacheForm, 4> cache_forms{CacheForm::contiguous, CacheForm::batch_index, CacheForm::block_table,
                                               CacheForm::compressed};

/// Whose own the scales of a cache of 8 bits are.
enum class ScaledBy : std::uint8_t { nothing, heads, sequences, pages };

class CacheCase {
public:
    /// shape.seqlen_k: the most keys of a sequence, in whole pages. is_hnd: pages are [heads, page_size, head_dim].
    CacheCase(const Shape& shape, std::vector<std::int32_t> lengths, std::int64_t page_size, DType dtype,
              std::uint64_t seed, bool is_hnd = false)
        : attention(shape, dtype, seed), lengths_(std::move(lengths)), page_size_(page_size), is_hnd_(is_hnd)
    {
        const auto pages = static_cast<std::size_t>(shape.batch * pages_of_one());
        numbers_.resize(pages + 3); // some pages belong to nobody
        std::iota(numbers_.begin(), numbers_.end(), 0);
        std::shuffle(numbers_.begin(), numbers_.end(), attention.random());
        caches_.resize(static_cast<std::size_t>(shape.batch) + 1);
        std::iota(caches_.begin(), caches_.end(), 0);
        std::shuffle(caches_.begin(), caches_.end(), attention.random());
        make_tables();
        write_caches();
    }

    /// The arguments of forward() with the keys in this form; the outputs are poisoned.
    [[nodiscard]] ForwardArgs args(CacheForm form)
    {
        attention.poison_outputs();
        ForwardArgs args = attention.forward_args();
        if (form == CacheForm::contiguous) {
            args.k = std::as_const(k_).view();
            args.v = std::as_const(v_).view();
        } else if (form == CacheForm::batch_index) {
            args.k = std::as_const(k_of_caches_).view();
            args.v = std::as_const(v_of_caches_).view();
        } else {
            args.k = pages(k_pages_);
            args.v = pages(v_pages_);
        }
        return args;
    }

    /// The options of the case with the tables of this form.
    [[nodiscard]] Options options(CacheForm form) const
    {
        Options options = attention.options;
        if (scaled_by_ == ScaledBy::heads) {
            options.k_scale = k_scale_of_heads_.view();
            options.v_scale = v_scale_of_heads_.view();
        } else if (scaled_by_ != ScaledBy::nothing) {
            const bool has_pages = form == CacheForm::block_table || form == CacheForm::compressed;
            const bool has_index = form == CacheForm::batch_index;
            options.k_scale =
                has_pages ? k_scale_of_pages_.view() : (has_index ? k_scale_of_caches_ : k_scale_of_sequences_).view();
            options.v_scale =
                has_pages ? v_scale_of_pages_.view() : (has_index ? v_scale_of_caches_ : v_scale_of_sequences_).view();
        }
        if (form == CacheForm::compressed) {
            options.kv_indptr = indptr_.view();
            options.kv_indices = indices_.view();
            options.kv_last_page_len = last_page_len_.view();
            return options;
        }
        options.cache_seqlens = seqlens_.view();
        if (form == CacheForm::batch_index) {
            options.cache_batch_index = batch_index_.view();
        } else if (form == CacheForm::block_table) {
            options.block_table = table_.view();
        }
        return options;
    }

    /// k and v become float8_e4m3 or int8, rounded to nearest, with drawn scales. Those of pages are for the forms that
    /// have pages. is_exact: scales are powers of two, so that products with them have no rounding.
    void quantise(DType to, ScaledBy by, bool is_exact = false)
    {
        scaled_by_ = by;
        quantise(attention.k, k_scales_, to, is_exact);
        quantise(attention.v, v_scales_, to, is_exact);
        write_caches();
    }

    /// The keys, or values, as the numbers that they stand for, in another dtype.
    [[nodiscard]] HostTensor products(const HostTensor& narrow, const std::vector<float>& scales, DType dtype) const
    {
        HostTensor wide(DType::float32, narrow.shape());
        const io::Shape& s = narrow.shape();
        for (std::int64_t i = 0; i < narrow.elements(); ++i) {
            const auto byte = static_cast<const std::uint8_t*>(narrow.data())[i];
            const float x = narrow.dtype() == DType::int8 ? static_cast<float>(static_cast<std::int8_t>(byte))
                                                          : float_from_float8_e4m3(byte);
            static_cast<float*>(wide.data())[i] = x * scales[scale_of(s, i)];
        }
        return io::converted(wide, dtype);
    }
    [[nodiscard]] const std::vector<float>& k_scales() const { return k_scales_; }
    [[nodiscard]] const std::vector<float>& v_scales() const { return v_scales_; }

    /// The scale of a page's key head, in the memory that options have.
    [[nodiscard]] float* page_scales() { return static_cast<float*>(k_scale_of_pages_.data()); }

    /// Other lengths, which the pages and caches then have keys for.
    void set_lengths(std::vector<std::int32_t> lengths)
    {
        lengths_ = std::move(lengths);
        make_tables();
        write_caches();
    }

    /// The pages of the sequences in another order.
    void shuffle_pages()
    {
        std::shuffle(numbers_.begin(), numbers_.end(), attention.random());
        make_tables();
        write_caches();
    }

    [[nodiscard]] std::int64_t pages_of_one() const { return attention.shape().seqlen_k / page_size_; }
    [[nodiscard]] const std::vector<std::int32_t>& lengths() const { return lengths_; }
    [[nodiscard]] std::int32_t* table() { return values(table_); }
    [[nodiscard]] std::int32_t* seqlens() { return values(seqlens_); }
    [[nodiscard]] std::int32_t* indptr() { return values(indptr_); }
    [[nodiscard]] std::int32_t* indices() { return values(indices_); }
    [[nodiscard]] std::int32_t* last_page_len() { return values(last_page_len_); }
    [[nodiscard]] std::int32_t* batch_index() { return values(batch_index_); }

    AttentionCase attention; ///< its k and v hold the keys of each sequence, and more

private:
    static std::int32_t* values(HostTensor& tensor) { return static_cast<std::int32_t*>(tensor.data()); }

    static HostTensor int32s(const io::Shape& shape, std::int32_t value)
    {
        HostTensor tensor(DType::int32, shape);
        std::fill_n(values(tensor), tensor.elements(), value);
        return tensor;
    }

    void make_tables()
    {
        constexpr std::int32_t nobodys = 1 << 30;
        const std::int64_t batch = attention.shape().batch;
        const std::int64_t each = pages_of_one();
        reuse(seqlens_, int32s({batch}, 0));
        reuse(batch_index_, int32s({batch}, 0));
        reuse(table_, int32s({batch, each}, nobodys));
        reuse(indptr_, int32s({batch + 1}, 0));
        reuse(indices_, int32s({batch * each + 2}, nobodys));
        reuse(last_page_len_, int32s({batch}, 0));
        std::copy(lengths_.begin(), lengths_.end(), seqlens());
        std::copy_n(caches_.begin(), batch, batch_index());
        for (std::int64_t b = 0; b < batch; ++b) {
            const std::int64_t length = lengths_[static_cast<std::size_t>(b)];
            const std::int64_t used = (length + page_size_ - 1) / page_size_;
            for (std::int64_t n = 0; n < used; ++n) {
                const std::int32_t page = numbers_[static_cast<std::size_t>(b * each + n)];
                table()[b * each + n] = page;
                indices()[indptr()[b] + n] = page;
            }
            indptr()[b + 1] = indptr()[b] + static_cast<std::int32_t>(used);
            last_page_len()[b] = static_cast<std::int32_t>(used == 0 ? 0 : length - (used - 1) * page_size_);
        }
    }

    /// In the same memory, where there is some: views stay good.
    static void reuse(HostTensor& tensor, HostTensor with)
    {
        if (tensor.dtype() == with.dtype() && tensor.elements() == with.elements()) {
            std::memcpy(tensor.data(), with.data(), static_cast<std::size_t>(with.bytes()));
        } else {
            tensor = std::move(with);
        }
    }

    /// Where the scale of element i of a tensor of shape s is.
    [[nodiscard]] std::size_t scale_of(const io::Shape& s, std::int64_t i) const
    {
        const std::int64_t head = i / s[3] % s[2];
        const std::int64_t row = i / s[3] / s[2] % s[1];
        const std::int64_t page = i / s[3] / s[2] / s[1] * pages_of_one() + row / page_size_;
        return static_cast<std::size_t>(page * s[2] + head);
    }

    void quantise(HostTensor& all, std::vector<float>& scales, DType to, bool is_exact)
    {
        const io::Shape& s = all.shape();
        const std::int64_t each = pages_of_one();
        scales.resize(static_cast<std::size_t>(s[0] * each * s[2]));
        std::uniform_int_distribution<int> powers(0, 3);
        std::vector<float> drawn(scales.size());
        for (float& scale : drawn) { // of normally distributed elements, so that a few are too large
            const float most = to == DType::int8 ? 0x1p-6F : 0x1p-8F;
            scale = std::ldexp(is_exact ? most : 1.37F * most, powers(attention.random()));
        }
        for (std::size_t i = 0; i < scales.size(); ++i) {
            const auto head = static_cast<std::int64_t>(i) % s[2];
            const auto sequence = static_cast<std::int64_t>(i) / s[2] / each;
            const std::int64_t from = scaled_by_ == ScaledBy::pages       ? static_cast<std::int64_t>(i)
                                      : scaled_by_ == ScaledBy::sequences ? sequence * each * s[2] + head
                                                                          : head;
            scales[i] = scaled_by_ == ScaledBy::nothing ? 1.0F : drawn[static_cast<std::size_t>(from)];
        }
        HostTensor narrow(to, s);
        const std::vector<double> values = doubles(all);
        for (std::int64_t i = 0; i < narrow.elements(); ++i) {
            const double x = values[static_cast<std::size_t>(i)] / static_cast<double>(scales[scale_of(s, i)]);
            const double most = to == DType::int8 ? 127.0 : most_float8_e4m3;
            const double within = std::clamp(x, -most, most);
            static_cast<std::uint8_t*>(narrow.data())[i] =
                to == DType::int8 ? static_cast<std::uint8_t>(static_cast<std::int8_t>(std::nearbyint(within)))
                                  : float8_e4m3_from(within);
        }
        all = std::move(narrow);
    }

    void write_scales(const std::vector<float>& scales, HostTensor& of_heads, HostTensor& of_sequences,
                      HostTensor& of_caches, HostTensor& of_pages) const
    {
        const std::int64_t heads = attention.shape().heads_kv, batch = attention.shape().batch;
        const std::int64_t each = pages_of_one();
        reuse(of_heads, HostTensor(DType::float32, {heads}, Fill::poison));
        reuse(of_sequences, HostTensor(DType::float32, {batch, heads}, Fill::poison));
        reuse(of_caches, HostTensor(DType::float32, {batch + 1, heads}, Fill::poison));
        reuse(of_pages, HostTensor(DType::float32, {static_cast<std::int64_t>(numbers_.size()), heads}, Fill::poison));
        const auto copy = [&](HostTensor& to, std::int64_t row, std::int64_t page) {
            std::copy_n(scales.begin() + page * heads, heads, static_cast<float*>(to.data()) + row * heads);
        };
        copy(of_heads, 0, 0);
        for (std::int64_t b = 0; b < batch; ++b) {
            copy(of_sequences, b, b * each);
            copy(of_caches, caches_[static_cast<std::size_t>(b)], b * each);
            const std::int64_t used = (lengths_[static_cast<std::size_t>(b)] + page_size_ - 1) / page_size_;
            for (std::int64_t n = 0; n < used; ++n) {
                copy(of_pages, numbers_[static_cast<std::size_t>(b * each + n)], b * each + n);
            }
        }
    }

    void write_caches()
    {
        if (!k_scales_.empty()) {
            write_scales(k_scales_, k_scale_of_heads_, k_scale_of_sequences_, k_scale_of_caches_, k_scale_of_pages_);
            write_scales(v_scales_, v_scale_of_heads_, v_scale_of_sequences_, v_scale_of_caches_, v_scale_of_pages_);
        }
        write_cache(attention.k, k_, k_of_caches_, k_pages_);
        write_cache(attention.v, v_, v_of_caches_, v_pages_);
    }

    void write_cache(const HostTensor& all, HostTensor& contiguous, HostTensor& of_caches, HostTensor& in_pages) const
    {
        const io::Shape& s = all.shape(); // [batch, row, head, depth]
        const auto pages_there = static_cast<std::int64_t>(numbers_.size());
        const DType dtype = all.dtype();
        reuse(contiguous, HostTensor(dtype, s, Fill::poison));
        reuse(of_caches, HostTensor(dtype, {s[0] + 1, s[1], s[2], s[3]}, Fill::poison));
        reuse(in_pages, HostTensor(dtype,
                                   is_hnd_ ? io::Shape{pages_there, s[2], page_size_, s[3]}
                                           : io::Shape{pages_there, page_size_, s[2], s[3]},
                                   Fill::poison));
        const std::int64_t bytes = size_of(dtype) * s[3];
        const auto copy = [&](HostTensor& to, std::int64_t to_row, std::int64_t from_row) {
            std::memcpy(static_cast<char*>(to.data()) + to_row * bytes,
                        static_cast<const char*>(all.data()) + from_row * bytes, static_cast<std::size_t>(bytes));
        };
        for (std::int64_t b = 0; b < s[0]; ++b) {
            for (std::int64_t j = 0; j < lengths_[static_cast<std::size_t>(b)]; ++j) {
                const std::int64_t cache = caches_[static_cast<std::size_t>(b)];
                const std::int64_t page = numbers_[static_cast<std::size_t>(b * pages_of_one() + j / page_size_)];
                for (std::int64_t h = 0; h < s[2]; ++h) {
                    const std::int64_t from = (b * s[1] + j) * s[2] + h;
                    copy(contiguous, from, from);
                    copy(of_caches, (cache * s[1] + j) * s[2] + h, from);
                    copy(in_pages,
                         is_hnd_ ? (page * s[2] + h) * page_size_ + j % page_size_
                                 : (page * page_size_ + j % page_size_) * s[2] + h,
                         from);
                }
            }
        }
    }

    [[nodiscard]] ConstTensorView pages(const HostTensor& tensor) const
    {
        return is_hnd_ ? tensor.view().transposed(1, 2) : tensor.view();
    }

    std::vector<std::int32_t> lengths_;
    std::int64_t page_size_;
    bool is_hnd_;
    std::vector<std::int32_t> numbers_; ///< of pages: those of sequence 0, then of sequence 1, and of nobody
    std::vector<std::int32_t> caches_;
    HostTensor k_, v_, k_of_caches_, v_of_caches_, k_pages_, v_pages_;
    HostTensor seqlens_, batch_index_, table_, indptr_, indices_, last_page_len_;
    ScaledBy scaled_by_ = ScaledBy::nothing;
    std::vector<float> k_scales_, v_scales_; ///< [sequence, page of it, key head]; empty without 8 bits
    HostTensor k_scale_of_heads_, k_scale_of_sequences_, k_scale_of_caches_, k_scale_of_pages_;
    HostTensor v_scale_of_heads_, v_scale_of_sequences_, v_scale_of_caches_, v_scale_of_pages_;
};

/// A case with these options on and everything else drawn: any page size, lengths from 0 to the end of the cache.
inline CacheCase cache_case_with(const Features& features, DType dtype, std::uint64_t seed, std::int64_t queries)
{
    Draw draw(seed);
    const std::array<std::int64_t, 8> sizes{1, 2, 3, 5, 16, 24, 64, 130};
    const std::int64_t page_size = sizes.at(static_cast<std::size_t>(draw(0, 7)));
    Shape shape;
    shape.batch = draw(1, 4);
    shape.heads_kv = draw(1, 2);
    shape.heads_q = shape.heads_kv * (has(features, Feature::grouped_heads) ? draw(2, 3) : 1);
    shape.seqlen_q = queries;
    shape.seqlen_k = page_size * std::max<std::int64_t>(1, draw(1, 300) / page_size);
    shape.head_dim = draw(1, 80);
    shape.head_dim_v = has(features, Feature::value_head_dim) ? draw(1, 80) : shape.head_dim;
    std::vector<std::int32_t> lengths;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
        lengths.push_back(static_cast<std::int32_t>(draw(1, 6) == 1 ? 0 : draw(0, shape.seqlen_k)));
    }
    CacheCase cached(shape, lengths, page_size, dtype, seed, draw.coin());
    AttentionCase& attention = cached.attention;
    Options& options = attention.options;
    if (has(features, Feature::top_left)) {
        options.causal = Causal::top_left;
    }
    if (has(features, Feature::bottom_right)) {
        options.causal = Causal::bottom_right;
    }
    if (has(features, Feature::window)) {
        options.window = {draw(-1, 100), draw(-1, 40)};
    }
    if (has(features, Feature::softcap)) {
        options.softcap = static_cast<double>(draw(1, 50));
    }
    if (has(features, Feature::alibi)) {
        attention.add_alibi(draw.coin());
    }
    if (has(features, Feature::bias)) {
        attention.add_bias({draw.coin(), draw.coin(), draw.coin(), draw(1, 4) == 1},
                           draw.coin() ? DType::float32 : dtype);
    }
    if (has(features, Feature::key_padding)) {
        attention.add_key_padding(draw(1, 5) == 1 ? 1.0 : 0.3);
    }
    if (has(features, Feature::sink)) {
        attention.add_sink();
    }
    if (has(features, Feature::dropout)) {
        attention.add_dropout(0.17);
    }
    add_masks(attention, features, draw);
    return cached;
}

/// Whether the compressed form takes the options: masks and biases [.., Nk] have no Nk there.
inline bool takes(const Options& options, CacheForm form)
{
    const bool has_nk =
        options.key_padding_mask || options.mask || options.block_mask || (options.bias && options.bias.shape[3] != 1);
    return form != CacheForm::compressed || !has_nk;
}

} // namespace flashomp::testing
