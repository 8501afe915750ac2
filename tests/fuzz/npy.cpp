// io::read_npy() and, of what it accepts, that the tensor is all there.
#include "memory_file.hpp"

#include "npy.hpp"

FuzzFunction fuzz_npy;

int fuzz_npy(const std::uint8_t* data, std::size_t size)
{
    using namespace flashomp;
    const fuzz::MemoryFile file(data, size);
    fuzz::succeeds_or_refuses([&] {
        const io::HostTensor tensor = io::read_npy(file.path(), {.u2_is_bfloat16 = true});
        if (tensor.data() == nullptr || tensor.bytes() > static_cast<std::int64_t>(size)) {
            fuzz::violated("a tensor is not larger than its file", io::describe(tensor.dtype(), tensor.shape()));
        }
    });
    return 0;
}
