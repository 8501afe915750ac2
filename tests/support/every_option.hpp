// Problems with one option each, made from the lists of option_list.hpp: an option that is in a list is in every test
// that walks these.
#pragma once

#include "host_tensor.hpp"
#include "option_list.hpp"
#include "quantized.hpp"

#include "flashomp/attention.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::testing {

using Tensors = std::map<std::string, io::HostTensor>;

/// A problem of batch 2 and heads 4/1 with one option on. Moves, does not copy: `options` views the tensors, whose
/// memory stays where it is when they move.
struct OptionCase {
    std::string option;             ///< its name in the lists; empty: none is on
    Tensors tensors;                ///< q, k, v, do and those of the option, by the names of files
    Options options = {};           ///< the option; views of `tensors`
    std::vector<std::string> words; ///< the option on the command line; empty for tensors
    std::string json;               ///< the option among the options of a case in cases.json; empty for tensors

    /// Whether files and the command line do not have the option.
    [[nodiscard]] bool is_of_programs() const
    {
        return std::find(program_options.begin(), program_options.end(), option) != program_options.end();
    }
    [[nodiscard]] bool is_float8() const { return tensors.at("q").dtype() == DType::float8_e4m3; }

    /// 8 bits and caches have no gradients.
    [[nodiscard]] bool is_forward_only() const
    {
        return is_float8() || std::any_of(tensor_options.begin(), tensor_options.end(), [&](const TensorOption& one) {
                   return one.is_of_cache && one.name == option;
               });
    }

    /// Runs forward, and backward where the dtype has it. Results by the names of files.
    [[nodiscard]] Tensors run(const Options& given, std::vector<Report>* reports = nullptr) const
    {
        const io::HostTensor& q = tensors.at("q");
        const bool is_packed = q.rank() == 3;
        Tensors results;
        const auto result = [&](const char* name, DType dtype, const io::Shape& shape) {
            return results.emplace(name, io::HostTensor(dtype, shape, io::Fill::poison)).first->second.view();
        };
        const DType dtype = output_type_of(q.dtype());
        const auto view = [&](const char* name) { return tensors.at(name).view(); };
        const io::Shape& s = q.shape();
        const TensorView o = result("o", dtype, s);
        const TensorView lse =
            is_packed ? result("lse", DType::float32, {s[1], s[0]}) : result("lse", DType::float32, {s[0], s[2], s[1]});
        const Report first = forward({view("q"), view("k"), view("v"), o, lse}, given);
        if (reports != nullptr) {
            reports->push_back(first);
        }
        if (is_forward_only()) {
            return results;
        }
        BackwardArgs args;
        args.q = view("q");
        args.k = view("k");
        args.v = view("v");
        args.o = o;
        args.lse = lse;
        args.dout = view("do");
        args.dq = result("dq", dtype, s);
        args.dk = result("dk", dtype, tensors.at("k").shape());
        args.dv = result("dv", dtype, tensors.at("v").shape());
        for (const TensorOption& listed : tensor_options) {
            if (listed.gradient && given.*listed.member) {
                const io::HostTensor& like = tensors.at(listed.name);
                args.*listed.gradient.given = result(listed.gradient.name, like.dtype(), like.shape());
            }
        }
        const Report second = backward(args, given);
        if (reports != nullptr) {
            reports->push_back(second);
        }
        return results;
    }
};

