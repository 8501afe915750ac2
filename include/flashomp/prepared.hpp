// A call that is decided once and run many times: for layers, decoding loops and CUDA graphs.
#pragma once

#include "flashomp/attention.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace flashomp {

/// What one run of a prepared call did.
struct RunReport {
    std::string_view machine;     ///< as in Report; of the prepared call, which must outlive it
    bool on_device = false;       ///< as in Report
    bool computed_twice = false;  ///< as in Report
    int threads = 0;              ///< on the host: threads of the pass that has most
    std::int64_t extra_bytes = 0; ///< as in Report
    double seconds = 0.0;         ///< wall-clock of the run; with a stream, of queueing it
};

/// A forward or backward call whose shapes, strides, options, place and kernels are decided. run() gives the same bits
/// as forward() or backward(). It plans nothing, takes no lock of flashomp's and allocates nothing, but for three
/// things: the first run of a thread starts OpenMP's team; the first run of a kernel may set its attributes on a
/// device; and a result may be computed a second time (Report::computed_twice), which plans and
/// allocates.
///
/// Threads. Two threads must not be in run() of one prepared call at a time, and nobody moves or assigns the prepared
/// call meanwhile. Different prepared calls do not disturb each other. A run has at most the host threads that
/// prepare() found (Options::threads), and one thread inside a caller's parallel region, as other calls.
/// Streams. The prepared call, the workspace and the tensors must live until the stream is done with the runs; where a
/// run is captured into a CUDA graph, as long as the graph may be launched.
/// Forks. In a forked child the run of a call that was prepared for a GPU throws Error. Runs on the host work.
/// A prepared call that was moved from may only be assigned or destroyed.
template <class Args>
class Prepared {
public:
    Prepared(Prepared&& other) noexcept;
    Prepared& operator=(Prepared&& other) noexcept;
    ~Prepared();

    /// Alignment of a workspace, in bytes.
    static constexpr std::int64_t workspace_alignment = 256;

    /// Bytes of a workspace, 0 where no run needs any. forward() and backward() get as many for themselves.
    [[nodiscard]] std::int64_t workspace_bytes() const;

    /// Where a workspace must be. Device memory as in Memory.
    [[nodiscard]] Memory workspace_memory() const;

    /// Runs the call on tensors of the prepared shapes, strides, dtypes and memories. They may be at any addresses that
    /// are as aligned as the prepared ones. The tensors of the options are those of prepare(), read anew. `workspace`
    /// has at least workspace_bytes() bytes, whatever they hold, and shares no memory with a tensor. Runs at the same
    /// time need different workspaces. Give `stream` exactly where Options::stream was given to prepare(); the run uses
    /// this one.
    /// Throws Error, with nothing written, when an argument is not as prepared; RunFailure when the machine fails.
    RunReport run(const Args& args, std::span<std::byte> workspace, std::optional<void*> stream = {});

    /// The same with tensors of options at other addresses, another seed and offset of dropout and another object of
    /// the same score_mod. All other
    /// options equal those that prepare() was given. cu_seqlens_q and cu_seqlens_k keep the values that prepare() read,
    /// and are not looked at again. The lengths and tables of a key/value cache are read and checked in every run:
    /// plans are for the whole cache.
    RunReport run(const Args& args, const Options& options, std::span<std::byte> workspace);

    /// What a run of this call did, in words.
    [[nodiscard]] Report report(const RunReport& run) const;

private:
    class State;
    explicit Prepared(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;

    friend Prepared<ForwardArgs> prepare(const ForwardArgs& args, const Options& options);
    friend Prepared<BackwardArgs> prepare(const BackwardArgs& args, const Options& options);
};

using PreparedForward = Prepared<ForwardArgs>;
using PreparedBackward = Prepared<BackwardArgs>;

/// Decides a call of the openmp or cuda backend. Tensors may have null for data, also those of the options: such a
/// tensor gets its address from run(), where on a GPU it must be aligned to 16 bytes. cu_seqlens_q and cu_seqlens_k are
/// read here, and not afterwards; the tables of a key/value cache are read in runs, and not here.
/// Throws Error when an argument is not as documented.
[[nodiscard]] PreparedForward prepare(const ForwardArgs& args, const Options& options = {});
[[nodiscard]] PreparedBackward prepare(const BackwardArgs& args, const Options& options = {});

} // namespace flashomp
