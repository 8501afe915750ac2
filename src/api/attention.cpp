#include "flashomp/attention.hpp"

#include "dispatch.hpp"
#include "validate.hpp"

namespace flashomp {

Report forward(const ForwardArgs& args, const Options& options)
{
    return run(validate_forward(args, options));
}

Report backward(const BackwardArgs& args, const Options& options)
{
    return run(validate_backward(args, options));
}

} // namespace flashomp
