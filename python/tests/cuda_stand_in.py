"""A tensor that says through DLPack that it is in CUDA memory: what must be refused on a machine without a GPU."""

import ctypes

CPU, CUDA = 1, 2


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class StandIn:
    """float32 of a shape, at an address that nobody may read."""

    dtype = "float32"

    def __init__(self, *shape, device=(CUDA, 0)):
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._device = device
        tensor = _Tensor(4096, _Device(*device), len(shape), _DType(2, 32, 1), self._shape, None, 0)
        self._managed = _Managed(tensor, None, None)

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **_):
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)
