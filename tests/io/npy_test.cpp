#include "npy.hpp"

#include "io_support.hpp"
#include "npy_header.hpp"

namespace flashomp::io::test {
namespace {

class Npy : public ScratchFolder {};

const std::vector<Shape> shapes{{}, {1}, {7}, {0}, {2, 3}, {3, 0}, {2, 3, 4}, {0, 0, 5}, {2, 3, 4, 5}, {1, 0, 2, 64}};

TEST_F(Npy, RoundTripsEveryTypeAndRank)
{
    for (const DType dtype : all_dtypes) {
        for (const Shape& shape : shapes) {
            const HostTensor tensor = patterned(dtype, shape);
            write_npy(file("t.npy"), tensor.view());
            expect_same(read_npy(file("t.npy"), {.u2_is_bfloat16 = dtype == DType::bfloat16}), tensor);
            EXPECT_EQ(files(), std::set<std::string>{"t.npy"});
        }
    }
}

/// NumPy's own bytes for numpy.array([0, 5, 69, 70, 107], dtype='<i4').
const std::string numpy_bytes = std::string("\x93NUMPY\x01\x00\x76\x00", 10) +
                                "{'descr': '<i4', 'fortran_order': False, 'shape': (5,), }" + std::string(60, ' ') +
                                "\n" + std::string("\0\0\0\0\5\0\0\0\x45\0\0\0\x46\0\0\0\x6b\0\0\0", 20);

TEST_F(Npy, ReadsAndWritesNumPysOwnBytes)
{
    put(file("numpy.npy"), numpy_bytes);
    const HostTensor tensor = read_npy(file("numpy.npy"));
    ASSERT_EQ(tensor.dtype(), DType::int32);
    ASSERT_EQ(tensor.shape(), Shape{5});
    const auto* const values = static_cast<const std::int32_t*>(tensor.data());
    EXPECT_EQ((std::vector<std::int32_t>(values, values + 5)), (std::vector<std::int32_t>{0, 5, 69, 70, 107}));
    write_npy(file("ours.npy"), tensor.view());
    EXPECT_EQ(get(file("ours.npy")), numpy_bytes);
}

TEST_F(Npy, ReadsVersionsTwoAndThree)
{
    const std::string dictionary = "{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}\n";
    for (const char version : {'\2', '\3'}) {
        std::string bytes = "\x93NUMPY";
        bytes += {version, '\0', static_cast<char>(dictionary.size()), '\0', '\0', '\0'};
        put(file("v.npy"), bytes + dictionary + std::string("\1\0", 2));
        const HostTensor tensor = read_npy(file("v.npy"));
        EXPECT_EQ(tensor.dtype(), DType::boolean);
        EXPECT_EQ(static_cast<const std::uint8_t*>(tensor.data())[0], 1);
    }
}

TEST_F(Npy, ReadsFortranOrderAsRowMajor)
{
    // numpy.asfortranarray([[0, 1, 2], [3, 4, 5]])
    std::string bytes = npy_header_text("<i8", {2, 3});
    bytes.replace(bytes.find("False,"), 6, "True, ");
    for (const char value : {'\0', '\3', '\1', '\4', '\2', '\5'}) {
        bytes += value + std::string(7, '\0');
    }
    put(file("f.npy"), bytes);
    const HostTensor tensor = read_npy(file("f.npy"));
    ASSERT_EQ(tensor.shape(), (Shape{2, 3}));
    for (int i = 0; i < 6; ++i) {
        EXPECT_EQ(static_cast<const std::int64_t*>(tensor.data())[i], i);
    }
}

TEST_F(Npy, WritesStridedViewsInRowMajorOrder)
{
    for (const DType dtype : all_dtypes) {
        const HostTensor tensor = patterned(dtype, {2, 3, 4, 5});
        const ConstTensorView transposed = tensor.view().transposed(1, 2);
        ConstTensorView narrow = tensor.view(); // the first 3 of every 5, as a slice of head_dim would be
        narrow.shape[3] = 3;
        for (const ConstTensorView& view : {transposed, narrow}) {
            write_npy(file("s.npy"), view);
            expect_same(read_npy(file("s.npy"), {.u2_is_bfloat16 = true}), HostTensor::copy_of(view));
        }
    }
}

TEST_F(Npy, HeaderIsAlignedForEveryShape)
{
    for (std::int64_t extent = 1; extent < 1'000'000'000'000'000; extent *= 10) {
        const std::string header = npy_header_text("<f4", {extent, 1, extent, 3});
        EXPECT_EQ(header.size() % 64, 0U);
        const NpyHeader expected{"<f4", false, {extent, 1, extent, 3}};
        EXPECT_EQ(parse_npy_header(std::string_view(header).substr(10), "h.npy"), expected);
    }
}

TEST_F(Npy, ParsesEverySpellingPythonAllows)
{
    const NpyHeader expected{"<f4", true, {3, 4}};
    for (const char* const text : {
             "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }\n",
             "{'shape':(3,4,),'fortran_order':True,'descr':'<f4'}\n",
             "{ \"descr\" : \"<f4\" , \"fortran_order\":\tTrue , 'shape' : ( 3 , 4 ) }      \n",
         }) {
        EXPECT_EQ(parse_npy_header(text, "h.npy"), expected) << text;
    }
    EXPECT_EQ(parse_npy_header("{'descr': 'x', 'fortran_order': False, 'shape': ()}\n", "h").shape, Shape{});
    EXPECT_EQ(parse_npy_header("{'descr': 'x', 'fortran_order': False, 'shape': (0,)}\n", "h").shape, Shape{0});
}

TEST_F(Npy, RefusesViewsThatCannotBeWritten)
{
    const HostTensor tensor = patterned(DType::float32, {2, 3});
    ConstTensorView view = tensor.view();
    view.memory = Memory::device;
    expect_sentence(sentence_of([&] { write_npy(file("x.npy"), view); }), "device memory");
    view = tensor.view();
    view.data = nullptr;
    expect_sentence(sentence_of([&] { write_npy(file("x.npy"), view); }), "has no data");
    view.shape[0] = -2;
    expect_sentence(sentence_of([&] { write_npy(file("x.npy"), view); }), "must not be negative");
    expect_sentence(sentence_of([&] { write_npy(file("x.npy"), ConstTensorView()); }), "has no data");
    view.rank = 5;
    expect_sentence(sentence_of([&] { write_npy(file("x.npy"), view); }), "has 5 axes");
    const std::uint8_t two = 2;
    expect_sentence(
        sentence_of([&] { write_npy(file("x.npy"), ConstTensorView::contiguous(&two, DType::boolean, {1})); }),
        "the byte 2 as boolean element 0");
    EXPECT_TRUE(files().empty());
}

} // namespace
} // namespace flashomp::io::test
