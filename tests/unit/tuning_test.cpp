// Tuning tables: what a class is, what a file holds, and what becomes of files that are none.
#include "file.hpp"
#include "refusal.hpp"
#include "shape.hpp"
#include "store.hpp"

#include "flashomp/error.hpp"

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace flashomp::tuning {
namespace {

namespace fs = std::filesystem;

ShapeClass class_named(const char* name, bool backward = false)
{
    return class_of(cost::problem_of(cost::parse_shape(name), DType::bfloat16, backward, {}), Backend::openmp);
}

Table table_of(const std::string& device, const std::vector<std::pair<ShapeClass, Choice>>& choices)
{
    Table table{{device, "1.0", this_build()}, {}};
    for (const auto& [shape, choice] : choices) {
        table.entries[shape] = {choice, "b1_h4_n1000_d64", "plain", 0.001, 0.0015};
    }
    return table;
}

const Choice plain{Machine::plain, {.resident_rows = 64, .stream_rows = 16, .team_threads = 4, .global_memory = true}};

class TuningFile : public ::testing::Test {
protected:
    TuningFile()
    {
        std::string name = (fs::temp_directory_path() / "flashomp-tuning-XXXXXX").string();
        folder_ = ::mkdtemp(name.data());
    }
    ~TuningFile() override { fs::remove_all(folder_); }

    [[nodiscard]] fs::path written(const std::string& text) const
    {
        std::ofstream(folder_ / "t.json") << text;
        return folder_ / "t.json";
    }

    fs::path folder_;
};

TEST(TuningClass, SizesAreRoundedUpToPowersOfTwo)
{
    EXPECT_EQ(class_named("b2_h4kv2_n600x1025_d80"), class_named("b4_h2kv1_n1024x2000_d128"));
    EXPECT_EQ(text_of(class_named("b2_h6kv2_n600x1025_d80_causal", true)),
              "openmp backward bfloat16 d128 causal n1024x2048 heads 16x4");
    EXPECT_EQ(text_of(class_named("b1_h1_n1_d256_varlen")), "openmp forward bfloat16 d256 packed n1x1 heads 1x1");
    EXPECT_NE(class_named("b1_h1_n512_d8"), class_named("b1_h1_n513_d8"));
}

TEST(TuningClass, MaskAndModifiedScoresTellClassesApart)
{
    Problem problem = cost::problem_of(cost::parse_shape("b1_h1_n8_d8_causal"), DType::float32, false, {});
    EXPECT_EQ(class_of(problem, Backend::cuda).mask, Mask::causal);
    EXPECT_FALSE(class_of(problem, Backend::cuda).is_modified);
    problem.options.window.left = 3;
    EXPECT_EQ(class_of(problem, Backend::cuda).mask, Mask::window);
    problem.options.softcap = 2;
    EXPECT_TRUE(class_of(problem, Backend::cuda).is_modified);
}

TEST(TuningTables, TheUsersEntryComesFirst)
{
    const ShapeClass both = class_named("b1_h1_n8_d8");
    const ShapeClass other = class_named("b1_h1_n8_d128");
    const Table user = table_of("a", {{both, plain}});
    const Table shipped = table_of("a", {{both, {}}, {other, {Machine::tensor, {}}}});
    const Tables tables{&user, &shipped};
    EXPECT_EQ(tables.find(both)->choice, plain);
    EXPECT_EQ(tables.find(other)->choice.machine, Machine::tensor);
    EXPECT_EQ(tables.find(class_named("b1_h1_n9_d8")), nullptr);
    EXPECT_EQ(Tables{}.find(both), nullptr);
}

TEST(TuningTables, NoneWhenOff) // as all tests run
{
    EXPECT_TRUE(user_place().is_off);
    EXPECT_EQ(tables_for("NVIDIA H200", "").user, nullptr);
    EXPECT_EQ(tables_for("NVIDIA H200", "").shipped, nullptr);
    EXPECT_EQ(user_problem(), "");
}

TEST(TuningTables, ShippedOnesAreTables)
{
    for (const std::string_view text : shipped_texts()) {
        for (const Table& table : parse_tables(text, "shipped")) {
            EXPECT_FALSE(table.key.device.empty());
        }
    }
}

TEST(TuningTables, PlaceByTheEnvironment)
{
    const auto place = [](const char* tuning, const char* cache, const char* home) {
        setenv("FLASHOMP_TUNING", tuning, 1);
        setenv("XDG_CACHE_HOME", cache, 1);
        setenv("HOME", home, 1);
        return user_place().file;
    };
    const std::string home = std::getenv("HOME") == nullptr ? "" : std::getenv("HOME");
    EXPECT_EQ(place("/x/y.json", "/cache", "/home/me"), "/x/y.json");
    EXPECT_EQ(place("shipped", "/cache", "/home/me"), "");
    EXPECT_TRUE(user_place().is_shipped_only);
    EXPECT_EQ(place("", "/cache", "/home/me"), "/cache/flashomp/tuning.json");
    EXPECT_EQ(place("", "relative", "/home/me"), "/home/me/.cache/flashomp/tuning.json");
    EXPECT_EQ(place("", "", "/home/me"), "/home/me/.cache/flashomp/tuning.json");
    EXPECT_EQ(place("", "", ""), "");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", home.c_str(), 1);
    setenv("FLASHOMP_TUNING", "off", 1);
}

TEST_F(TuningFile, RoundTrip)
{
    const Table table = table_of("NVIDIA \"H200\"", {{class_named("b1_h4_n1000_d64_causal", true), plain},
                                                     {class_named("b3_h4_n9_d64_varlen"), {}}});
    const std::vector<Table> read = parse_tables(json_text({table}), "text");
    ASSERT_EQ(read.size(), 1U);
    EXPECT_EQ(read[0].key, table.key);
    ASSERT_EQ(read[0].entries.size(), 2U);
    for (const auto& [shape, entry] : table.entries) {
        const Entry& again = read[0].entries.at(shape);
        EXPECT_EQ(again.choice, entry.choice);
        EXPECT_EQ(again.shape, entry.shape);
        EXPECT_EQ(again.machine, entry.machine);
        EXPECT_DOUBLE_EQ(again.seconds, entry.seconds);
        EXPECT_DOUBLE_EQ(again.automatic_seconds, entry.automatic_seconds);
    }
}

TEST_F(TuningFile, StoringKeepsWhatIsThere)
{
    const fs::path file = folder_ / "new" / "folder" / "t.json";
    const ShapeClass first = class_named("b1_h1_n8_d8");
    const ShapeClass second = class_named("b1_h1_n64_d8");
    store(file, table_of("a", {{first, plain}}));
    store(file, table_of("b", {{first, {}}}));
    store(file, table_of("a", {{first, {}}, {second, plain}}));
    const std::vector<Table> read = read_tables(file);
    ASSERT_EQ(read.size(), 2U);
    EXPECT_EQ(read[0].key.device, "b");
    EXPECT_EQ(read[1].entries.at(first).choice, Choice{});
    EXPECT_EQ(read[1].entries.at(second).choice, plain);
}

TEST_F(TuningFile, SeveralStoreAtOnceAndNothingIsLost)
{
    const fs::path file = folder_ / "t.json";
    std::vector<std::thread> writers;
    constexpr int count = 4;
    writers.reserve(count);
    for (int writer = 0; writer < count; ++writer) {
        writers.emplace_back([&file, writer] {
            for (int round = 0; round < 5; ++round) {
                ShapeClass shape = class_named("b1_h1_n8_d8");
                shape.query_heads = writer * 10 + round;
                store(file, table_of("a", {{shape, plain}}));
            }
        });
    }
    for (std::thread& writer : writers) {
        writer.join();
    }
    EXPECT_EQ(read_tables(file).at(0).entries.size(), 20U);
}

TEST_F(TuningFile, AFifoIsRefusedWithoutWaitingForItsWriter)
{
    const fs::path file = folder_ / "fifo";
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    EXPECT_THROW(static_cast<void>(read_tables(file)), Error);
}

TEST_F(TuningFile, SizesThatNobodyStoresAreRefused)
{
    for (const Tiling& tiling : {Tiling{.resident_rows = 1025}, Tiling{.stream_rows = 1025}, Tiling{.teams = 1025},
                                 Tiling{.team_threads = 33}, Tiling{.stream_rows = -4}}) {
        const Table table = table_of("a", {{class_named("b1_h1_n8_d8"), {Machine::automatic, tiling}}});
        EXPECT_THROW(static_cast<void>(parse_tables(json_text({table}), "text")), Error);
    }
}

TEST_F(TuningFile, OthersAreRefusedAndLeftAsTheyAre)
{
    EXPECT_TRUE(read_tables(folder_ / "none.json").empty());
    EXPECT_THROW(static_cast<void>(read_tables(folder_)), Error);
    std::string unknown = json_text({table_of("a", {{class_named("b1_h1_n8_d8"), plain}})});
    unknown.replace(unknown.find("\"plain\""), 7, "\"fancy\"");
    for (const std::string& text : {std::string(), std::string("{"), std::string("[]"), std::string("my thesis"),
                                    std::string(R"({"flashomp_tuning": 2, "tables": []})"),
                                    std::string(R"({"flashomp_tuning": 1, "tables": [{}]})"), unknown}) {
        const fs::path file = written(text);
        EXPECT_THROW(static_cast<void>(read_tables(file)), Error) << text;
        EXPECT_THROW(store(file, table_of("a", {})), Error) << text;
        std::ifstream stream(file);
        EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), text);
    }
    testing::expect_refused(
        "t.json: is not a tuning table: its text is not valid JSON at byte 2; a file that `flashomp tune` "
        "wrote is needed.",
        [] { static_cast<void>(parse_tables("{", "t.json")); });
    testing::expect_refused(
        "t.json: is not a tuning table of this version (flashomp_tuning is 2, allowed is 1); one that this "
        "`flashomp tune` wrote is needed.",
        [] { static_cast<void>(parse_tables(R"({"flashomp_tuning": 2})", "t.json")); });
}

