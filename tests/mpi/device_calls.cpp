#include "device_calls.hpp"

#include "fake_device.hpp"
#include "tensors.hpp"

#include "cuda/kernels.hpp"
#include "space.hpp"

#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace flashomp::testing {

namespace {

/// The memory of the GPU that calls of this rank take.
class GpuMemory : public DeviceMemory {
public:
    GpuMemory()
        : space_{cuda::is_built() ? Space::Kind::cuda : Space::Kind::openmp, mpi::device_of_rank(MPI_COMM_WORLD).index}
    {
    }

    void* take(std::int64_t bytes) override
    {
        void* const block = allocate(bytes, space_);
        if (block == nullptr) {
            throw std::bad_alloc();
        }
        return block;
    }
    void give_back(void* block) override { release(block, space_); }
    void put(void* there, const void* host, std::int64_t bytes) override
    {
        copy_in(there, space_, host, bytes);
        wait_for(space_);
    }
    void get(void* host, const void* there, std::int64_t bytes) override
    {
        copy_out(host, there, space_, bytes);
        wait_for(space_);
    }

private:
    Space space_;
};

DeviceMemory& device_memory()
{
    if (test_device() == TestDevice::fake) {
        static FakeMemory fake;
        return fake;
    }
    static GpuMemory gpu;
    return gpu;
}

/// One call's tensors on the device.
class Copies {
public:
    explicit Copies(DeviceMemory& memory) : memory_(memory) {}
    ~Copies()
    {
        for (const auto& [host, copy] : copies_) {
            memory_.give_back(copy.there);
        }
    }
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;

    ConstTensorView input(const ConstTensorView& view)
    {
        if (!view) {
            return view;
        }
        ConstTensorView copy = view;
        copy.memory = view.memory == Memory::host ? Memory::device : Memory::host;
        const bool is_usual =
            view.rank <= ConstTensorView::max_rank && view.strides.at(static_cast<std::size_t>(view.rank - 1)) == 1;
        if (view.data == nullptr || view.memory == Memory::device || !is_usual || view.elements() == 0) {
            return copy;
        }
        std::int64_t stride = 1;
        for (int axis = view.rank - 1; axis >= 0; --axis) {
            const auto a = static_cast<std::size_t>(axis);
            copy.strides.at(a) = stride;
            stride *= view.shape.at(a);
            stride += axis == view.rank - 1 && view.rank > 2 ? 3 : 0;
        }
        Copy& known = copies_[view.data];
        if (known.there == nullptr) {
            known.values.resize(static_cast<std::size_t>(stride * size_of(view.dtype)), std::byte{0xFF});
            mpi::copy(view, at(known.values.data(), copy));
            known.there = memory_.take(std::ssize(known.values));
            memory_.put(known.there, known.values.data(), std::ssize(known.values));
        }
        copy.data = known.there;
        return copy;
    }

    TensorView output(const TensorView& view)
    {
        const ConstTensorView given = input(view);
        const TensorView copy = at(const_cast<void*>(given.data), given);
        if (copy && copy.data != view.data) {
            outputs_.emplace_back(view, copy);
        }
        return copy;
    }

    Options options(Options given)
    {
        for (ConstTensorView* const view :
             {&given.bias, &given.mask, &given.alibi_slopes, &given.key_padding_mask, &given.sink}) {
            *view = input(*view);
        }
        return given;
    }

    void bring_back()
    {
        for (const auto& [view, copy] : outputs_) {
            Copy& known = copies_.at(view.data);
            memory_.get(known.values.data(), known.there, std::ssize(known.values));
            mpi::copy(at(known.values.data(), copy), view);
        }
    }

private:
    struct Copy {
        void* there = nullptr;
        std::vector<std::byte> values; ///< as they are there
    };

    static TensorView at(void* data, const ConstTensorView& like)
    {
        TensorView same;
        same.data = data;
        same.dtype = like.dtype;
        same.memory = like.memory;
        same.rank = like.rank;
        same.shape = like.shape;
        same.strides = like.strides;
        return same;
    }

    DeviceMemory& memory_;
    std::map<const void*, Copy> copies_; ///< by their address on the host
    std::vector<std::pair<TensorView, TensorView>> outputs_;
};

/// On the GPU of the tensors: a rank's number in another communicator, and so the GPU of its number, may be another
/// one.
Options placed(Options options, const mpi::Sharding& sharding)
{
    static const Device device =
        test_device() == TestDevice::gpu ? mpi::device_of_rank(MPI_COMM_WORLD, options) : options.device;
    if (sharding.comm != MPI_COMM_WORLD && options.device.kind == Device::Kind::automatic) {
        options.device = device;
    }
    return options;
}

/// Runs f, and brings results back also where it throws: there are none then.
template <class F>
mpi::Report run(Copies& copies, F f)
{
    try {
        mpi::Report report = f();
        copies.bring_back();
        return report;
    } catch (...) {
        copies.bring_back();
        throw;
    }
}

} // namespace

TestDevice test_device()
{
    const char* const asked = std::getenv("FLASHOMP_TEST_DEVICE");
    const std::string_view word = asked != nullptr ? asked : "";
    return word == "fake" ? TestDevice::fake : (word == "gpu" ? TestDevice::gpu : TestDevice::none);
}

mpi::Report sharded_forward(const ForwardArgs& args, const Options& options, const mpi::Sharding& sharding)
{
    if (test_device() == TestDevice::none) {
        return mpi::forward(args, options, sharding);
    }
    Copies there(device_memory());
    ForwardArgs copy;
    copy.q = there.input(args.q);
    copy.k = there.input(args.k);
    copy.v = there.input(args.v);
    copy.o = there.output(args.o);
    copy.lse = there.output(args.lse);
    const Options options_there = placed(there.options(options), sharding);
    return run(there, [&] { return mpi::forward(copy, options_there, sharding); });
}

mpi::Report sharded_backward(const BackwardArgs& args, const Options& options, const mpi::Sharding& sharding)
{
    if (test_device() == TestDevice::none) {
        return mpi::backward(args, options, sharding);
    }
    Copies there(device_memory());
    BackwardArgs copy;
    copy.q = there.input(args.q);
    copy.k = there.input(args.k);
    copy.v = there.input(args.v);
    copy.o = there.input(args.o);
    copy.lse = there.input(args.lse);
    copy.dout = there.input(args.dout);
    copy.dq = there.output(args.dq);
    copy.dk = there.output(args.dk);
    copy.dv = there.output(args.dv);
    copy.dbias = there.output(args.dbias);
    copy.dsink = there.output(args.dsink);
    const Options options_there = placed(there.options(options), sharding);
    return run(there, [&] { return mpi::backward(copy, options_there, sharding); });
}

} // namespace flashomp::testing
