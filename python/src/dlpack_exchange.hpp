// DLPack's table of C functions for the exchange of tensors (DLPack 1.3, dlpack.h: DLPackExchangeAPI). A framework
// keeps one in a capsule of its tensor type; PyTorch does. Reading a tensor through the table costs 0.1 µs,
// __dlpack__() several.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

namespace flashomp::python {

namespace nb = nanobind;

/// DLPack's device types that flashomp knows.
constexpr std::int32_t dl_cpu = 1;
constexpr std::int32_t dl_cuda = 2;
constexpr std::int32_t dl_cuda_host = 3; ///< page-locked memory, which the CPU reads
constexpr std::int32_t dl_cuda_managed = 13;

struct ManagedTensorVersioned; // opaque: it goes from one function of the table to another

struct ExchangeVersion {
    std::uint32_t major;
    std::uint32_t minor;
};

struct ExchangeTable {
    ExchangeVersion version;
    ExchangeTable* older;
    int (*allocate)(nb::dlpack::dltensor* prototype, ManagedTensorVersioned** out, void* error_context,
                    void (*set_error)(void* error_context, const char* kind, const char* message));
    int (*from_object)(void* object, ManagedTensorVersioned** out);
    int (*to_object)(ManagedTensorVersioned* tensor, void** object);
    int (*borrow)(void* object, nb::dlpack::dltensor* out); ///< may be null
    int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

/// The table of an object's type, or null where the type has none that is understood here.
[[nodiscard]] const ExchangeTable* exchange_table(nb::handle object);

} // namespace flashomp::python
