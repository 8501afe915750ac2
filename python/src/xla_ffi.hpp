// The part of XLA's foreign function interface that flashomp's handlers need, as its C ABI lays it out: jaxlib's
// xla/ffi/api/c_api.h, from which a test checks every size, offset and number (python/tests/test_jax_abi.py). It is
// stated here so that a package is built without jaxlib. XLA lets members be added behind those that there are, and
// says in struct_size what it knows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashomp::python::xla {

/// The version whose layouts these are. They are those of 0.1 (jaxlib 0.4.35 to 0.8) and 0.2 (0.9), too, and XLA
/// refuses a handler that names a version newer than its own.
constexpr std::int32_t api_major = 0;
constexpr std::int32_t api_minor = 3;

enum class ExtensionType : std::uint32_t { metadata = 1 };
enum class Stage : std::uint32_t { instantiate, prepare, initialize, execute };
enum class ErrorCode : std::uint32_t { invalid_argument = 3, resource_exhausted = 8, internal = 13 };
enum class AttributeType : std::uint32_t { array = 1, dictionary, scalar, string };
enum class BufferType : std::uint32_t { buffer = 1 };
enum class ElementType : std::uint32_t {
    boolean = 1,
    int32 = 4,
    int64 = 5,
    uint32 = 8,
    float16 = 10,
    float32 = 11,
    float64 = 12,
    bfloat16 = 16,
};

struct Error; // made and destroyed by XLA

struct Extension {
    std::size_t struct_size;
    ExtensionType type;
    Extension* next;
};

struct ApiVersion {
    std::size_t struct_size;
    Extension* extensions;
    std::int32_t major;
    std::int32_t minor;
};

struct ErrorCreateArgs {
    std::size_t struct_size;
    Extension* extensions;
    const char* message;
    ErrorCode code;
};

/// XLA's functions, as far as they are used here.
struct Api {
    std::size_t struct_size;
    Extension* extensions;
    ApiVersion version;
    const void* internal;
    Error* (*create_error)(ErrorCreateArgs* args);
};

/// A dense tensor, row-major.
struct Buffer {
    std::size_t struct_size;
    Extension* extensions;
    ElementType dtype;
    void* data;
    std::int64_t rank;
    std::int64_t* shape;
};

/// Operands or results.
struct Buffers {
    std::size_t struct_size;
    Extension* extensions;
    std::int64_t size;
    BufferType* types;
    void** values; ///< Buffer*
};

struct ByteSpan {
    const char* data;
    std::size_t size;
};

struct Scalar {
    ElementType dtype;
    void* value;
};

struct Attributes {
    std::size_t struct_size;
    Extension* extensions;
    std::int64_t size;
    AttributeType* types;
    ByteSpan** names;
    void** values; ///< Scalar* or ByteSpan*, as the type says
};

/// One call of a handler. XLA has a member more, for results that come later.
struct CallFrame {
    std::size_t struct_size;
    Extension* extensions;
    const Api* api;
    void* context;
    Stage stage;
    Buffers operands;
    Buffers results;
    Attributes attributes;
};

using Handler = Error*(CallFrame*);

/// What XLA asks a handler before it calls it. From 0.2 on a member more, which XLA has set for handlers without state.
struct Metadata {
    std::size_t struct_size;
    ApiVersion version;
    std::uint32_t traits;
};

struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

} // namespace flashomp::python::xla
