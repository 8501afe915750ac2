"""python/src/xla_ffi.hpp against jaxlib's own header: a compiler compares every size, offset and number."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import flashomp
import pytest

OURS = Path(__file__).parents[1] / "src" / "xla_ffi.hpp"

# Our struct, XLA's, and the members as ours: theirs. Structs that XLA extends are compared up to the last member.
STRUCTS = {
    ("Extension", "XLA_FFI_Extension_Base"): {"struct_size": "struct_size", "type": "type", "next": "next"},
    ("ApiVersion", "XLA_FFI_Api_Version"): {"struct_size": "struct_size", "extensions": "extension_start",
                                            "major": "major_version", "minor": "minor_version"},
    ("ErrorCreateArgs", "XLA_FFI_Error_Create_Args"): {"struct_size": "struct_size", "extensions": "extension_start",
                                                       "message": "message", "code": "errc"},
    ("Api", "XLA_FFI_Api"): {"struct_size": "struct_size", "extensions": "extension_start", "version": "api_version",
                             "internal": "internal_api", "create_error": "XLA_FFI_Error_Create"},
    ("Buffer", "XLA_FFI_Buffer"): {"struct_size": "struct_size", "extensions": "extension_start", "dtype": "dtype",
                                   "data": "data", "rank": "rank", "shape": "dims"},
    ("Buffers", "XLA_FFI_Args"): {"struct_size": "struct_size", "extensions": "extension_start", "size": "size",
                                  "types": "types", "values": "args"},
    ("Buffers", "XLA_FFI_Rets"): {"struct_size": "struct_size", "extensions": "extension_start", "size": "size",
                                  "types": "types", "values": "rets"},
    ("ByteSpan", "XLA_FFI_ByteSpan"): {"data": "ptr", "size": "len"},
    ("Scalar", "XLA_FFI_Scalar"): {"dtype": "dtype", "value": "value"},
    ("Attributes", "XLA_FFI_Attrs"): {"struct_size": "struct_size", "extensions": "extension_start", "size": "size",
                                      "types": "types", "names": "names", "values": "attrs"},
    ("CallFrame", "XLA_FFI_CallFrame"): {"struct_size": "struct_size", "extensions": "extension_start", "api": "api",
                                         "context": "ctx", "stage": "stage", "operands": "args", "results": "rets",
                                         "attributes": "attrs"},
    ("Metadata", "XLA_FFI_Metadata"): {"struct_size": "struct_size", "version": "api_version", "traits": "traits"},
    ("MetadataExtension", "XLA_FFI_Metadata_Extension"): {"base": "extension_base", "metadata": "metadata"},
}
EXTENDED = {"Api", "CallFrame", "Metadata"}
ENUMS = {
    "ExtensionType": ("XLA_FFI_Extension_Type", {"metadata": "XLA_FFI_Extension_Metadata"}),
    "Stage": ("XLA_FFI_ExecutionStage", {name: f"XLA_FFI_ExecutionStage_{name.upper()}"
                                         for name in ("instantiate", "prepare", "initialize", "execute")}),
    "ErrorCode": ("XLA_FFI_Error_Code", {name: f"XLA_FFI_Error_Code_{name.upper()}"
                                         for name in ("invalid_argument", "resource_exhausted", "internal")}),
    "AttributeType": ("XLA_FFI_AttrType", {name: f"XLA_FFI_AttrType_{name.upper()}"
                                           for name in ("array", "dictionary", "scalar", "string")}),
    "BufferType": ("XLA_FFI_ArgType", {"buffer": "XLA_FFI_ArgType_BUFFER"}),
    "ElementType": ("XLA_FFI_DataType", {ours: f"XLA_FFI_DataType_{theirs}" for ours, theirs in (
        ("boolean", "PRED"), ("int32", "S32"), ("int64", "S64"), ("uint32", "U32"), ("float16", "F16"),
        ("float32", "F32"), ("float64", "F64"), ("bfloat16", "BF16"))}),
}


def checks():
    lines = []
    for (ours, theirs), members in STRUCTS.items():
        for a, b in members.items():
            lines += [f"offsetof(xla::{ours}, {a}) == offsetof({theirs}, {b})",
                      f"sizeof(xla::{ours}::{a}) == sizeof({theirs}::{b})"]
        lines.append(f"sizeof(xla::{ours}) {'<=' if ours in EXTENDED else '=='} sizeof({theirs})")
    for ours, (theirs, names) in ENUMS.items():
        lines.append(f"sizeof(xla::{ours}) == sizeof({theirs})")
        lines += [f"static_cast<int>(xla::{ours}::{a}) == {b}" for a, b in names.items()]
    lines += ["int(XLA_FFI_RetType_BUFFER) == int(XLA_FFI_ArgType_BUFFER)", "sizeof(xla::CallFrame) == XLA_FFI_CallFrame_STRUCT_SIZE",
              "xla::api_major == XLA_FFI_API_MAJOR"]
    return lines


def compile_checks(lines, include, folder):
    source = folder / "abi.cpp"
    source.write_text(f'#include <xla/ffi/api/c_api.h>\n#include "{OURS}"\nnamespace xla = flashomp::python::xla;\n'
                      + "".join(f"static_assert({line});\n" for line in lines))
    return subprocess.run(["c++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", "-I", str(include), str(source)], capture_output=True,
                          text=True)


@pytest.fixture
def include():
    jax = pytest.importorskip("jax")
    if shutil.which("c++") is None:
        pytest.skip("c++ is not here")
    return jax.ffi.include_dir()


def test_layouts_are_those_of_jaxlib(include, tmp_path):
    run = compile_checks(checks(), include, tmp_path)
    assert run.returncode == 0, run.stderr
    for wrong in ("sizeof(xla::Buffer) == 1", "offsetof(xla::CallFrame, stage) == offsetof(XLA_FFI_CallFrame, args)"):
        assert compile_checks([wrong], include, tmp_path).returncode != 0


def test_every_member_and_number_is_checked():
    """What is added to the header is added here, too."""
    text = re.sub(r"//.*", "", OURS.read_text())
    structs = {name: re.findall(r"(\w+)(?:\)\(.*\))?;", body)
               for name, body in re.findall(r"struct (\w+) \{\n(.*?)\n\};", text, re.DOTALL)}
    assert set(structs) == {ours for ours, _ in STRUCTS}
    for (ours, _), members in STRUCTS.items():
        assert structs[ours] == list(members)
    for name, body in re.findall(r"enum class (\w+) : std::uint32_t \{(.*?)\}", text, re.DOTALL):
        assert set(re.findall(r"\b([a-z]\w*)", re.sub(r"=\s*\d+", "", body))) == set(ENUMS[name][1])


# The handlers, called as XLA calls them.

MEMBERS = [("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p)]


def struct(*members):
    return type("Struct", (ctypes.Structure,), {"_fields_": MEMBERS + list(members)})


Version = struct(("major", ctypes.c_int32), ("minor", ctypes.c_int32))
ErrorArgs = struct(("message", ctypes.c_char_p), ("code", ctypes.c_uint32))
CREATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(ErrorArgs))
Api = struct(("version", Version), ("internal", ctypes.c_void_p), ("create_error", CREATE))
List = struct(("size", ctypes.c_int64), ("types", ctypes.c_void_p), ("values", ctypes.c_void_p))
Attributes = struct(("size", ctypes.c_int64), ("types", ctypes.c_void_p), ("names", ctypes.c_void_p), ("values", ctypes.c_void_p))
CallFrame = struct(("api", ctypes.POINTER(Api)), ("context", ctypes.c_void_p), ("stage", ctypes.c_uint32), ("operands", List),
                   ("results", List), ("attributes", Attributes))


class Metadata(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]


class Query(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("type", ctypes.c_uint32), ("next", ctypes.c_void_p),
                ("metadata", ctypes.POINTER(Metadata))]


def call(name, version=(0, 3), query=None, stage=3, missing=0):
    """What a handler returns for a frame without operands: an error's (code, sentence), or None. version: XLA's, or
    None for a frame without XLA's functions."""
    errors = []
    create = CREATE(lambda args: errors.append((args[0].code, args[0].message.decode())) or 4711)
    frame = CallFrame(struct_size=ctypes.sizeof(CallFrame) - missing, stage=stage)
    if version is not None:
        api = Api(ctypes.sizeof(Api), None, Version(ctypes.sizeof(Version), None, *version), None, create)
        frame.api = ctypes.pointer(api)
    if query is not None:
        frame.extensions = ctypes.addressof(query)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(CallFrame))(pointer(flashomp._core.jax_handlers[name], None))
    result = handler(ctypes.byref(frame))
    assert (result == 4711) == bool(errors)
    return errors[0] if errors else None


