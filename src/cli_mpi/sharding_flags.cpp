#include "sharding_flags.hpp"

#include "number_option.hpp"
#include "report.hpp"

namespace flashomp::cli {

namespace {

std::string word_of(mpi::Scheme scheme)
{
    return with_flag_words(std::string(mpi::name_of(scheme)));
}

} // namespace

mpi::Sharding SharingFlags::sharding() const
{
    return {MPI_COMM_WORLD, layout.value_or(mpi::Layout::contiguous), scheme.value_or(mpi::Scheme::automatic),
            heads_ranks};
}

void SharingFlags::expect_ranks(std::int64_t ranks) const
{
    const bool is_grid = scheme == mpi::Scheme::grid;
    if (!is_grid && heads_ranks != 0) {
        throw Error(fmt::format("--heads-ranks was {} with --scheme {}; it is allowed with --scheme grid alone.",
                                heads_ranks, scheme ? word_of(*scheme) : "auto"));
    }
    if (is_grid && heads_ranks == 0) {
        throw Error(fmt::format("--scheme was grid without --heads-ranks; a number that divides the {} rank{} is "
                                "needed.",
                                ranks, ranks == 1 ? "" : "s"));
    }
    if (is_grid && ranks % heads_ranks != 0) {
        throw Error(fmt::format("--heads-ranks was {} with {} rank{}; it must divide the ranks.", heads_ranks, ranks,
                                ranks == 1 ? "" : "s"));
    }
}

void expect_heads(const mpi::Sharding& sharding, std::int64_t ranks, std::int64_t heads, const std::string& name)
{
    const std::int64_t members = planned(sharding, ranks).heads_ranks;
    if (members > heads) {
        throw NotBuilt(
            fmt::format("--scheme was {}, which shares out {} head{} of {} over {} ranks; allowed are at most "
                        "as many ranks as heads.",
                        word_of(sharding.scheme), heads, heads == 1 ? "" : "s", name, members));
    }
}

void add_sharing_flags(CLI::App& command, SharingFlags& flags, bool takes_all)
{
    command
        .add_option_function<std::string>(
            "--sharding",
            [&flags](const std::string& text) {
                flags.layout = parse_word<mpi::Layout>(
                    "--sharding", text, {{"contiguous", mpi::Layout::contiguous}, {"zigzag", mpi::Layout::zigzag}});
            },
            takes_all ? "which rows a rank has: contiguous, or zigzag, which is even under causal masks (default: both)"
                      : "which rows a rank has: contiguous (default) or zigzag, which is even under causal masks")
        ->type_name("NAME")
        ->group(sharing_group);
    command
        .add_option_function<std::string>(
            "--scheme",
            [&flags](const std::string& text) {
                const auto scheme = parse_word<mpi::Scheme>("--scheme", text,
                                                            {{"auto", mpi::Scheme::automatic},
                                                             {"ring", mpi::Scheme::ring},
                                                             {"all-gather", mpi::Scheme::all_gather},
                                                             {"ulysses", mpi::Scheme::ulysses},
                                                             {"grid", mpi::Scheme::grid}});
                flags.scheme = scheme == mpi::Scheme::automatic ? std::nullopt : std::optional(scheme);
            },
            takes_all ? "how queries meet keys of other ranks: ring, all-gather, ulysses or grid (default: all)"
                      : "how queries meet keys of other ranks: auto (default), ring, all-gather, ulysses or grid")
        ->type_name("NAME")
        ->group(sharing_group);
    add_number(command, "--heads-ranks", flags.heads_ranks, 1, 1 << 20,
               "with --scheme grid: how many neighbours share out heads; it divides the ranks")
        ->group(sharing_group);
}

cost::Scheme planned(const mpi::Sharding& sharding, std::int64_t ranks)
{
    cost::Scheme scheme;
    scheme.exchanging = sharding.scheme == mpi::Scheme::all_gather ? cost::Exchanging::gather : cost::Exchanging::ring;
    scheme.layout = sharding.layout == mpi::Layout::zigzag ? cost::Layout::zigzag : cost::Layout::contiguous;
    scheme.ranks = ranks;
    scheme.heads_ranks = sharding.scheme == mpi::Scheme::ulysses ? ranks
                         : sharding.scheme == mpi::Scheme::grid  ? sharding.heads_ranks
                                                                 : 1;
    return scheme;
}

std::vector<cost::Scheme> planned_schemes(const SharingFlags& flags, const cost::Shape& shape, std::int64_t ranks)
{
    flags.expect_ranks(ranks);
    if (flags.scheme) {
        return {ranks == 1 ? cost::Scheme{} : planned(flags.sharding(), ranks)};
    }
    std::vector<cost::Scheme> all = cost::schemes(shape, ranks);
    if (flags.layout) {
        const cost::Layout layout = planned(flags.sharding(), ranks).layout;
        std::erase_if(all, [&](const cost::Scheme& scheme) {
            return scheme.layout != layout && ranks > 1 && !scheme.is_ulysses();
        });
    }
    return all;
}

} // namespace flashomp::cli
