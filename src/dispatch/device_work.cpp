#include "device_work.hpp"

#include "cuda_passes.hpp"
#include "elements_params.hpp"
#include "openmp_passes.hpp"
#include "place.hpp"
#include "workspace.hpp"

#include "cuda/runtime.hpp"

#include "flashomp/error.hpp"

#include <fmt/format.h>
#include <utility>

namespace flashomp {

namespace {

std::shared_ptr<std::byte> lease(std::int64_t bytes, const Space& space)
{
    const auto workspace = std::make_shared<Workspace>(bytes, space);
    return {workspace, static_cast<std::byte*>(workspace->data())};
}

/// On the CUDA backend all is queued: on the caller's stream or the default one, which calls without a stream use, too.
Options queued(Options options, const Place& place)
{
    if (place.hardware.backend == Backend::cuda && !options.stream) {
        options.stream = nullptr;
    }
    return options;
}

} // namespace

struct DeviceWork::State {
    explicit State(const Options& given)
        : place(choose_place(given)), options(queued(given, place)), space(space_of(place.hardware, options))
    {
    }

    Place place;
    Options options;
    Space space;
    bool has_copied = false, has_failed_copy = false; ///< on the stream for copies; anywhere
};

DeviceWork::DeviceWork(const Options& options) : state_(std::make_unique<State>(options))
{
    if (!state_->place.hardware.is_device) {
        throw Error(fmt::format("tensors are in device memory, but the call runs on {}; allowed there is host memory.",
                                state_->place.name));
    }
}

DeviceWork::~DeviceWork() = default;

const Options& DeviceWork::options() const
{
    const Space& space = state_->space;
    if (space.kind == Space::Kind::cuda && cuda::is_captured(space.device, space.stream)) {
        throw Error(
            "stream is being captured into a CUDA graph, which has no place for messages between ranks; allowed "
            "is a stream that is not captured.");
    }
    return state_->options;
}

bool DeviceWork::has_cuda_memory() const
{
    return state_->space.kind == Space::Kind::cuda || state_->place.hardware.gpu.shares_cuda_memory;
}

std::shared_ptr<std::byte> DeviceWork::memory(std::int64_t bytes) const
{
    Space space = state_->space;
    space.is_asynchronous = false; // nobody gives it back before wait()
    return lease(bytes, space);
}

std::shared_ptr<std::byte> DeviceWork::page_locked(std::int64_t bytes) const
{
    return lease(bytes, {Space::Kind::page_locked, state_->space.device});
}

void DeviceWork::run(int work, const ConstTensorView& from, const TensorView& to, std::int64_t first, float value)
{
    offload::ElementsParams params = elements_params(static_cast<offload::ElementsWork>(work), from, to);
    params.first = first;
    params.value = value;
    if (offload::elements_units(params) == 0) {
        return;
    }
    const Space& space = state_->space;
    wait_before(space);
    const offload::Ran ran = space.kind == Space::Kind::cuda
                                 ? run_cuda_elements(params, state_->place, space)
                                 : run_openmp_elements(params, state_->place.hardware, space, 1);
    expect_where_sent(state_->place, ran.on_device);
}

void DeviceWork::copy(const ConstTensorView& from, const TensorView& to)
{
    run(static_cast<int>(offload::ElementsWork::copy), from, to);
}

void DeviceWork::convert(const ConstTensorView& from, const TensorView& to)
{
    run(static_cast<int>(offload::ElementsWork::convert), from, to);
}

void DeviceWork::add(const ConstTensorView& terms, const TensorView& sums)
{
    run(static_cast<int>(offload::ElementsWork::add), terms, sums);
}

void DeviceWork::fill(const TensorView& tensor, float value)
{
    run(static_cast<int>(offload::ElementsWork::fill), tensor, tensor, 0, value);
}

void DeviceWork::unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans)
{
    run(static_cast<int>(offload::ElementsWork::unpack), bits, booleans, first);
}

void DeviceWork::wait()
{
    wait_before(state_->space); // of the openmp backend: what the caller sent to the stream
    wait_for(state_->space);
    if (std::exchange(state_->has_copied, false)) {
        const bool is_done = cuda::wait(state_->space.device, cuda::copying_stream(state_->space.device)) == 0;
        state_->has_failed_copy = state_->has_failed_copy || !is_done;
    }
    if (std::exchange(state_->has_failed_copy, false)) {
        throw RunFailure(fmt::format("copying between the host and {} failed.", state_->space.name()));
    }
}

bool DeviceWork::is_idle() const
{
    const Space& space = state_->space;
    return space.kind != Space::Kind::cuda || cuda::is_idle(space.device, space.stream);
}

DeviceWork::Mark DeviceWork::mark() const
{
    const Space& space = state_->space;
    if (space.kind != Space::Kind::cuda) {
        return {};
    }
    void* const mark = cuda::mark(space.device, space.stream);
    if (mark == nullptr) { // then nothing may go on beside
        cuda::wait(space.device, space.stream);
        return {};
    }
    return {mark, [device = space.device](void* made) { cuda::forget(device, made); }};
}

bool DeviceWork::is_past(const Mark& mark) const
{
    return mark == nullptr || cuda::is_over(state_->space.device, mark.get());
}

DeviceWork::Mark DeviceWork::copy_beside(void* target, const void* source, std::int64_t bytes, bool is_in,
                                         const Mark& after)
{
    const Space& space = state_->space;
    bool is_done = true;
    Mark end;
    if (space.kind == Space::Kind::cuda) {
        void* const beside = cuda::copying_stream(space.device);
        state_->has_copied = beside != nullptr;
        is_done = beside != nullptr && (after == nullptr || cuda::follow(space.device, beside, after.get())) &&
                  cuda::copy(target, source, bytes, is_in ? cuda::Copy::to_device : cuda::Copy::to_host, space.device,
                             beside);
        void* const mark = is_done ? cuda::mark(space.device, beside) : nullptr;
        if (mark != nullptr) {
            end = {mark, [device = space.device](void* made) { cuda::forget(device, made); }};
        } else {
            is_done = is_done && cuda::wait(space.device, beside) == 0;
        }
    } else {
        try {
            is_in ? flashomp::copy_in(target, space, source, bytes) : flashomp::copy_out(target, source, space, bytes);
        } catch (const RunFailure&) {
            is_done = false;
        }
    }
    state_->has_failed_copy = state_->has_failed_copy || !is_done;
    return end;
}

DeviceWork::Mark DeviceWork::copy_out(void* host, const void* there, std::int64_t bytes, const Mark& after)
{
    return copy_beside(host, there, bytes, false, after);
}

DeviceWork::Mark DeviceWork::copy_in(void* there, const void* host, std::int64_t bytes, const Mark& after)
{
    return copy_beside(there, host, bytes, true, after);
}

int device_of_calls(const Options& options)
{
    return choose_place(options).hardware.device;
}

} // namespace flashomp
