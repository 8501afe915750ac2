// Each option of the lists (option_list.hpp) alone: it changes the reference's results, every machine has the results
// of the reference, and validation knows its tensor. An option that is dropped on the way to a kernel fails here.
#include "support/comparison.hpp"
#include "support/every_option.hpp"
#include "support/target.hpp"

#include "flashomp/error.hpp"

#include <cstring>
#include <set>

namespace flashomp::testing {
namespace {

Options on_reference(Options options)
{
    options.backend = Backend::reference;
    options.threads = 1;
    return options;
}

class EveryOption : public EveryTargetTest {};

INSTANTIATE_TEST_SUITE_P(Machines, EveryOption, ::testing::ValuesIn(targets()), target_name);

TEST_P(EveryOption, ReachesTheKernels)
{
    for (const std::int64_t seqlen_q : {9, 1}) { // with one query, the heads of a group may be rows of one block
        for (const OptionCase& with : OptionCases::all(seqlen_q)) {
            SCOPED_TRACE(::testing::Message() << with.option << " " << with.json << ", queries: " << seqlen_q);
            const Options options = on_target(with.options);
            if (with.is_float8()) {
                if (target_.backend != Backend::cuda) {
                    EXPECT_THROW(static_cast<void>(with.run(options)), Error);
                }
                continue;
            }
            const Tensors expected = with.run(on_reference(with.options));
            std::vector<Report> reports;
            for (const auto& [name, result] : with.run(options, &reports)) {
                EXPECT_LT(max_error(doubles(result), doubles(expected.at(name))), 1e-3) << name;
            }
            for (const Report& report : reports) {
                expect_ran_on_target(report, DType::float32);
            }
        }
    }
}

TEST(EveryOptionAlone, ChangesWhatTheReferenceComputes)
{
    std::set<std::string> seen{"cu_seqlens_k", "kv_indptr", "kv_last_page_len"}; // in company
    for (const OptionCase& with : OptionCases::all(9)) {
        SCOPED_TRACE(::testing::Message() << with.option << " " << with.json);
        seen.insert(with.option);
        const OptionCase without = OptionCases::without(with, 9);
        const Tensors results = with.run(on_reference(with.options));
        const Tensors others = without.run(on_reference(without.options));
        double change = 0;
        for (const auto& [name, result] : others) {
            if (results.contains(name)) { // of caches o and LSE alone
                change = std::max(change, max_error(doubles(results.at(name)), doubles(result)));
            }
        }
        EXPECT_GT(change, 0.05);
    }
    std::set<std::string> listed(other_options.begin(), other_options.end());
    listed.insert(program_options.begin(), program_options.end());
    for (const TensorOption& option : tensor_options) {
        listed.insert(option.name);
    }
    for (const NumberOption& option : number_options) {
        listed.insert(option.name);
    }
    EXPECT_EQ(seen, listed);
}

/// The call is refused, by a sentence that has the words.
void expect_refused(const OptionCase& call, const Options& options, const std::string& words)
{
    try {
        static_cast<void>(call.run(options));
        ADD_FAILURE() << "accepted; expected: " << words;
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

TEST(EveryOptionAlone, IsValidatedByName)
{
    for (const OptionCase& with : OptionCases::all(9)) {
        for (const TensorOption& option : tensor_options) {
            if (!with.tensors.contains(option.name)) {
                continue;
            }
            SCOPED_TRACE(option.name);
            const std::string name = option.name;
            const auto refused = [&](auto spoil, const std::string& words) {
                Options options = on_reference(with.options);
                spoil(options.*option.member);
                expect_refused(with, options, words);
            };
            refused([](ConstTensorView& view) { view.rank = 9; }, name + " has 9 axes");
            refused([](ConstTensorView& view) { view.dtype = DType::int64; }, name + " is int64");
            const Axis counts = option.axes[0]; // those of boundaries are read, and of pages there may be any number
            if (counts != Axis::boundaries && counts != Axis::pages) {
                refused([](ConstTensorView& view) { view.shape[0] += 1; }, name);
            }
            refused([](ConstTensorView& view) { view.data = nullptr; }, name);
        }
    }
}

TEST(EveryOptionAlone, MayNotShareMemoryWithAnOutput)
{
    for (const OptionCase& with : OptionCases::all(9)) {
        for (const TensorOption& option : tensor_options) {
            if (!with.tensors.contains(option.name)) {
                continue;
            }
            SCOPED_TRACE(option.name);
            const io::HostTensor& tensor = with.tensors.at(option.name);
            const io::HostTensor& q = with.tensors.at("q");
            io::HostTensor o(output_type_of(q.dtype()), q.shape());
            ASSERT_LE(tensor.bytes(), o.bytes());
            std::memcpy(o.data(), tensor.data(), static_cast<std::size_t>(tensor.bytes()));
            const io::Shape& s = q.shape();
            io::HostTensor lse(DType::float32, q.rank() == 3 ? io::Shape{s[1], s[0]} : io::Shape{s[0], s[2], s[1]});
            Options options = on_reference(with.options);
            (options.*option.member).data = o.data();
            const auto view = [&](const char* name) { return with.tensors.at(name).view(); };
            try {
                forward({view("q"), view("k"), view("v"), o.view(), lse.view()}, options);
                ADD_FAILURE() << "accepted";
            } catch (const Error& error) {
                EXPECT_NE(std::string(error.what()).find("o overlaps " + std::string(option.name)), std::string::npos)
                    << error.what();
            }
        }
    }
}

} // namespace
} // namespace flashomp::testing
