// flashomp.jax: what a call is made of when JAX traces it, and XLA's handlers, which run it without Python.
#include "calls.hpp"
#include "xla_ffi.hpp"

#include <flashomp/error.hpp>

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <new>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace flashomp::python {

namespace {

/// The options that are numbers, each an attribute of XLA's call by this name.
template <class Visit>
void each_number(Options& options, Layout& layout, const Visit& visit)
{
    visit("scale", options.scale);
    visit("causal", options.causal);
    visit("window_left", options.window.left);
    visit("window_right", options.window.right);
    visit("softcap", options.softcap);
    visit("dropout", options.dropout.probability);
    visit("layout", layout);
}

/// q, k, v and o with four axes have them in the order of the layout.
TensorView in_order(const TensorView& view, Layout layout)
{
    return layout == Layout::bhsd && view.rank == TensorView::max_rank ? view.transposed(1, 2) : view;
}

// When JAX traces: tensors have shapes and dtypes, but no memory yet.

/// Starts of packed sequences whose values nobody knows yet: one has all rows.
std::vector<std::int32_t> any_starts(const TensorView& starts, const TensorView& rows)
{
    std::vector<std::int32_t> values(static_cast<std::size_t>(starts.elements()), 0);
    if (!values.empty() && rows.shape[0] <= INT32_MAX) {
        values.back() = static_cast<std::int32_t>(rows.shape[0]);
    }
    return values;
}

/// Checks a call as the library will, and returns its attributes. `tensors` are by name what has a shape and a dtype.
nb::dict attributes_of(const nb::dict& tensors, const nb::dict& keywords)
{
    CallOptions call(keywords, Use::input);
    TensorView q;
    TensorView k;
    TensorView v;
    std::array<std::vector<std::int32_t>, 2> starts;
    for (const auto& [key, object] : tensors) {
        const auto name = nb::cast<std::string>(key);
        const TensorView view = TensorArgument::without_memory(name.c_str(), object).view();
        if (TensorView* const input = name == "q" ? &q : name == "k" ? &k : name == "v" ? &v : nullptr) {
            *input = view;
        } else {
            call.options.*tensor_option(name) = view;
        }
    }
    for (const auto& [option, rows, values] : {std::tuple(&call.options.cu_seqlens_q, &q, &starts[0]),
                                               std::tuple(&call.options.cu_seqlens_k, &k, &starts[1])}) {
        if (*option && option->rank == 1) {
            *values = any_starts(TensorView::contiguous(nullptr, option->dtype, {option->shape[0]}), *rows);
            option->data = values->data();
        }
    }
    call.options.device = {Device::Kind::host, 0};
    for (TensorView* input : {&q, &k, &v}) {
        *input = in_order(*input, call.layout);
    }
    // q, k and v are checked before the results, whose shapes mean nothing where those do not fit.
    const auto last = [](TensorView& view) -> std::int64_t& {
        return view.shape[static_cast<std::size_t>(std::max(view.rank, 1) - 1)];
    };
    TensorView o = q;
    last(o) = last(v);
    o = TensorView::contiguous(nullptr, output_type_of(q.dtype),
                               std::span(o.shape).first(static_cast<std::size_t>(o.rank)));
    const auto lse = q.rank == 4 ? TensorView::contiguous(nullptr, DType::float32, {q.shape[0], q.shape[2], q.shape[1]})
                                 : TensorView::contiguous(nullptr, DType::float32, {q.shape[1], q.shape[0]});
    static_cast<void>(prepare(ForwardArgs{q, k, v, o, lse}, call.options));
    nb::dict attributes;
    each_number(call.options, call.layout, [&]<class Number>(const char* name, const Number& number) {
        if constexpr (std::is_same_v<Number, std::optional<double>>) {
            if (number) {
                attributes[name] = *number;
            }
        } else if constexpr (std::is_enum_v<Number>) {
            attributes[name] = static_cast<int>(number);
        } else {
            attributes[name] = number;
        }
    });
    return attributes;
}

// When XLA runs the call.

DType dtype_of(const std::string& name, xla::ElementType dtype)
{
    switch (dtype) {
    case xla::ElementType::float32:
        return DType::float32;
    case xla::ElementType::float64:
        return DType::float64;
    case xla::ElementType::float16:
        return DType::float16;
    case xla::ElementType::bfloat16:
        return DType::bfloat16;
    case xla::ElementType::int32:
        return DType::int32;
    case xla::ElementType::int64:
        return DType::int64;
    case xla::ElementType::boolean:
        return DType::boolean;
    default:
        break;
    }
    throw Error(name + " has XLA's element type " + std::to_string(static_cast<int>(dtype)) +
                "; allowed are float32, bfloat16, float16, bool and int32.");
}

/// A call of XLA: its attributes as options, and its buffers by the names that two of the attributes list.
class XlaCall {
public:
    explicit XlaCall(const xla::CallFrame& frame) : attributes_(frame.attributes)
    {
        each_number(options, layout, [&](const char* name, auto& number) { read(name, number); });
        name_buffers("operands", frame.operands);
        name_buffers("results", frame.results);
        options.device = {Device::Kind::host, 0}; // XLA's platform cpu
        for (const auto& [name, buffer] : buffers_) {
            if (name == "seed") {
                read_seed(*buffer);
            } else if (const auto option = tensor_option(name)) {
                options.*option = view_of(name, *buffer);
            }
        }
    }

    Options options;
    Layout layout = Layout::bshd;

    /// The tensor of this name, of rank 0 where there is none.
    [[nodiscard]] TensorView as_given(std::string_view name) const
    {
        const auto found =
            std::find_if(buffers_.begin(), buffers_.end(), [&](const auto& named) { return named.first == name; });
        return found == buffers_.end() ? TensorView() : view_of(name, *found->second);
    }

    /// The same of a tensor whose axes the layout orders.
    [[nodiscard]] TensorView operator[](std::string_view name) const { return in_order(as_given(name), layout); }

private:
    static TensorView view_of(std::string_view name, const xla::Buffer& buffer)
    {
        const std::string text(name);
        if (buffer.rank < 1 || buffer.rank > TensorView::max_rank) {
            throw Error(text + " has " + std::to_string(buffer.rank) + " axes; it must have 1 to 4.");
        }
        return TensorView::contiguous(
            buffer.data, dtype_of(text, buffer.dtype),
            std::span<const std::int64_t>(buffer.shape, static_cast<std::size_t>(buffer.rank)));
    }

    /// The value of an attribute, or null where there is none.
    [[nodiscard]] const void* find(std::string_view name, xla::AttributeType type) const
    {
        for (std::int64_t i = 0; i < attributes_.size; ++i) {
            if (std::string_view(attributes_.names[i]->data, attributes_.names[i]->size) == name) {
                if (attributes_.types[i] != type) {
                    refuse(name);
                }
                return attributes_.values[i];
            }
        }
        return nullptr;
    }

    [[noreturn]] static void refuse(std::string_view name)
    {
        throw Error("the attribute " + std::string(name) + " has another type than flashomp.jax gives it.");
    }

    template <class Value>
    std::optional<Value> find_number(const char* name, xla::ElementType dtype) const
    {
        const auto* scalar = static_cast<const xla::Scalar*>(find(name, xla::AttributeType::scalar));
        if (scalar == nullptr) {
            return {};
        }
        if (scalar->dtype != dtype) {
            refuse(name);
        }
        return *static_cast<const Value*>(scalar->value);
    }

    void read(const char* name, std::optional<double>& number) const
    {
        number = find_number<double>(name, xla::ElementType::float64);
    }
    void read(const char* name, double& number) const
    {
        number = find_number<double>(name, xla::ElementType::float64).value_or(number);
    }
    template <class Integer>
    void read(const char* name, Integer& number) const
    {
        const auto value = find_number<std::int64_t>(name, xla::ElementType::int64);
        number = value ? static_cast<Integer>(*value) : number;
    }

    void name_buffers(const char* attribute, const xla::Buffers& buffers)
    {
        const auto* names = static_cast<const xla::ByteSpan*>(find(attribute, xla::AttributeType::string));
        std::string_view rest = names == nullptr ? std::string_view() : std::string_view(names->data, names->size);
        for (std::int64_t i = 0; i < buffers.size; ++i) {
            const auto* buffer = static_cast<const xla::Buffer*>(buffers.values[i]);
            if (rest.empty() || buffers.types[i] != xla::BufferType::buffer ||
                buffer->struct_size < sizeof(xla::Buffer)) {
                refuse(attribute);
            }
            const std::string_view name = rest.substr(0, rest.find(','));
            rest.remove_prefix(std::min(rest.size(), name.size() + 1));
            buffers_.emplace_back(name, buffer);
        }
    }

    /// Seed and offset as four numbers of 32 bits, the lower half of each first: JAX has no 64 bits by default.
    void read_seed(const xla::Buffer& buffer)
    {
        if (buffer.dtype != xla::ElementType::uint32 || buffer.rank != 1 || buffer.shape[0] != 4) {
            throw Error("seed is not uint32 [4], as flashomp.jax gives it.");
        }
        const auto* words = static_cast<const std::uint32_t*>(buffer.data);
        options.dropout.seed = words[0] | std::uint64_t{words[1]} << 32U;
        options.dropout.offset = words[2] | std::uint64_t{words[3]} << 32U;
    }

    const xla::Attributes& attributes_;
    std::vector<std::pair<std::string_view, const xla::Buffer*>> buffers_;
};

void run_forward(const XlaCall& call)
{
    forward({call["q"], call["k"], call["v"], call["o"], call.as_given("lse")}, call.options);
}

void run_backward(const XlaCall& call)
{
    backward({call["q"], call["k"], call["v"], call["o"], call.as_given("lse"), call["dout"], call["dq"], call["dk"],
              call["dv"], call.as_given("dbias"), call.as_given("dsink")},
             call.options);
}

xla::Error* error(const xla::CallFrame& frame, xla::ErrorCode code, const char* message)
{
    xla::ErrorCreateArgs args{sizeof(xla::ErrorCreateArgs), nullptr, message, code};
    return frame.api->create_error(&args);
}

xla::Error* answer(const xla::CallFrame& frame, xla::MetadataExtension& query)
{
    // XLA before 0.2 asks without its functions, so that no error can be made; all layouts are those of 0.1.
    const xla::Api* api = frame.api;
    if (query.base.struct_size < sizeof(xla::MetadataExtension) ||
        query.metadata->struct_size < offsetof(xla::Metadata, traits) + sizeof(query.metadata->traits)) {
        return api == nullptr ? nullptr
                              : error(frame, xla::ErrorCode::invalid_argument,
                                      "XLA's metadata query is older than flashomp knows it.");
    }
    std::int32_t minor = api == nullptr ? 1 : xla::api_minor;
    if (api != nullptr && api->version.major == xla::api_major) {
        minor = std::min(api->version.minor, xla::api_minor);
    }
    query.metadata->version = {sizeof(xla::ApiVersion), nullptr, xla::api_major, minor};
    query.metadata->traits = 0;
    return nullptr;
}

/// XLA calls a handler from its own threads, without the GIL; nothing of Python is touched here.
template <void (*run)(const XlaCall&)>
xla::Error* handle(xla::CallFrame* frame) noexcept
{
    if (frame->extensions != nullptr && frame->extensions->type == xla::ExtensionType::metadata) {
        return answer(*frame, *reinterpret_cast<xla::MetadataExtension*>(frame->extensions));
    }
    if (frame->struct_size < sizeof(xla::CallFrame) || frame->stage != xla::Stage::execute) {
        return error(*frame, xla::ErrorCode::invalid_argument,
                     "flashomp's handlers are for XLA's execute stage and its call frames since version 0.1.");
    }
    try {
        run(XlaCall(*frame));
        return nullptr;
    } catch (const Error& refused) {
        return error(*frame, xla::ErrorCode::invalid_argument, refused.what());
    } catch (const std::bad_alloc&) {
        return error(*frame, xla::ErrorCode::resource_exhausted, "flashomp: memory ran out.");
    } catch (const std::exception& failure) {
        return error(*frame, xla::ErrorCode::internal, failure.what());
    }
}

} // namespace

void bind_jax_calls(nb::module_& module)
{
    using namespace nb::literals;
    module.def("jax_attributes", &attributes_of, "tensors"_a, "options"_a,
               "The attributes of a call of flashomp.jax, which is checked by shapes and dtypes.");
    const auto capsule = [](xla::Handler* handler) { return nb::capsule(reinterpret_cast<void*>(handler)); };
    nb::dict handlers;
    handlers["flashomp_forward"] = capsule(&handle<run_forward>);
    handlers["flashomp_backward"] = capsule(&handle<run_backward>);
    module.attr("jax_handlers") = handlers;
}

} // namespace flashomp::python
