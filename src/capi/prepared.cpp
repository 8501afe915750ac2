// Prepared calls of the C interface.
#include "prepared.hpp"

#include "arguments.hpp"
#include "options.hpp"
#include "status.hpp"

#include <fmt/format.h>
#include <span>

namespace flashomp::capi {

namespace {

template <class CArgs>
flashomp_status guarded_prepare(const CArgs* args, const flashomp_options* options, flashomp_prepared** prepared)
{
    return guarded([&] {
        if (prepared == nullptr) {
            throw Error("prepared was null; it must point to a flashomp_prepared*.");
        }
        *prepared = nullptr;
        const auto call = call_of(args, options);
        *prepared = new flashomp_prepared{prepare(call.args, call.options), managed_is_gpus(read_options(options))};
    });
}

std::span<std::byte> span_of(void* workspace, std::int64_t bytes)
{
    if (bytes < 0) {
        throw Error(fmt::format("workspace_bytes was {}; it must be 0 or more.", bytes));
    }
    return {static_cast<std::byte*>(workspace), static_cast<std::size_t>(bytes)};
}

template <class Args, class CArgs>
flashomp_status guarded_run(flashomp_prepared* prepared, const CArgs* args, const flashomp_options* options,
                            void* workspace, std::int64_t workspace_bytes, flashomp_report* report)
{
    return guarded([&] {
        if (prepared == nullptr) {
            throw Error("prepared was null; it must be what flashomp_prepare_forward() or flashomp_prepare_backward() "
                        "gave.");
        }
        auto* const call = std::get_if<Prepared<Args>>(&prepared->call);
        if (call == nullptr) {
            const bool is_forward = std::is_same_v<Args, ForwardArgs>;
            throw Error(fmt::format("prepared is a {} call; flashomp_run_{}() runs {} calls.",
                                    is_forward ? "backward" : "forward", is_forward ? "forward" : "backward",
                                    is_forward ? "forward" : "backward"));
        }
        check_report(report);
        const auto memory = span_of(workspace, workspace_bytes);
        const RunReport run = [&] {
            if (options == nullptr) { // those that prepare got, which also say whose memory managed memory is
                return call->run(args_of(args, prepared->managed_is_gpus), memory);
            }
            const auto given = call_of(args, options);
            return call->run(given.args, given.options, memory);
        }();
        if (report != nullptr) {
            write_report(report, call->report(run));
        }
    });
}

} // namespace

} // namespace flashomp::capi

using namespace flashomp::capi;

flashomp_status flashomp_prepare_forward(const flashomp_forward_args* args, const flashomp_options* options,
                                         flashomp_prepared** prepared)
{
    return guarded_prepare(args, options, prepared);
}

flashomp_status flashomp_prepare_backward(const flashomp_backward_args* args, const flashomp_options* options,
                                          flashomp_prepared** prepared)
{
    return guarded_prepare(args, options, prepared);
}

int64_t flashomp_workspace_bytes(const flashomp_prepared* prepared)
{
    if (prepared == nullptr) {
        keep_sentence("prepared was null; it must be a prepared call.");
        return -1;
    }
    return std::visit([](const auto& call) { return call.workspace_bytes(); }, prepared->call);
}

int32_t flashomp_workspace_device_type(const flashomp_prepared* prepared)
{
    if (prepared == nullptr) {
        keep_sentence("prepared was null; it must be a prepared call.");
        return -1;
    }
    const auto memory = std::visit([](const auto& call) { return call.workspace_memory(); }, prepared->call);
    return memory == flashomp::Memory::host ? FLASHOMP_CPU : FLASHOMP_CUDA;
}

flashomp_status flashomp_run_forward(flashomp_prepared* prepared, const flashomp_forward_args* args,
                                     const flashomp_options* options, void* workspace, int64_t workspace_bytes,
                                     flashomp_report* report)
{
    return guarded_run<flashomp::ForwardArgs>(prepared, args, options, workspace, workspace_bytes, report);
}

flashomp_status flashomp_run_backward(flashomp_prepared* prepared, const flashomp_backward_args* args,
                                      const flashomp_options* options, void* workspace, int64_t workspace_bytes,
                                      flashomp_report* report)
{
    return guarded_run<flashomp::BackwardArgs>(prepared, args, options, workspace, workspace_bytes, report);
}

void flashomp_prepared_free(flashomp_prepared* prepared)
{
    delete prepared;
}
