"""Memory of calls on CUDA streams: whose order it is in. The first part needs no GPU; the second runs where there is one."""

import threading

import flashomp
import pytest
from cuda_stand_in import Framework
from flashomp._core import for_tests

torch = pytest.importorskip("torch")

CURRENT, OTHER = 1 << 12, 1 << 13  # handles of streams


@pytest.fixture
def framework(monkeypatch):
    framework = Framework()
    framework.current = CURRENT
    monkeypatch.setattr(torch.cuda, "ExternalStream", framework.ExternalStream)
    monkeypatch.setattr(torch.cuda, "stream", framework.stream)
    return framework


def forward(framework, return_lse, **options):
    q, k = framework.tensor(2, 5, 4, 8), framework.tensor(2, 7, 4, 8)
    for_tests.make_forward_tensors(q, k, k, return_lse, options)


@pytest.mark.parametrize("return_lse", [False, True])
def test_results_and_scratch_are_in_the_order_of_the_call_s_stream(framework, return_lse):
    forward(framework, return_lse, stream=OTHER)
    assert framework.made == [(OTHER, (2, 5, 4, 8)), (OTHER, (2, 4, 5))]
    assert framework.current == CURRENT and framework.entered == 1


@pytest.mark.parametrize("stream", [None, CURRENT])
def test_the_current_stream_is_left_alone(framework, stream):
    forward(framework, False, stream=stream)
    assert [made for made, _ in framework.made] == [CURRENT, CURRENT]
    assert framework.entered == 0


def test_the_legacy_stream_has_two_handles(framework):
    framework.current = 0
    forward(framework, False, stream=1)
    assert framework.entered == 0
    framework.current = CURRENT
    forward(framework, False, stream=1)
    assert [made for made, _ in framework.made[2:]] == [0, 0]


def test_gradients_are_in_the_order_of_the_call_s_stream(framework):
    q, k, lse = framework.tensor(2, 5, 4, 8), framework.tensor(2, 7, 4, 8), framework.tensor(2, 4, 5)
    for_tests.make_backward_tensors((q, k, k, q, lse, q), (None, None, None, False, False), {"stream": OTHER})
    assert framework.made == [(OTHER, (2, 5, 4, 8)), (OTHER, (2, 7, 4, 8)), (OTHER, (2, 7, 4, 8))]
    assert framework.current == CURRENT


def test_the_current_stream_comes_back_where_there_is_no_memory(framework):
    framework.fails = True
    with pytest.raises(flashomp.RunFailure):
        forward(framework, False, stream=OTHER)
    assert framework.entered == 1 and framework.current == CURRENT


def test_a_prepared_call_has_a_workspace_for_each_stream(framework):
    like = framework.tensor(2, 5, 4, 8)
    workspaces = for_tests.DeviceWorkspaces(1000)
    first, second = workspaces.address(like, CURRENT), workspaces.address(like, OTHER)
    assert abs(first - second) >= 1000 and first % 256 == 0 and second % 256 == 0
    assert [stream for stream, _ in framework.made] == [CURRENT, OTHER]
    assert (first, second) == (workspaces.address(like, CURRENT), workspaces.address(like, OTHER))
    assert len(framework.made) == 2 and framework.current == CURRENT


def test_each_thread_has_a_stream_under_the_handle_of_cudastreamperthread(framework):
    like = framework.tensor(2, 5, 4, 8)
    workspaces = for_tests.DeviceWorkspaces(1000)
    addresses = [workspaces.address(like, 2)]
    thread = threading.Thread(target=lambda: addresses.append(workspaces.address(like, 2)))
    thread.start()
    thread.join()
    addresses.append(workspaces.address(like, 2))
    assert addresses[0] == addresses[2] != addresses[1]


needs_gpu = pytest.mark.skipif("cuda" not in flashomp.info()["build"]["backends"] or not torch.cuda.is_available(),
                               reason="needs a GPU and a build with the CUDA backend")


@needs_gpu
def test_nobody_gets_scratch_memory_before_the_kernels_are_done():
    """A call on another stream gives its LSE back before its kernels have written it; the current stream's next tensor of
    that size must not be the same memory."""
    q = torch.randn(4, 4096, 16, 64, device="cuda", dtype=torch.float16)
    expected = flashomp.attention(q, q, q)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(20):
        o = flashomp.attention(q, q, q, stream=side.cuda_stream)
        filled = torch.full((4, 16, 4096), float("nan"), device="cuda")
        torch.cuda.synchronize()
        assert filled.isnan().all() and torch.equal(o, expected)


@needs_gpu
def test_runs_of_a_prepared_call_on_two_streams_overlap():
    q = torch.randn(1, 2048, 16, 64, device="cuda", dtype=torch.float16)
    others = [torch.randn_like(q) for _ in range(2)]
    o, lse = flashomp.attention(q, q, q, return_lse=True)
    expected = [flashomp.attention_backward(q, q, q, o, lse, dout) for dout in others]
    backward = flashomp.prepare_backward(q, q, q, o, lse, others[0])
    streams = [torch.cuda.Stream() for _ in others]
    torch.cuda.synchronize()
    for _ in range(20):
        got = [backward.run(q, q, q, o, lse, dout, stream=stream.cuda_stream) for dout, stream in zip(others, streams)]
        torch.cuda.synchronize()
        for gradients, want in zip(got, expected):
            assert all(torch.equal(a, b) for a, b in zip(gradients[:3], want[:3]))
