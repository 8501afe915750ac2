// --measure-traffic: the tools' files are read right, and a tool that is missing or fails is named.
#include "traffic_run.hpp"

#include "flashomp/error.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace flashomp::bench {
namespace {

namespace fs = std::filesystem;

// As ncu 2025.3 writes it with --csv --print-units base.
constexpr const char* ncu_csv =
    R"csv(==PROF== Connected to process 7 (/tmp/flashomp)
==PROF== Disconnected from process 7
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","flashomp","127.0.0.1","run_pass<0, 1>(int, char)","1","13","(32, 2, 1)","(512, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","byte","1,000,512"
"0","7","flashomp","127.0.0.1","run_pass<0, 1>(int, char)","1","13","(32, 2, 1)","(512, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_write.sum","byte","2,048"
"1","7","flashomp","127.0.0.1","merge","1","13","(32, 2, 1)","(512, 1, 1)","0","9.0","Command line profiler metrics","dram__bytes_read.sum","Kbyte","1.5"
)csv";

TEST(TrafficRun, NcuCountersAreAddedUpOverKernels)
{
    const MeasuredTraffic traffic = read_ncu_csv(ncu_csv);
    EXPECT_DOUBLE_EQ(traffic.read, 1000512 + 1500);
    EXPECT_DOUBLE_EQ(traffic.written, 2048);
    EXPECT_EQ(read_ncu_csv("==WARNING== No kernels were profiled.\n").read, 0);
    EXPECT_THROW(static_cast<void>(read_ncu_csv("==ERROR== something else\n")), RunFailure);
}

TEST(TrafficRun, CachegrindLinesAreMissesOfTheLastLevel)
{
    const MeasuredTraffic traffic = read_cachegrind("desc: LL cache: 2 MB\ncmd: x\n"
                                                    "events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\n"
                                                    "fn=main\n12 9 9 9 9 9 9 9 9 9\n"
                                                    "summary: 100 1 1 50 20 7 30 10 3\n",
                                                    64);
    EXPECT_DOUBLE_EQ(traffic.read, (7 + 3) * 64);
    EXPECT_DOUBLE_EQ(traffic.written, 3 * 64);
    EXPECT_THROW(static_cast<void>(read_cachegrind("events: Ir\nsummary: 100\n", 64)), RunFailure);
}

/// A folder with a program that pretends to be a tool; PATH is that folder alone meanwhile.
class TrafficTool : public testing::Test {
protected:
    TrafficTool() : path_(std::getenv("PATH"))
    {
        folder_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
        fs::create_directories(folder_);
        ::setenv("PATH", folder_.c_str(), 1);
    }
    ~TrafficTool() override
    {
        ::setenv("PATH", path_.c_str(), 1);
        fs::remove_all(folder_);
    }

    void write_tool(const char* name, const std::string& script) const
    {
        std::ofstream(folder_ / name) << "#!/bin/bash\n" << script;
        fs::permissions(folder_ / name, fs::perms::owner_all);
    }

    fs::path folder_;

private:
    std::string path_;
};

// Writes the file that its option names: 100 bytes and 1000 more for each call that the command is to make.
constexpr const char* pretended_ncu = R"bash(
while [[ $# -gt 0 ]]; do
    case $1 in
    --log-file) log=$2 ;;
    --only-calls) calls=$2 ;;
    esac
    shift
done
{
    echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    echo "\"0\",\"k\",\"dram__bytes_read.sum\",\"byte\",\"$((100 + 1000 * calls))\""
    echo "\"0\",\"k\",\"dram__bytes_write.sum\",\"byte\",\"$((10 + 100 * calls))\""
} >"$log"
)bash";

TEST_F(TrafficTool, WhatOneCallAddsIsCounted)
{
    write_tool("ncu", pretended_ncu);
    const MeasuredTraffic traffic = measure_traffic({"/bin/true", "bench"}, true);
    EXPECT_DOUBLE_EQ(traffic.read, 1000);
    EXPECT_DOUBLE_EQ(traffic.written, 100);
    EXPECT_NE(traffic.tool.find("ncu"), std::string::npos);
}

TEST_F(TrafficTool, ACallWithoutAKernelIsNoMeasurement)
{
    write_tool("ncu", R"bash(
while [[ $1 != --log-file ]]; do shift; done
echo '==WARNING== No kernels were profiled.' >"$2"
)bash");
    EXPECT_THROW(static_cast<void>(measure_traffic({"/bin/true"}, true)), RunFailure);
}

TEST_F(TrafficTool, AFailureIsToldInTheToolsWords)
{
    write_tool("ncu", "echo '==ERROR== ERR_NVGPUCTRPERM - no permission'\nexit 1\n");
    try {
        static_cast<void>(measure_traffic({"/bin/true"}, true));
        FAIL() << "accepted";
    } catch (const RunFailure& error) {
        EXPECT_NE(std::string(error.what()).find("ERR_NVGPUCTRPERM"), std::string::npos) << error.what();
    }
}

TEST_F(TrafficTool, AMissingToolIsNamed)
{
    try {
        static_cast<void>(measure_traffic({"/bin/true"}, false));
        FAIL() << "accepted";
    } catch (const RunFailure& error) {
        EXPECT_STREQ(error.what(), "--measure-traffic on the host needs valgrind on PATH, which is not there.");
    }
}

} // namespace
} // namespace flashomp::bench
