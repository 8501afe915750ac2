#include "buffer.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

namespace flashomp::mpi {

namespace {

void wait_for(Site& site, const Site::Mark& mark)
{
    while (!site.is_past(mark)) {
        std::this_thread::yield();
    }
}

} // namespace

Buffer::Buffer(Site& site, std::int64_t bytes, Stage stage)
    : site_(&site), memory_(site.allocate(std::max<std::int64_t>(bytes, 1))), bytes_(bytes)
{
    if (!is_on_host() && (stage == Stage::always || (stage == Stage::for_messages && !site.is_reached_by_mpi()))) {
        stage_ = site.allocate_stage(std::max<std::int64_t>(bytes, 1));
    }
}

void Buffer::clear(std::int64_t bytes)
{
    if (bytes > 0) {
        site_->fill(floats(bytes), 0.0F);
    }
}

std::span<std::byte> Buffer::host_memory() const
{
    return {is_on_host() ? memory_.get() : stage_.get(), static_cast<std::size_t>(bytes_)};
}

std::span<std::byte> Buffer::on_host()
{
    if (!is_on_host() && bytes_ > 0) {
        wait_for(*site_, site_->copy_out(stage_.get(), memory_.get(), bytes_, site_->mark()));
    }
    return host_memory();
}

void Buffer::from_host()
{
    if (!is_on_host() && bytes_ > 0) {
        wait_for(*site_, site_->copy_in(memory_.get(), stage_.get(), bytes_, site_->mark()));
    }
}

std::int64_t Buffer::bytes_of(DType dtype, std::initializer_list<std::int64_t> shape)
{
    return std::accumulate(shape.begin(), shape.end(), size_of(dtype), std::multiplies<>());
}

} // namespace flashomp::mpi
