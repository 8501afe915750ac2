#include "call.hpp"

namespace flashomp::mpi {

Call::Call(const ForwardArgs& forward, const Options& given) : o(forward.o), lse(forward.lse), options(given)
{
    args.q = forward.q;
    args.k = forward.k;
    args.v = forward.v;
    args.o = forward.o;
    args.lse = forward.lse;
}

Call::Call(const BackwardArgs& backward, const Options& given) : is_backward(true), args(backward), options(given) {}

std::string_view word_of(Memory memory)
{
    return memory == Memory::device ? "device" : "host";
}

} // namespace flashomp::mpi
