// Tensors of a case in a device's memory.
#pragma once

#include "attention_case.hpp"

#include "space.hpp"

#include <utility>
#include <vector>

namespace flashomp::testing {

/// Device copies of one call's tensors.
class OnDevice {
public:
    explicit OnDevice(const Space& space) : space_(space) {}
    ~OnDevice()
    {
        for (const auto& [host, copy] : copies_) {
            release(copy, space_);
        }
    }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    TensorView place(HostTensor& tensor)
    {
        TensorView view = tensor.view();
        if (tensor.rank() == 0) {
            return view; // not given
        }
        void* const copy = allocate(tensor.bytes(), space_);
        copies_.emplace_back(&tensor, copy);
        copy_in(copy, space_, tensor.data(), tensor.bytes());
        view.data = copy;
        view.memory = Memory::device;
        return view;
    }

    /// Brings what the copies hold to the host.
    void download()
    {
        for (const auto& [host, copy] : copies_) {
            copy_out(host->data(), copy, space_, host->bytes());
        }
        wait_for(space_);
    }

private:
    Space space_;
    std::vector<std::pair<HostTensor*, void*>> copies_;
};

/// The arguments of a case, on the device; its outputs must have been made. Its options stay on the host.
struct DeviceCalls {
    DeviceCalls(OnDevice& device, AttentionCase& attention)
    {
        backward.q = forward.q = device.place(attention.q);
        backward.k = forward.k = device.place(attention.k);
        backward.v = forward.v = device.place(attention.v);
        backward.o = forward.o = device.place(attention.o);
        backward.lse = forward.lse = device.place(attention.lse);
        backward.dout = device.place(attention.dout);
        backward.dq = device.place(attention.dq);
        backward.dk = device.place(attention.dk);
        backward.dv = device.place(attention.dv);
    }

    ForwardArgs forward;
    BackwardArgs backward;
};

} // namespace flashomp::testing