/// Makes the cases.
class OptionCases {
public:
    /// Every option of the lists, at each value that tells something.
    [[nodiscard]] static std::vector<OptionCase> all(std::int64_t seqlen_q)
    {
        const OptionCases make(seqlen_q);
        std::vector<OptionCase> cases;
        for (const TensorOption& option : tensor_options) {
            if (option.axes[0] != Axis::boundaries && !option.is_of_cache) {
                cases.push_back(make.with_tensor(option));
            }
        }
        cases.push_back(make.cached({{"cache_seqlens", {{2}, {5, 13}}}}));
        cases.push_back(make.cached({{"cache_batch_index", {{2}, {1, 0}}}}));
        cases.push_back(make.cached({{"block_table", {{2, 1}, {1, 0}}}}));
        cases.push_back(make.cached(
            {{"kv_indptr", {{3}, {0, 1, 2}}}, {"kv_indices", {{2}, {1, 0}}}, {"kv_last_page_len", {{2}, {13, 7}}}}));
        cases.push_back(make.packed({{0, 4, 9}, {0, 3, 20}}));
        for (const NumberOption& option : number_options) {
            for (const double value : {0.75, -0.75}) {
                if (option.is_allowed(value)) {
                    cases.push_back(make.plain(option.name));
                    option.set(cases.back().options, value);
                    cases.back().words = {option.flag, std::to_string(value)};
                    cases.back().json = fmt::format("\"{}\": {}", option.name, value);
                }
            }
        }
        const auto other = [&](const char* name, std::vector<std::string> words, const char* value) -> Options& {
            cases.push_back(make.plain(name));
            cases.back().words = std::move(words);
            cases.back().json = fmt::format("\"{}\": {}", name, value);
            return cases.back().options;
        };
        other("causal", {"--causal", "top-left"}, "\"top_left\"").causal = Causal::top_left;
        other("causal", {"--causal", "bottom-right"}, "\"bottom_right\"").causal = Causal::bottom_right;
        other("window", {"--window", "5,1"}, "[5, 1]").window = {5, 1};
        other("dropout", {"--dropout", "0.5", "--seed", "3", "--offset", "4"},
              R"({"probability": 0.5, "seed": 3, "offset": 4})")
            .dropout = {0.5, 3, 4};
        cases.push_back(make.plain("block_mask"));
        cases.back().options.block_mask = BlockMask::from_predicate(
            {2, 1, seqlen_q, keys, 16, 16}, [](auto b, auto, auto i, auto j) { return (b + i + 2 * j) % 3 != 0; });
        cases.push_back(make.plain("positions_q")); // the last query of a longer sequence, after others
        cases.back().options.causal = Causal::top_left;
        cases.back().options.positions_q = {30, {{{2, seqlen_q - 1}, {20, 1}}}};
        cases.push_back(make.plain("positions_k"));
        cases.back().options.window = {10, 8};
        cases.back().options.positions_k = {40, {{{1, 6}, {20, 7}}}};
        cases.push_back(make.plain("first_sequence")); // which dropout goes by
        cases.back().options.dropout = {0.5, 3, 4};
        cases.back().options.first_sequence = 3;
        cases.push_back(make.plain("first_head"));
        cases.back().options.dropout = {0.5, 3, 4};
        cases.back().options.first_head = 5;
        return cases;
    }

    /// The same problem without the option.
    [[nodiscard]] static OptionCase without(const OptionCase& with, std::int64_t seqlen_q)
    {
        const OptionCases make(seqlen_q);
        if (with.options.cu_seqlens_q) {
            return make.packed({{0, 9, 9}, {0, 20, 20}});
        }
        OptionCase without = make.plain("", with.is_float8());
        if (with.options.first_sequence != 0 || with.options.first_head != 0) {
            without.options.dropout = with.options.dropout;
        }
        return without;
    }

private:
    explicit OptionCases(std::int64_t seqlen_q) : seqlen_q_(seqlen_q) {}

    static io::HostTensor drawn(const io::Shape& shape, unsigned seed)
    {
        io::HostTensor tensor(DType::float32, shape);
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        auto* const values = static_cast<float*>(tensor.data());
        std::generate(values, values + tensor.elements(), [&] { return normal(random); });
        return tensor;
    }

