#include "call_options.hpp"

#include "block_mask.hpp"

#include <flashomp/device.hpp>
#include <flashomp/error.hpp>
#include <flashomp/version.hpp>

#include <nanobind/stl/string.h>

#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace flashomp::python {

namespace {

[[noreturn]] void refuse(std::string_view name, nb::handle value, const std::string& allowed)
{
    throw Error(std::string(name) + " was " + described(value) + "; " + allowed + ".");
}

double read_number(const char* name, nb::handle value)
{
    if (!PyBool_Check(value.ptr())) {
        const double number = PyFloat_AsDouble(value.ptr());
        if (number != -1.0 || PyErr_Occurred() == nullptr) {
            return number;
        }
        PyErr_Clear();
    }
    refuse(name, value, "it must be a number");
}

/// Integers of Python and of NumPy, but no booleans.
template <class Integer>
Integer read_integer(const char* name, nb::handle value, const std::string& allowed)
{
    Integer number{};
    if (!PyBool_Check(value.ptr()) && PyIndex_Check(value.ptr()) != 0) {
        const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
        if (index.is_valid() && nb::try_cast(index, number, false)) {
            return number;
        }
        PyErr_Clear();
    }
    refuse(name, value, allowed);
}

template <class Value>
Value read_name(const char* name, nb::handle value, std::initializer_list<std::pair<const char*, Value>> names)
{
    std::string allowed = "allowed are ";
    for (const auto& [text, meaning] : names) {
        if (PyUnicode_Check(value.ptr()) && PyUnicode_CompareWithASCIIString(value.ptr(), text) == 0) {
            return meaning;
        }
        allowed += std::string("'") + text + "', ";
    }
    allowed.resize(allowed.size() - 2);
    refuse(name, value, allowed);
}

std::string name_of_key(nb::handle key)
{
    return nb::isinstance<nb::str>(key) ? nb::cast<std::string>(key) : described(key);
}

/// How many a sequence has; of all else, texts included, -1.
Py_ssize_t length_of(nb::handle value)
{
    const bool is_sequence = PySequence_Check(value.ptr()) != 0 && !PyUnicode_Check(value.ptr());
    const Py_ssize_t length = is_sequence ? PySequence_Size(value.ptr()) : -1;
    PyErr_Clear();
    return length;
}

Window read_window(nb::handle value)
{
    const std::string allowed = "it must be two integers (left, right), -1 for a side without a bound";
    if (length_of(value) != 2) {
        refuse("window", value, allowed);
    }
    const nb::object left = value[0];
    const nb::object right = value[1];
    return {read_integer<std::int64_t>("window", left, allowed), read_integer<std::int64_t>("window", right, allowed)};
}

Positions read_positions(const char* name, nb::handle value)
{
    const std::string allowed = "it must be (whole, [(first, count)]) or (whole, [(first, count), (first, count)])";
    if (length_of(value) != 2) {
        refuse(name, value, allowed);
    }
    const nb::object whole = value[0];
    const nb::object stretches = value[1];
    const Py_ssize_t count = length_of(stretches);
    if (count != 1 && count != 2) {
        refuse(name, value, allowed);
    }
    Positions positions;
    positions.whole = read_integer<std::int64_t>(name, whole, allowed);
    for (Py_ssize_t i = 0; i < count; ++i) {
        const nb::object stretch = stretches[i];
        if (length_of(stretch) != 2) {
            refuse(name, value, allowed);
        }
        const nb::object first = stretch[0];
        const nb::object rows = stretch[1];
        positions.stretches.at(static_cast<std::size_t>(i)) = {read_integer<std::int64_t>(name, first, allowed),
                                                               read_integer<std::int64_t>(name, rows, allowed)};
    }
    return positions;
}

Device read_device(nb::handle value)
{
    if (PyUnicode_Check(value.ptr())) {
        using Kind = Device::Kind;
        const Kind kind = read_name<Kind>("device", value, {{"auto", Kind::automatic}, {"host", Kind::host}});
        return {kind, 0};
    }
    return {Device::Kind::gpu,
            read_integer<int>("device", value, "allowed are 'auto', 'host' and the number of a GPU")};
}

Tiling read_tiling(nb::handle value)
{
    if (!nb::isinstance<nb::dict>(value)) {
        refuse("tiling", value, "it must be a dictionary");
    }
    Tiling tiling;
    for (const auto& [key, entry] : nb::borrow<nb::dict>(value)) {
        const std::string name = name_of_key(key);
        int* const member = name == "resident_rows"  ? &tiling.resident_rows
                            : name == "stream_rows"  ? &tiling.stream_rows
                            : name == "teams"        ? &tiling.teams
                            : name == "team_threads" ? &tiling.team_threads
                                                     : nullptr;
        if (member != nullptr) {
            *member = read_integer<int>("tiling", entry, "its numbers must be integers");
        } else if (name == "global_memory" && PyBool_Check(entry.ptr())) {
            tiling.global_memory = entry.ptr() == Py_True;
        } else {
            refuse(
                "tiling", value,
                "its keys are resident_rows, stream_rows, teams and team_threads, integers, and global_memory, a bool");
        }
    }
    return tiling;
}

using Reader = void (*)(CallOptions&, nb::handle);
struct Keyword {
    const char* name;
    Reader read;
    ConstTensorView Options::*tensor = nullptr;
};

const char* const uint64_allowed = "it must be an integer from 0 to 2^64 - 1";

const Keyword keywords_of_options[] = {
    {"scale", [](CallOptions& c, nb::handle v) { c.options.scale = read_number("scale", v); }},
    {"causal",
     [](CallOptions& c, nb::handle v) {
         c.options.causal = read_name<Causal>(
             "causal", v,
             {{"none", Causal::none}, {"top_left", Causal::top_left}, {"bottom_right", Causal::bottom_right}});
     }},
    {"window", [](CallOptions& c, nb::handle v) { c.options.window = read_window(v); }},
    {"softcap", [](CallOptions& c, nb::handle v) { c.options.softcap = read_number("softcap", v); }},
    {"alibi_slopes", nullptr, &Options::alibi_slopes},
    {"bias", nullptr, &Options::bias},
    {"key_padding_mask", nullptr, &Options::key_padding_mask},
    {"mask", nullptr, &Options::mask},
    {"block_mask", [](CallOptions& c, nb::handle v) { c.options.block_mask = read_block_mask(v); }},
    {"positions_q", [](CallOptions& c, nb::handle v) { c.options.positions_q = read_positions("positions_q", v); }},
    {"positions_k", [](CallOptions& c, nb::handle v) { c.options.positions_k = read_positions("positions_k", v); }},
    {"first_sequence",
     [](CallOptions& c, nb::handle v) {
         c.options.first_sequence = read_integer<std::int64_t>("first_sequence", v, "it must be an integer");
     }},
    {"first_head",
     [](CallOptions& c, nb::handle v) {
         c.options.first_head = read_integer<std::int64_t>("first_head", v, "it must be an integer");
     }},
    {"cu_seqlens_q", nullptr, &Options::cu_seqlens_q},
    {"cu_seqlens_k", nullptr, &Options::cu_seqlens_k},
    {"sink", nullptr, &Options::sink},
    {"q_scale", nullptr, &Options::q_scale},
    {"k_scale", nullptr, &Options::k_scale},
    {"v_scale", nullptr, &Options::v_scale},
    {"cache_seqlens", nullptr, &Options::cache_seqlens},
    {"cache_batch_index", nullptr, &Options::cache_batch_index},
    {"block_table", nullptr, &Options::block_table},
    {"kv_indptr", nullptr, &Options::kv_indptr},
    {"kv_indices", nullptr, &Options::kv_indices},
    {"kv_last_page_len", nullptr, &Options::kv_last_page_len},
    {"dropout", [](CallOptions& c, nb::handle v) { c.options.dropout.probability = read_number("dropout", v); }},
    {"seed", [](CallOptions& c,
                nb::handle v) { c.options.dropout.seed = read_integer<std::uint64_t>("seed", v, uint64_allowed); }},
    {"offset",
     [](CallOptions& c, nb::handle v) {
         c.options.dropout.offset = read_integer<std::uint64_t>("offset", v, uint64_allowed);
     }},
    {"layout",
     [](CallOptions& c, nb::handle v) {
         c.layout = read_name<Layout>("layout", v, {{"bshd", Layout::bshd}, {"bhsd", Layout::bhsd}});
     }},
    {"backend", [](CallOptions& c, nb::handle v) { c.options.backend = read_backend(v); }},
    {"machine",
     [](CallOptions& c, nb::handle v) {
         c.options.machine = read_name<Machine>("machine", v,
                                                {{"auto", Machine::automatic},
                                                 {"host", Machine::host},
                                                 {"plain", Machine::plain},
                                                 {"tensor", Machine::tensor},
                                                 {"hopper", Machine::hopper}});
     }},
    {"device", [](CallOptions& c, nb::handle v) { c.options.device = read_device(v); }},
    {"threads", [](CallOptions& c,
                   nb::handle v) { c.options.threads = read_integer<int>("threads", v, "it must be an integer"); }},
    {"stream",
     [](CallOptions& c, nb::handle v) {
         c.options.stream = reinterpret_cast<void*>(
             read_integer<std::uintptr_t>("stream", v, "it must be the address of a CUDA stream, as an integer"));
     }},
    {"tiling", [](CallOptions& c, nb::handle v) { c.options.tiling = read_tiling(v); }},
};

const Keyword& keyword_of(nb::handle key)
{
    // Python interns the names of keywords, so that nearly every name is found by its address.
    static const std::vector<PyObject*> interned = [] {
        std::vector<PyObject*> names;
        for (const Keyword& keyword : keywords_of_options) {
            names.push_back(PyUnicode_InternFromString(keyword.name));
        }
        return names;
    }();
    for (std::size_t i = 0; i < interned.size(); ++i) {
        if (key.ptr() == interned[i]) {
            return keywords_of_options[i];
        }
    }
    std::string allowed;
    for (std::size_t i = 0; i < interned.size(); ++i) {
        if (PyUnicode_Check(key.ptr()) && PyUnicode_Compare(key.ptr(), interned[i]) == 0) {
            return keywords_of_options[i];
        }
        allowed += std::string(i == 0 ? "" : ", ") + keywords_of_options[i].name;
    }
    throw nb::type_error(("there is no option " + described(key) + "; the options are " + allowed + ".").c_str());
}

/// cuda where it is built and not left out by name, else openmp where OpenMP works in the context that has the memory.
Backend backend_for_cuda_memory(const TensorArgument& tensor, Backend named, bool has_cuda)
{
    const std::string what = std::string(tensor.name()) + " is in CUDA memory, ";
    if (named == Backend::reference) {
        throw Error(what + "which the backend reference cannot read; allowed are backend 'auto', 'cuda' and 'openmp'.");
    }
    if (named == Backend::cuda || (named == Backend::automatic && has_cuda)) {
        return Backend::cuda;
    }
    const std::vector<DeviceInfo> found = devices(Backend::openmp);
    const auto index = static_cast<std::size_t>(tensor.device().device_id);
    if (index >= found.size()) {
        throw Error(what +
                    "but OpenMP finds no such GPU for this build of flashomp. Allowed are a build with GPU code, "
                    "imported before PyTorch, whose OpenMP run time knows no GPUs, and the CUDA backend "
                    "(FLASHOMP_BACKEND=cuda).");
    }
    if (!found[index].shares_cuda_memory) {
        throw Error(what +
                    "but OpenMP works on the GPU in a CUDA context of its own, since the process used OpenMP there "
                    "before flashomp; allowed is backend 'cuda'.");
    }
    return Backend::openmp;
}

bool is_read_on_the_host(const TensorArgument& tensor)
{
    constexpr std::string_view read[] = {"cu_seqlens_q", "cu_seqlens_k", "cache_seqlens", "cache_batch_index",
                                         "block_table",  "kv_indptr",    "kv_indices",    "kv_last_page_len"};
    return std::find(std::begin(read), std::end(read), tensor.name()) != std::end(read);
}

std::string place_of(const TensorArgument& tensor)
{
    return tensor.is_cuda() ? "CUDA device " + std::to_string(tensor.device().device_id) : "the CPU";
}

} // namespace