def query_of(size=ctypes.sizeof(Query)):
    metadata = Metadata(struct_size=Metadata.traits.offset + 4, traits=99)
    return Query(size, 1, None, ctypes.pointer(metadata)), metadata


HANDLERS = ["flashomp_forward", "flashomp_backward"]


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("theirs, answer", [(None, (0, 1)), ((0, 1), (0, 1)), ((0, 3), (0, 3)),
                                             ((0, 9), (0, 3)), ((1, 0), (0, 3))])
def test_metadata_names_a_version_that_both_sides_know(name, theirs, answer):
    query, metadata = query_of()
    assert call(name, version=theirs, query=query, stage=0) is None
    assert (metadata.version.major, metadata.version.minor, metadata.traits) == (*answer, 0)
    query, metadata = query_of(size=16)
    error = call(name, version=theirs, query=query)
    assert metadata.traits == 99 and (error is None if theirs is None else error[0] == 3)


@pytest.mark.parametrize("name", HANDLERS)
def test_only_the_execute_stage_of_a_whole_frame_runs(name):
    for stage, missing in ((0, 0), (1, 0), (2, 0), (3, 8)):
        code, sentence = call(name, stage=stage, missing=missing)
        assert code == 3 and "execute stage" in sentence
    assert call(name) == (3, "q was not given; it must be a tensor [batch, seqlen, heads, head_dim].")
