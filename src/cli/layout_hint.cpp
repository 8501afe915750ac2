#include "layout_hint.hpp"

#include "attention_inputs.hpp"

#include "flashomp/error.hpp"

#include "validate.hpp"

#include <string>

#include <fmt/format.h>

namespace flashomp::cli {

namespace {

/// With sequence and heads exchanged.
template <class View>
View exchanged(const View& view)
{
    return view.rank == ConstTensorView::max_rank ? in_layout(view, Layout::bhsd) : view;
}

Problem validate(const ForwardArgs& args, const Options& options)
{
    return validate_forward(args, options);
}

Problem validate(const BackwardArgs& args, const Options& options)
{
    return validate_backward(args, options);
}

ForwardArgs exchanged(ForwardArgs args)
{
    args.q = exchanged(args.q);
    args.k = exchanged(args.k);
    args.v = exchanged(args.v);
    args.o = exchanged(args.o);
    if (args.lse.rank == 3) { // made for q as it was read, not given
        args.lse = TensorView::contiguous(args.lse.data, args.lse.dtype,
                                          {args.lse.shape[0], args.lse.shape[2], args.lse.shape[1]});
    }
    return args;
}

BackwardArgs exchanged(BackwardArgs args)
{
    for (ConstTensorView* const view : {&args.q, &args.k, &args.v, &args.o, &args.dout}) {
        *view = exchanged(*view);
    }
    for (TensorView* const view : {&args.dq, &args.dk, &args.dv}) {
        *view = exchanged(*view);
    }
    return args;
}

template <class Args>
bool is_accepted(const Args& args, const Options& options)
{
    try {
        static_cast<void>(validate(args, options));
        return true;
    } catch (const Error&) {
        return false;
    }
}

template <class Args, class Call>
CallReport with_hint(Layout layout, const Args& args, const Options& options, const Call& call)
{
    try {
        return call(args, options);
    } catch (const NotBuilt&) {
        throw;
    } catch (const Error& error) {
        if (is_accepted(args, options) || !is_accepted(exchanged(args), options)) {
            throw;
        }
        std::string sentence = error.what();
        sentence.erase(sentence.find_last_not_of('.') + 1);
        throw Error(fmt::format("{}; the tensors would fit with --layout {}.", sentence,
                                layout == Layout::bshd ? "bhsd" : "bshd"));
    }
}

} // namespace

CallReport forward_in(const Runner& runner, Layout layout, const ForwardArgs& args, const Options& options)
{
    return with_hint(layout, args, options, runner.forward);
}

CallReport backward_in(const Runner& runner, Layout layout, const BackwardArgs& args, const Options& options)
{
    return with_hint(layout, args, options, runner.backward);
}

} // namespace flashomp::cli
