// The same functions in builds without CUDA (FLASHOMP_BACKEND=openmp): there is no device, so nobody calls the rest.
#include "append_kernels.hpp"
#include "bias_kernels.hpp"
#include "elements_kernels.hpp"
#include "few_kernels.hpp"
#include "hopper_kernels.hpp"
#include "kernels.hpp"
#include "runtime.hpp"

namespace flashomp::cuda {

namespace {
constexpr int not_built = -1;
}

bool is_built()
{
    return false;
}

const char* error_text(int)
{
    return "this build has no CUDA code";
}

int device_count()
{
    return 0;
}

DeviceFacts device_facts(int)
{
    return {};
}

CurrentDevice::CurrentDevice(int) {}
CurrentDevice::~CurrentDevice() = default;

void* allocate(std::int64_t, int)
{
    return nullptr;
}

void release(void*, int) {}

bool has_stream_memory(int)
{
    return false;
}

void* allocate_on(void*, std::int64_t, int)
{
    return nullptr;
}

void release_on(void*, void*, int) {}
void release_unused(int) {}

std::int64_t reserved_bytes(int)
{
    return 0;
}

bool copy(void*, const void*, std::int64_t, Copy, int, void*)
{
    return false;
}

bool clear(void*, std::int64_t, int, void*)
{
    return false;
}

bool is_captured(int, void*)
{
    return false;
}

int wait(int, void*)
{
    return not_built;
}

bool is_idle(int, void*)
{
    return true;
}

void* copying_stream(int)
{
    return nullptr;
}

void* mark(int, void*)
{
    return nullptr;
}

bool is_over(int, void*)
{
    return true;
}

bool follow(int, void*, void*)
{
    return false;
}

void forget(int, void*) {}

int run_tensor(const offload::Params&, const offload::Launch&, void*)
{
    return not_built;
}

int run_plain(const offload::Params&, const offload::Launch&, void*)
{
    return not_built;
}

int run_masked(const offload::Params&, const offload::Launch&, void*)
{
    return not_built;
}

int run_visible(const offload::Params&, const offload::Launch&, const unsigned*, void*)
{
    return not_built;
}

int run_merge(const offload::MergeParams&, void*)
{
    return not_built;
}

int run_append(const offload::AppendParams&, void*)
{
    return not_built;
}

int run_elements(const offload::ElementsParams&, void*)
{
    return not_built;
}

bool hopper_supports(offload::Pass, const offload::Params&)
{
    return false;
}

std::int64_t hopper_workspace_bytes(offload::Pass, const offload::Params&)
{
    return 0;
}

bool float8_supports(const offload::Params&)
{
    return false;
}

std::int64_t float8_workspace_bytes(const offload::Params&)
{
    return 0;
}

HopperBlocks hopper_blocks(offload::Pass, const offload::Params&)
{
    return {};
}

HopperBlocks float8_blocks(const offload::Params&)
{
    return {};
}

int run_float8(const StreamCall&)
{
    return not_built;
}

int run_hopper(const StreamCall&)
{
    return not_built;
}

bool bias_supports(const offload::Params&)
{
    return false;
}

HopperBlocks bias_blocks(const offload::Params&)
{
    return {};
}

int run_bias(const StreamCall&)
{
    return not_built;
}

int run_few(const StreamCall&)
{
    return not_built;
}

} // namespace flashomp::cuda