Backend read_backend(nb::handle value)
{
    return read_name<Backend>("backend", value,
                              {{"auto", Backend::automatic},
                               {"openmp", Backend::openmp},
                               {"reference", Backend::reference},
                               {"cuda", Backend::cuda}});
}

DType read_dtype(nb::handle value)
{
    return read_name<DType>("dtype", value,
                            {{"float32", DType::float32},
                             {"bfloat16", DType::bfloat16},
                             {"float16", DType::float16},
                             {"float8_e4m3", DType::float8_e4m3}});
}

ConstTensorView Options::*tensor_option(std::string_view name)
{
    for (const Keyword& keyword : keywords_of_options) {
        if (keyword.name == name) {
            return keyword.tensor;
        }
    }
    return nullptr;
}

CallOptions::CallOptions(const nb::dict& keywords, Use use)
    : has_cuda_backend(std::string_view(build_info().backends).find("cuda") != std::string_view::npos)
{
    for (const auto& [key, value] : keywords) {
        const Keyword& keyword = keyword_of(key);
        if (value.is_none()) {
            continue;
        }
        if (keyword.tensor == nullptr) {
            keyword.read(*this, value);
            continue;
        }
        tensors.emplace_back(keyword.name, value, use);
        options.*keyword.tensor = tensors.back().view();
    }
}