    [[nodiscard]] OptionCase plain(std::string name, bool is_float8 = false) const
    {
        OptionCase made{.option = std::move(name), .tensors = {}, .words = {}, .json = {}};
        made.tensors.emplace("q", drawn({2, seqlen_q_, 4, 16}, 1));
        made.tensors.emplace("k", drawn({2, keys, 1, 16}, 2));
        made.tensors.emplace("v", drawn({2, keys, 1, 16}, 3));
        made.tensors.emplace("do", drawn({2, seqlen_q_, 4, 16}, 4));
        if (is_float8) {
            for (const char* const input : {"q", "k", "v"}) {
                made.tensors.at(input) = io::quantized(made.tensors.at(input), 2).elements;
            }
            made.options.scale = 1e-4; // elements reach 448
        }
        return made;
    }

    /// A tensor of the option's dtype and shape, without broadcasting.
    [[nodiscard]] OptionCase with_tensor(const TensorOption& option) const
    {
        OptionCase made = plain(option.name, option.is_float8_only);
        const std::map<Axis, std::int64_t> extents{{Axis::batch, 2},
                                                   {Axis::heads_q, 4},
                                                   {Axis::heads_kv, 1},
                                                   {Axis::seqlen_q, seqlen_q_},
                                                   {Axis::seqlen_k, keys}};
        io::Shape shape;
        for (std::size_t axis = 0; axis < static_cast<std::size_t>(option.rank); ++axis) {
            shape.push_back(extents.at(option.axes.at(axis)));
        }
        io::HostTensor tensor = drawn(shape, 5);
        if (option.dtype == DType::boolean) {
            io::HostTensor mask(DType::boolean, shape);
            const auto* const from = static_cast<const float*>(tensor.data());
            std::transform(from, from + tensor.elements(), static_cast<std::uint8_t*>(mask.data()),
                           [](float x) { return static_cast<std::uint8_t>(x < 0.5F ? 1 : 0); });
            tensor = std::move(mask);
        }
        add(made, option, std::move(tensor));
        return made;
    }

    struct Table {
        io::Shape shape;
        std::vector<std::int32_t> values;
    };

    /// k and v of plain() as a cache with these tables, which are one option.
    [[nodiscard]] OptionCase cached(const std::map<std::string, Table>& tables) const
    {
        OptionCase made = plain(tables.begin()->first);
        for (const TensorOption& option : tensor_options) {
            if (const auto found = tables.find(option.name); found != tables.end()) {
                io::HostTensor tensor(DType::int32, found->second.shape);
                std::copy(found->second.values.begin(), found->second.values.end(),
                          static_cast<std::int32_t*>(tensor.data()));
                add(made, option, std::move(tensor));
            }
        }
        return made;
    }

    struct Boundaries {
        std::vector<std::int32_t> q, k;
    };

    /// Both cu_seqlens, which are one option.
    [[nodiscard]] static OptionCase packed(const Boundaries& boundaries)
    {
        OptionCase made{.option = "cu_seqlens_q", .tensors = {}, .words = {}, .json = {}};
        made.tensors.emplace("q", drawn({9, 4, 16}, 1));
        made.tensors.emplace("k", drawn({20, 1, 16}, 2));
        made.tensors.emplace("v", drawn({20, 1, 16}, 3));
        made.tensors.emplace("do", drawn({9, 4, 16}, 4));
        for (const TensorOption& option : tensor_options) {
            if (is_boundaries(option)) {
                const auto& from = option.member == &Options::cu_seqlens_q ? boundaries.q : boundaries.k;
                io::HostTensor tensor(DType::int32, {static_cast<std::int64_t>(from.size())});
                std::copy(from.begin(), from.end(), static_cast<std::int32_t*>(tensor.data()));
                add(made, option, std::move(tensor));
            }
        }
        return made;
    }

    static void add(OptionCase& made, const TensorOption& option, io::HostTensor tensor)
    {
        const io::HostTensor& kept = made.tensors.emplace(option.name, std::move(tensor)).first->second;
        made.options.*option.member = kept.view();
    }

    static constexpr std::int64_t keys = 13;
    std::int64_t seqlen_q_;
};

} // namespace flashomp::testing
