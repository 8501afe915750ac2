"""Tensors on wrong devices, refused before anything is read."""

import flashomp
import numpy as np
import pytest
from cuda_stand_in import StandIn

HAS_GPU = bool(flashomp.devices("openmp"))
HAS_CUDA = "cuda" in flashomp.info()["build"]["backends"]


def on_cpu():
    return np.zeros((1, 4, 2, 8), np.float32)


def on_cuda(device=0):
    return StandIn(1, 4, 2, 8, device=(2, device))


@pytest.mark.skipif(HAS_GPU, reason="OpenMP finds a GPU here")
def test_cuda_memory_needs_a_gpu_of_openmp_or_the_cuda_backend():
    for backend in ("openmp",) if HAS_CUDA else ("openmp", "auto"):
        with pytest.raises(flashomp.Error, match="q is in CUDA memory, but OpenMP finds no such GPU"):
            flashomp.attention(on_cuda(), on_cuda(), on_cuda(), backend=backend)


def test_the_reference_cannot_read_cuda_memory():
    with pytest.raises(flashomp.Error, match="q is in CUDA memory, which the backend reference cannot read"):
        flashomp.attention(on_cuda(), on_cuda(), on_cuda(), backend="reference")


def test_all_tensors_are_on_one_device():
    with pytest.raises(flashomp.Error, match="k is on the CPU but q is on CUDA device 0; they must be on one device"):
        flashomp.attention(on_cuda(), on_cpu(), on_cuda())
    with pytest.raises(flashomp.Error, match="v is on CUDA device 1 but q is on the CPU"):
        flashomp.attention(on_cpu(), on_cpu(), on_cuda(1))
    with pytest.raises(flashomp.Error, match="out is on CUDA device 0 but q is on the CPU"):
        flashomp.attention(on_cpu(), on_cpu(), on_cpu(), out=on_cuda())
    with pytest.raises(flashomp.Error, match="bias is on CUDA device 0 but q is on the CPU"):
        flashomp.attention(on_cpu(), on_cpu(), on_cpu(), bias=on_cuda())
    with pytest.raises(flashomp.Error, match="cu_seqlens_q is on CUDA device 0; it must be on the CPU"):
        flashomp.attention(on_cpu(), on_cpu(), on_cpu(), cu_seqlens_q=StandIn(2))
    with pytest.raises(flashomp.Error, match="out is in device memory; it must be on the CPU"):
        flashomp.dropout_mask(dropout=0.5, out=on_cuda())


def test_other_devices():
    for device_type in (8, 10, 14):  # Metal, ROCm, oneAPI
        with pytest.raises(flashomp.Error, match=f"q is on a device of DLPack's type {device_type}"):
            flashomp.attention(StandIn(1, 4, 2, 8, device=(device_type, 0)), on_cpu(), on_cpu())


def test_a_stream_needs_a_gpu():
    with pytest.raises(flashomp.Error, match="stream was given, but the call runs on the host"):
        flashomp.attention(on_cpu(), on_cpu(), on_cpu(), stream=0, device="host")
    with pytest.raises(flashomp.Error, match="stream was 'x'"):
        flashomp.attention(on_cpu(), on_cpu(), on_cpu(), stream="x")
