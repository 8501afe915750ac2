#include "site.hpp"

#include "buffer.hpp"
#include "tensors.hpp"

#include "flashomp/prepared.hpp"

#include <cstring>
#include <new>

namespace flashomp::mpi {

namespace {

class HostSite : public Site {
public:
    [[nodiscard]] Memory memory() const override { return Memory::host; }
    [[nodiscard]] bool is_reached_by_mpi() const override { return true; }
    [[nodiscard]] Options options_of_calls(const Options& given) const override { return given; }

    std::shared_ptr<std::byte> allocate(std::int64_t bytes) override
    {
        constexpr std::align_val_t alignment{64}; // of vectors and cache lines
        return {static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), alignment)),
                [=](std::byte* memory) { ::operator delete(memory, alignment); }};
    }
    std::shared_ptr<std::byte> allocate_stage(std::int64_t bytes) override { return allocate(bytes); }

    void copy(const ConstTensorView& from, const TensorView& to) noexcept override { mpi::copy(from, to); }
    void add(const ConstTensorView& terms, const TensorView& sums) noexcept override { mpi::add(terms, sums); }
    void convert(const ConstTensorView& from, const TensorView& to) noexcept override { mpi::convert(from, to); }
    void unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans) noexcept override
    {
        mpi::unpack_bits(bits, first, booleans);
    }
    void fill(const TensorView& tensor, float value) noexcept override { mpi::fill(tensor, value); }

    void wait() noexcept override {}
    bool is_idle() noexcept override { return true; }
    void expect_no_failure() override {}
    Mark mark() noexcept override { return {}; }
    bool is_past(const Mark& /*mark*/) noexcept override { return true; }
    Mark copy_out(std::byte* stage, const std::byte* here, std::int64_t bytes, const Mark& /*after*/) noexcept override
    {
        std::memcpy(stage, here, static_cast<std::size_t>(bytes));
        return {};
    }
    Mark copy_in(std::byte* here, const std::byte* stage, std::int64_t bytes, const Mark& /*after*/) noexcept override
    {
        std::memcpy(here, stage, static_cast<std::size_t>(bytes));
        return {};
    }
};

} // namespace

flashomp::Report Site::forward(const ForwardArgs& args, const Options& options)
{
    return flashomp::forward(args, options);
}

flashomp::Report Site::backward(const BackwardArgs& args, const Options& options)
{
    return flashomp::backward(args, options);
}

void Site::merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse, const Options& options)
{
    flashomp::merge(a, b, o, lse, options);
}

void Site::prepare(const ForwardArgs& args, const Options& options)
{
    static_cast<void>(flashomp::prepare(args, options));
}

void Site::prepare(const BackwardArgs& args, const Options& options)
{
    static_cast<void>(flashomp::prepare(args, options));
}

Site& host_site()
{
    static HostSite site;
    return site;
}

std::function<std::unique_ptr<Site>(const Options&)>& device_sites()
{
    static std::function<std::unique_ptr<Site>(const Options&)> make = device_site;
    return make;
}

std::vector<std::byte> elements_of(Site& site, const ConstTensorView& view)
{
    const std::int64_t bytes = view.elements() * size_of(view.dtype);
    std::vector<std::byte> elements(static_cast<std::size_t>(bytes));
    if (bytes == 0) {
        return elements;
    }
    Buffer packed(site, bytes, Stage::always);
    site.copy(view, packed.like(view, view.dtype));
    const std::span<const std::byte> staged = packed.on_host();
    std::memcpy(elements.data(), staged.data(), elements.size());
    return elements;
}

} // namespace flashomp::mpi
