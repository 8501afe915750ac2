// A random problem whose keys are in a key/value cache, in every form that a cache may have. Memory that belongs to
// nobody holds NaN, and tables there hold numbers that are no pages.
#pragma once

#include "attention_case.hpp"
#include "features.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace flashomp::testing {

/// How the keys of a case are given.
enum class CacheForm : std::uint8_t { contiguous, batch_index, block_table, compressed };

constexpr std::array<CacheForm, 4> cache_forms{CacheForm::contiguous, CacheForm::batch_index, CacheForm::block_table,
                                               CacheForm::compressed};

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
        if (tensor.elements() == with.elements()) {
            std::memcpy(tensor.data(), with.data(), static_cast<std::size_t>(with.bytes()));
        } else {
            tensor = std::move(with);
        }
    }

    void write_caches()
    {
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
