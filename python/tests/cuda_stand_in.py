"""Tensors that say through DLPack that they are in CUDA memory: what must be refused on a machine without a GPU, and in which
stream's order memory is made."""

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
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]  # the name must outlive the capsule


_dltensor = ctypes.create_string_buffer(b"dltensor")


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
        return _new_capsule(ctypes.addressof(self._managed), ctypes.addressof(_dltensor), None)


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Tensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
                             ctypes.c_void_p)
_FROM_OBJECT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_TO_OBJECT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
_BORROW = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Tensor))
_CURRENT_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class _Table(ctypes.Structure):
    _fields_ = [("version", _Version), ("older", ctypes.c_void_p), ("allocate", _ALLOCATE), ("from_object", _FROM_OBJECT),
                ("to_object", _TO_OBJECT), ("borrow", _BORROW), ("current_stream", _CURRENT_STREAM)]


class Framework:
    """A framework with DLPack's table of functions, as PyTorch is one: tensors in CUDA memory, an allocator, and streams,
    of which one is current. It writes down for which stream it makes a tensor, and of what shape."""

    def __init__(self):
        self.current = 0
        self.made = []  # (stream, shape)
        self.entered = 0  # how often somebody made another stream current
        self.fails = False
        self._waiting = {}  # tensors that are made, until they are an object
        self._address = 1 << 20
        framework = self

        def allocate(prototype, out, context, set_error):
            if framework.fails:
                return -1
            shape = tuple(prototype.contents.shape[axis] for axis in range(prototype.contents.ndim))
            framework.made.append((framework.current, shape))
            tensor = framework.tensor(*shape)
            framework._waiting[id(tensor)] = tensor
            out[0] = id(tensor)
            return 0

        def to_object(tensor, out):
            made = framework._waiting.pop(tensor)
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            out[0] = id(made)
            return 0

        def borrow(address, out):
            tensor = ctypes.cast(address, ctypes.py_object).value
            ctypes.memmove(out, ctypes.byref(tensor.view), ctypes.sizeof(_Tensor))
            return 0

        def current_stream(device_type, device, out):
            out[0] = framework.current
            return 0

        self._table = _Table(_Version(1, 3), None, _ALLOCATE(allocate), _FROM_OBJECT(lambda *_: -1), _TO_OBJECT(to_object),
                             _BORROW(borrow), _CURRENT_STREAM(current_stream))
        self._name = ctypes.create_string_buffer(b"dlpack_exchange_api")
        capsule = _new_capsule(ctypes.addressof(self._table), ctypes.addressof(self._name), None)
        self.type = type("Tensor", (), {"__dlpack_c_exchange_api__": capsule, "dtype": "float32"})

    def tensor(self, *shape):
        tensor = self.type()
        tensor.shape = (ctypes.c_int64 * len(shape))(*shape)
        self._address += 1 << 16
        tensor.view = _Tensor(self._address, _Device(CUDA, 0), len(shape), _DType(2, 32, 1), tensor.shape, None, 0)
        return tensor

    def ExternalStream(self, handle, device):
        assert device == 0
        return handle

    def stream(self, handle):
        """torch.cuda.stream() of a stream."""
        framework = self

        class Context:
            def __enter__(self):
                self.before, framework.current = framework.current, handle
                framework.entered += 1

            def __exit__(self, *_):
                framework.current = self.before

        return Context()
