#include "safetensors.hpp"

#include "npy.hpp"

#include "io_support.hpp"

namespace flashomp::io::test {
namespace {

class Safetensors : public ScratchFolder {};

TEST_F(Safetensors, RoundTripsEveryTypeAndRankInOneFile)
{
    std::map<std::string, HostTensor> tensors;
    std::map<std::string, ConstTensorView> views;
    for (const DType dtype : all_dtypes) {
        for (const Shape& shape : {Shape{}, Shape{7}, Shape{0}, Shape{3, 1}, Shape{2, 0, 4}, Shape{2, 3, 4, 5}}) {
            tensors.emplace(describe(dtype, shape), patterned(dtype, shape));
        }
    }
    for (const auto& [name, tensor] : tensors) {
        views.emplace(name, tensor.view());
    }
    const Metadata metadata{{"seed", "7"}, {"note", "\"quoted\" and ünïcode"}};
    write_safetensors(file("t.safetensors"), views, metadata);
    EXPECT_EQ(files(), std::set<std::string>{"t.safetensors"});

    Metadata read_metadata;
    const auto read = read_safetensors(file("t.safetensors"), &read_metadata);
    EXPECT_EQ(read_metadata, metadata);
    ASSERT_EQ(read.size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
        expect_same(read.at(name), tensor);
    }
}

TEST_F(Safetensors, HoldsFloat8WhichNumPyHasNoNameFor)
{
    const HostTensor tensor = patterned(DType::float8_e4m3, {2, 3, 4, 5});
    write_safetensors(file("t.safetensors"), {{"t", tensor.view()}});
    EXPECT_NE(get(file("t.safetensors")).find(R"("dtype":"F8_E4M3")"), std::string::npos);
    expect_same(read_safetensors(file("t.safetensors")).at("t"), tensor);
    EXPECT_THROW(write_npy(file("t.npy"), tensor.view()), Error);
    EXPECT_EQ(files(), std::set<std::string>{"t.safetensors"});
}

TEST_F(Safetensors, WritesTheBytesOfTheReferenceImplementation)
{
    // safetensors 0.8.0: save({"a": float16 [1, 2], "b": int64 [2]}, metadata={"k": "v"}), element bytes 1, 2, 3, ...
    const std::string header = R"({"__metadata__":{"k":"v"},"b":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                               R"("a":{"dtype":"F16","shape":[1,2],"data_offsets":[16,20]}})";
    const HostTensor a = patterned(DType::float16, {1, 2});
    const HostTensor b = patterned(DType::int64, {2});
    write_safetensors(file("r.safetensors"), {{"a", a.view()}, {"b", b.view()}}, {{"k", "v"}});
    const std::string bytes = get(file("r.safetensors"));
    const std::size_t padded = (header.size() + 7) / 8 * 8;
    ASSERT_EQ(bytes.size(), 8 + padded + 20);
    EXPECT_EQ(bytes.substr(0, 8), static_cast<char>(padded) + std::string(7, '\0'));
    EXPECT_EQ(bytes.substr(8, padded), header + std::string(padded - header.size(), ' '));
    EXPECT_EQ(bytes.substr(8 + padded),
              "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x01\x02\x03\x04");
}

TEST_F(Safetensors, WritesStridedViews)
{
    const HostTensor tensor = patterned(DType::bfloat16, {2, 3, 4, 5});
    const ConstTensorView transposed = tensor.view().transposed(1, 2);
    write_safetensors(file("s.safetensors"), {{"t", transposed}});
    expect_same(read_safetensors(file("s.safetensors")).at("t"), HostTensor::copy_of(transposed));
}

TEST_F(Safetensors, HoldsNoTensorsAtAll)
{
    write_safetensors(file("e.safetensors"), {});
    Metadata metadata{{"old", "entry"}};
    EXPECT_TRUE(read_safetensors(file("e.safetensors"), &metadata).empty());
    EXPECT_TRUE(metadata.empty());
}

TEST_F(Safetensors, RefusesNamesThatCannotBeWritten)
{
    const HostTensor tensor(DType::float32, {1});
    const auto sentence = [&](const std::string& name, const Metadata& metadata) {
        return sentence_of([&] { write_safetensors(file("x"), {{name, tensor.view()}}, metadata); });
    };
    expect_sentence(sentence("__metadata__", {}), "called __metadata__");
    expect_sentence(sentence("\xff", {}), "is not valid UTF-8");
    expect_sentence(sentence("q", {{"k", "\xc3"}}), "is not valid UTF-8");
    expect_sentence(sentence_of([&] { write_safetensors(file("x"), {{"q", ConstTensorView()}}); }), "has no data");
    EXPECT_TRUE(files().empty());
}

} // namespace
} // namespace flashomp::io::test
