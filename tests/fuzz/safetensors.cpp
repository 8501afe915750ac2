// io::read_safetensors() and, of what it accepts, that the tensors are all there.
#include "memory_file.hpp"

#include "safetensors.hpp"

FuzzFunction fuzz_safetensors;

int fuzz_safetensors(const std::uint8_t* data, std::size_t size)
{
    using namespace flashomp;
    const fuzz::MemoryFile file(data, size);
    fuzz::succeeds_or_refuses([&] {
        io::Metadata metadata;
        std::int64_t bytes = 0;
        for (const auto& [name, tensor] : io::read_safetensors(file.path(), &metadata)) {
            bytes += tensor.bytes();
            if (tensor.data() == nullptr || bytes > static_cast<std::int64_t>(size)) {
                fuzz::violated("tensors are not larger than their file", io::describe(tensor.dtype(), tensor.shape()));
            }
        }
    });
    return 0;
}
