"""python/src/xla_ffi.hpp against jaxlib's own header: a compiler compares every size, offset and number."""

import re
import shutil
import subprocess
from pathlib import Path

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
