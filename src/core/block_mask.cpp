#include "flashomp/block_mask.hpp"

#include "block_mask_bounds.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <utility>

namespace flashomp {

namespace {

using namespace block_mask;

constexpr std::int64_t most_blocks = std::int64_t{1} << 31; // of a table, and partial ones
constexpr std::int32_t whole = -1, hidden = -2;

void check(const BlockMaskShape& shape)
{
    const auto refuse = [](const char* name, std::int64_t given, std::int64_t least, std::int64_t most) {
        if (given < least || given > most) {
            throw Error(fmt::format("block_mask: {} was {}; it must be {} to {}.", name, given, least, most));
        }
    };
    refuse("batch", shape.batch, 0, most_rows);
    refuse("heads_q", shape.heads_q, 1, std::int64_t{1} << 20);
    refuse("seqlen_q", shape.seqlen_q, 0, most_rows);
    refuse("seqlen_k", shape.seqlen_k, 0, most_rows);
    refuse("block_q", shape.block_q, fewest_of_block, most_of_block);
    refuse("block_k", shape.block_k, fewest_of_block, most_of_block);
    const double blocks = static_cast<double>(shape.batch) * static_cast<double>(shape.heads_q) *
                          static_cast<double>(shape.blocks_q()) * static_cast<double>(shape.blocks_k());
    if (blocks > static_cast<double>(most_blocks)) {
        throw Error(fmt::format("block_mask: there were {:.0f} blocks in all sequences and heads; at most {} are "
                                "allowed.",
                                blocks, most_blocks));
    }
}

std::int64_t bytes_of_row(const BlockMaskShape& shape)
{
    return (shape.block_k + 7) / 8;
}

std::int64_t bytes_of_block(const BlockMaskShape& shape)
{
    return shape.block_q * bytes_of_row(shape);
}

bool bit(const std::uint8_t* row, std::int64_t c)
{
    return ((row[c / 8] >> (c % 8)) & 1) != 0;
}

} // namespace

struct BlockMask::Storage {
    BlockMaskShape shape;
    BlockRows by_query, by_key;
    std::vector<std::uint8_t> bits;
    std::vector<std::int32_t> table;
    std::int64_t kept_pairs = 0;

    [[nodiscard]] std::int64_t rows() const { return shape.batch * shape.heads_q * shape.blocks_q(); }
    [[nodiscard]] std::int32_t partial_count() const
    {
        return static_cast<std::int32_t>(static_cast<std::int64_t>(bits.size()) / bytes_of_block(shape));
    }

    /// Calls f(row, entry, block of queries) for each entry of by_query.
    template <class F>
    void each_entry(F f) const
    {
        for (std::int64_t row = 0; row < rows(); ++row) {
            for (std::int64_t e = by_query.starts[at(row)]; e < by_query.starts[at(row) + 1]; ++e) {
                f(row, e, row % shape.blocks_q());
            }
        }
    }

    /// Fills what follows from by_query and bits.
    void complete()
    {
        const std::int64_t blocks_q = shape.blocks_q(), blocks_k = shape.blocks_k();
        const std::int64_t heads = shape.batch * shape.heads_q;
        table.assign(at(rows() * blocks_k), hidden);
        by_key.starts.assign(at(heads * blocks_k) + 1, 0);
        each_entry([&](std::int64_t row, std::int64_t e, std::int64_t block_q) {
            const std::int64_t block_k = by_query.blocks[at(e)];
            table[at(row * blocks_k + block_k)] = by_query.bits[at(e)];
            ++by_key.starts[at(row / blocks_q * blocks_k + block_k) + 1];
            kept_pairs += pairs_of(block_q, block_k, by_query.bits[at(e)]);
        });
        std::partial_sum(by_key.starts.begin(), by_key.starts.end(), by_key.starts.begin());
        by_key.blocks.resize(by_query.blocks.size());
        by_key.bits.resize(by_query.bits.size());
        std::vector<std::int64_t> next(by_key.starts.begin(), by_key.starts.end() - 1);
        each_entry([&](std::int64_t row, std::int64_t e, std::int64_t block_q) {
            const std::int64_t place = next[at(row / blocks_q * blocks_k + by_query.blocks[at(e)])]++;
            by_key.blocks[at(place)] = static_cast<std::int32_t>(block_q);
            by_key.bits[at(place)] = by_query.bits[at(e)];
        });
    }

