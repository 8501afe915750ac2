#include "workspaces.hpp"

#include "stream_scope.hpp"

#include <array>

namespace flashomp::python {

namespace {

constexpr std::int64_t slack = PreparedForward::workspace_alignment;
constexpr std::uintptr_t per_thread = 2; // cudaStreamPerThread

std::byte* aligned(std::byte* memory)
{
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto step = static_cast<std::uintptr_t>(slack);
    return memory + (step - address % step) % step;
}

} // namespace

Workspace::Workspace(std::int64_t bytes, Memory memory, const TensorArgument& like) : bytes_(bytes)
{
    if (bytes == 0) {
        return;
    }
    if (memory == Memory::device) {
        // Floats, since every framework has them.
        const std::array<std::int64_t, 1> floats{(bytes + slack) / size_of(DType::float32) + 1};
        device_ = Result("workspace", nb::none(), like, DType::float32, floats);
        data_ = aligned(static_cast<std::byte*>(device_.view().data));
        return;
    }
    host_.reset(new std::byte[static_cast<std::size_t>(bytes + slack)]);
    data_ = aligned(host_.get());
}

std::span<std::byte> Workspaces::of(const TensorArgument& like, std::optional<void*> stream)
{
    Stream key{};
    if (memory_ == Memory::device && stream) {
        key.first = *stream;
        if (reinterpret_cast<std::uintptr_t>(*stream) == per_thread) {
            key.second = std::this_thread::get_id();
        }
    }
    auto found = made_.find(key);
    if (found == made_.end()) {
        const StreamScope scope(like, stream);
        found = made_.try_emplace(key, bytes_, memory_, like).first;
    }
    return found->second.span();
}

} // namespace flashomp::python