void place(CallOptions& call, std::span<const TensorArgument* const> tensors)
{
    const TensorArgument& first = *tensors.front();
    const auto expect_same_place = [&](const TensorArgument& tensor) {
        if (tensor && (tensor.is_cuda() != first.is_cuda() ||
                       (first.is_cuda() && tensor.device().device_id != first.device().device_id))) {
            throw Error(std::string(tensor.name()) + " is on " + place_of(tensor) + " but " + first.name() + " is on " +
                        place_of(first) + "; they must be on one device.");
        }
    };
    for (const TensorArgument* tensor : tensors) {
        expect_same_place(*tensor);
    }
    for (const TensorArgument& tensor : call.tensors) {
        if (!is_read_on_the_host(tensor)) {
            expect_same_place(tensor);
        } else if (tensor.is_cuda()) {
            throw Error(std::string(tensor.name()) + " is on " + place_of(tensor) +
                        "; it must be on the CPU, which reads it.");
        }
    }
    if (!first.is_cuda()) {
        return;
    }
    Options& options = call.options;
    options.backend = backend_for_cuda_memory(first, options.backend, call.has_cuda_backend);
    const int index = first.device().device_id;
    if (options.device.kind == Device::Kind::automatic) {
        options.device = {Device::Kind::gpu, index};
    } else if (options.device.kind != Device::Kind::gpu || options.device.index != index) {
        throw Error("device names another place than that of the tensors, which are on " + place_of(first) +
                    "; it must be 'auto' or " + std::to_string(index) + ".");
    }
    if (!options.stream && first.table() != nullptr) {
        void* stream = nullptr;
        if (first.table()->current_stream(dl_cuda, index, &stream) != 0) {
            throw nb::python_error();
        }
        options.stream = stream;
    }
}

} // namespace flashomp::python