TEST_F(TuningFile, ManyKeysTakeTimeInProportion)
{
    std::string text = R"({"flashomp_tuning": 1, "tables": [], "other": {"key": 0)";
    for (int i = 0; i < 60'000; ++i) {
        text += ", \"key " + std::to_string(i) + "\": 0";
    }
    const fs::path file = written(text + "}}");
    const std::clock_t start = std::clock();
    EXPECT_TRUE(read_tables(file).empty());
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10.0); // 51 s, once
}

TEST_F(TuningFile, ALargeFileIsRefusedUnread)
{
    const fs::path file = written("{");
    fs::resize_file(file, std::uintmax_t{3} << 30); // a hole: no disk, but 3 GB for who reads it
    const std::clock_t start = std::clock();
    testing::expect_refused("its 3221225472 bytes are more than the 16777216 that one has at most",
                            [&] { static_cast<void>(read_tables(file)); });
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 0.5);
}

TEST_F(TuningFile, NumbersAndWordsThatNobodyStores)
{
    const std::string good = json_text({table_of("a", {{class_named("b1_h1_n8_d8"), plain}})});
    const std::vector<std::tuple<std::string, std::string, std::string>> changes{
        {R"("seqlen_q": 8)", R"("seqlen_q": 18446744073709551615)",
         "(seqlen_q is 18446744073709551615, allowed are whole numbers from 0 to 9223372036854775807)"},
        {R"("seqlen_k": 8)", R"("seqlen_k": -1)", "(seqlen_k is -1, allowed"},
        {R"("query_heads": 1)", R"("query_heads": 1.5)", "(query_heads is 1.5, allowed"},
        {R"("teams": 0)", R"("teams": 4294967296)", "(teams is 4294967296, allowed are whole numbers from 0 to 1024)"},
        {R"("flashomp_tuning": 1)", R"("flashomp_tuning": 4294967297)",
         "(flashomp_tuning is 4294967297, allowed is 1)"},
        {R"("milliseconds": 1.0)", R"("milliseconds": -1.0)", "(milliseconds is -1, allowed are numbers from 0)"},
        {R"("milliseconds": 1.0)", R"("milliseconds": 1e999)", "a number out of range"},
        {R"("ran_as": "plain")", R"("ran_as": "\u001b[2J")", R"((ran_as is "?[2J"))"},
        {R"("device": "a")", R"("device": "\u009b2J")", "(device is"},
        {R"("mask": "none")", R"("mask": ")" + std::string(1'000'000, 'm') + "\"", "(mask is \"mmm"},
    };
    EXPECT_EQ(parse_tables(good, "t").size(), 1U);
    for (const auto& [what, by, says] : changes) {
        std::string changed = good;
        ASSERT_NE(changed.find(what), std::string::npos) << what << " in " << good;
        changed.replace(changed.find(what), what.size(), by);
        testing::expect_refused(says, [&] { static_cast<void>(parse_tables(changed, "t")); });
    }
}

} // namespace
} // namespace flashomp::tuning
