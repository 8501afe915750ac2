#include "standard_cuda.hpp"

namespace flashomp::bench {

std::unique_ptr<Standard> make_standard_cuda(BenchCase& /*bench*/, const Space& /*space*/)
{
    return nullptr;
}

} // namespace flashomp::bench