    [[nodiscard]] std::int64_t pairs_of(std::int64_t block_q, std::int64_t block_k, std::int32_t number) const
    {
        const std::int64_t rows_there = std::min(shape.block_q, shape.seqlen_q - block_q * shape.block_q);
        const std::int64_t keys_there = std::min(shape.block_k, shape.seqlen_k - block_k * shape.block_k);
        if (number == whole) {
            return rows_there * keys_there;
        }
        std::int64_t pairs = 0;
        for (std::int64_t r = 0; r < rows_there; ++r) {
            const std::uint8_t* const row = bits.data() + number * bytes_of_block(shape) + r * bytes_of_row(shape);
            for (std::int64_t c = 0; c < keys_there; ++c) {
                pairs += bit(row, c) ? 1 : 0;
            }
        }
        return pairs;
    }
};

BlockMask::BlockMask(std::shared_ptr<const Storage> storage) : storage_(std::move(storage)) {}

BlockMask::Builder::Builder(const BlockMaskShape& shape) : storage_(std::make_unique<Storage>())
{
    check(shape);
    storage_->shape = shape;
    storage_->by_query.starts.push_back(0);
}

BlockMask::Builder::~Builder() = default;

void BlockMask::Builder::add_whole(std::int64_t block_k)
{
    storage_->by_query.blocks.push_back(static_cast<std::int32_t>(block_k));
    storage_->by_query.bits.push_back(whole);
}

std::span<std::uint8_t> BlockMask::Builder::add_partial(std::int64_t block_k)
{
    const std::int32_t number = storage_->partial_count();
    storage_->by_query.blocks.push_back(static_cast<std::int32_t>(block_k));
    storage_->by_query.bits.push_back(number);
    const auto bytes = at(bytes_of_block(storage_->shape));
    storage_->bits.resize(storage_->bits.size() + bytes);
    return {storage_->bits.data() + storage_->bits.size() - bytes, bytes};
}

void BlockMask::Builder::settle()
{
    Storage& s = *storage_;
    const auto row = static_cast<std::int64_t>(s.by_query.starts.size()) - 1;
    const std::int64_t block_q = row % s.shape.blocks_q();
    const std::int64_t block_k = s.by_query.blocks.back();
    const std::int64_t kept = s.pairs_of(block_q, block_k, s.by_query.bits.back());
    const std::int64_t all = s.pairs_of(block_q, block_k, whole);
    if (kept != 0 && kept != all) {
        return;
    }
    s.bits.resize(s.bits.size() - at(bytes_of_block(s.shape)));
    if (kept == all) {
        s.by_query.bits.back() = whole;
    } else {
        s.by_query.blocks.pop_back();
        s.by_query.bits.pop_back();
    }
}

void BlockMask::Builder::end_row()
{
    storage_->by_query.starts.push_back(static_cast<std::int64_t>(storage_->by_query.blocks.size()));
}

BlockMask BlockMask::Builder::finish()
{
    storage_->complete();
    return BlockMask(std::shared_ptr<const Storage>(std::move(storage_)));
}

BlockMask BlockMask::from_blocks(const BlockMaskShape& shape, std::span<const std::int64_t> starts,
                                 std::span<const std::int32_t> blocks, std::span<const std::int32_t> bits_of_block,
                                 std::span<const std::uint8_t> bits)
{
    check(shape);
    auto storage = std::make_shared<Storage>();
    storage->shape = shape;
    const std::int64_t rows = storage->rows();
    if (static_cast<std::int64_t>(starts.size()) != rows + 1 || starts.front() != 0 ||
        starts.back() != static_cast<std::int64_t>(blocks.size())) {
        throw Error(fmt::format("block_mask: starts had {} entries from {} to {}; it must have {}, from 0 to {}, the "
                                "blocks there are.",
                                starts.size(), starts.empty() ? 0 : starts.front(), starts.empty() ? 0 : starts.back(),
                                rows + 1, blocks.size()));
    }
    if (bits_of_block.size() != blocks.size()) {
        throw Error(fmt::format("block_mask: bits_of_block had {} entries; it must have {}, one for each block.",
                                bits_of_block.size(), blocks.size()));
    }
    const std::int64_t each = bytes_of_block(shape);
    if (static_cast<std::int64_t>(bits.size()) % each != 0) {
        throw Error(
            fmt::format("block_mask: bits had {} bytes; it must have {} for each partial block.", bits.size(), each));
    }
    const std::int64_t partial = static_cast<std::int64_t>(bits.size()) / each;
    for (std::int64_t row = 0; row < rows; ++row) {
        if (starts[at(row)] < 0 || starts[at(row)] > starts[at(row) + 1] ||
            starts[at(row) + 1] > static_cast<std::int64_t>(blocks.size())) {
            throw Error(fmt::format("block_mask: starts goes from {} to {} at index {}; it must not decrease, nor pass "
                                    "{}, the blocks there are.",
                                    starts[at(row)], starts[at(row) + 1], row, blocks.size()));
        }
        for (std::int64_t e = starts[at(row)]; e < starts[at(row) + 1]; ++e) {
            const std::int32_t block = blocks[at(e)];
            if (block < 0 || block >= shape.blocks_k()) {
                throw Error(fmt::format("block_mask: block {} of row {} was {}; it must be 0 to {}.",
                                        e - starts[at(row)], row, block, shape.blocks_k() - 1));
            }
            if (e > starts[at(row)] && blocks[at(e) - 1] >= block) {
                throw Error(fmt::format("block_mask: row {} has block {} after {}; blocks of a row must ascend.", row,
                                        block, blocks[at(e) - 1]));
            }
            if (bits_of_block[at(e)] < whole || bits_of_block[at(e)] >= partial) {
                throw Error(fmt::format("block_mask: bits_of_block of block {} of row {} was {}; it must be -1 (whole) "
                                        "or less than {}, the partial blocks there are.",
                                        e - starts[at(row)], row, bits_of_block[at(e)], partial));
            }
        }
    }
    storage->by_query = {
        {starts.begin(), starts.end()}, {blocks.begin(), blocks.end()}, {bits_of_block.begin(), bits_of_block.end()}};
    storage->bits.assign(bits.begin(), bits.end());
    storage->complete();
    return BlockMask(std::move(storage));
}

const BlockMaskShape& BlockMask::shape() const
{
    return storage_->shape;
}

const BlockRows& BlockMask::by_query() const
{
    return storage_->by_query;
}

const BlockRows& BlockMask::by_key() const
{
    return storage_->by_key;
}

std::span<const std::uint8_t> BlockMask::bits() const
{
    return storage_->bits;
}

std::span<const std::int32_t> BlockMask::table() const
{
    return storage_->table;
}

bool BlockMask::keeps(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const
{
    const BlockMaskShape& s = storage_->shape;
    const std::int64_t head = (s.batch == 1 ? 0 : b) * s.heads_q + (s.heads_q == 1 ? 0 : h);
    const std::int64_t row = head * s.blocks_q() + i / s.block_q;
    const std::int32_t block = storage_->table[at(row * s.blocks_k() + j / s.block_k)];
    if (block < 0) {
        return block == whole;
    }
    const std::uint8_t* const line =
        storage_->bits.data() + block * bytes_of_block(s) + i % s.block_q * bytes_of_row(s);
    return bit(line, j % s.block_k);
}

std::int64_t BlockMask::kept_pairs() const
{
    return storage_->kept_pairs;
}

} // namespace flashomp
