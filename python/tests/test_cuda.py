"""CUDA tensors of PyTorch: results, gradients, streams and graphs, on every backend of the build that reads them.

Needs a GPU; tools/gpu_python runs these tests on a machine that has one. flashomp comes first: libgomp finds GPUs for the
openmp backend, and the libgomp of PyTorch's packages, which the process has where PyTorch comes first, finds none.
"""

import subprocess
import sys
import threading

import flashomp  # noqa: I001
import numpy as np
import pytest
from conftest import EXPECTED, assert_close, reference, tensors

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    if "cuda" in EXPECTED:
        raise pytest.UsageError("FLASHOMP_EXPECT_PACKAGES names cuda, and PyTorch finds no GPU.")
    pytest.skip("PyTorch finds no GPU", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402

import flashomp.flash_attn  # noqa: E402
import flashomp.torch  # noqa: E402
from flashomp.torch._sdpa import pytorch_sdpa  # noqa: E402

BACKENDS = [name for name in ("openmp", "cuda") if flashomp.devices(name) and name in flashomp.info()["build"]["backends"]]
#: What backend "auto" is for CUDA tensors, and so what flashomp.torch uses.
SERVES = "cuda" if "cuda" in BACKENDS else "openmp"
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def test_the_build_has_a_backend_for_this_gpu():
    assert BACKENDS
    assert all(device["shares_cuda_memory"] for name in BACKENDS for device in flashomp.devices(name))


def on_gpu(arrays, dtype=torch.float32):
    return [torch.from_numpy(np.ascontiguousarray(array)).to(dtype).cuda() for array in arrays]


def numbers(tensor):
    return tensor.detach().double().cpu().numpy()


def options_of(rng, names, batch=2, heads=4, rows=33, columns=47):
    mask = rng.random((batch, columns)) < 0.8
    mask[:, 0] = True
    every = {
        "causal": {"causal": "bottom_right"}, "window": {"window": (9, 3)}, "softcap": {"softcap": 2.0}, "scale": {"scale": 0.3},
        "alibi_slopes": {"alibi_slopes": rng.random(heads).astype(np.float32)},
        "bias": {"bias": rng.standard_normal((1, heads, rows, columns)).astype(np.float32)},
        "key_padding_mask": {"key_padding_mask": mask}, "sink": {"sink": rng.standard_normal(heads).astype(np.float32)},
    }
    options = {}
    for name in names:
        options.update(every[name])
    return options


def moved(options):
    return {name: torch.from_numpy(value).cuda() if isinstance(value, np.ndarray) else value
            for name, value in options.items()}


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("names", [(), ("causal",), ("window", "sink"), ("softcap", "bias"), ("alibi_slopes", "scale"),
                                   ("key_padding_mask", "causal"), ("bias", "sink", "key_padding_mask", "window", "softcap")],
                         ids=lambda names: "+".join(names) or "plain")
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_and_gradients_are_those_of_float64(rng, backend, names, dtype):
    given = on_gpu(tensors(rng), dtype)
    options = options_of(rng, names)
    expected = reference(*(numbers(x) for x in given), **options)
    q, k, v, dout = given
    o, lse, report = flashomp.attention(q, k, v, return_lse=True, return_report=True, backend=backend, **moved(options))
    assert report["on_device"] and report["backend"] == backend and report["staged_bytes"] == 0
    assert o.is_cuda and lse.is_cuda and o.dtype == dtype
    assert_close(numbers(o), expected["o"], BOUNDS[dtype])
    assert_close(numbers(lse), expected["lse"], BOUNDS[dtype])
    got = flashomp.attention_backward(q, k, v, o, lse, dout, backend=backend, dbias="bias" in options, dsink="sink" in options,
                                      **moved(options))
    for name in ("dq", "dk", "dv", "dbias", "dsink"):
        if name in expected:
            assert_close(numbers(getattr(got, name)), expected[name], 4 * BOUNDS[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["current", "by address"])
def test_a_call_follows_what_was_sent_to_its_stream(rng, backend, how):
    q, k, v = on_gpu(tensors(rng, batch=2, rows=300, columns=300, heads=4, heads_kv=4, depth=64, depth_v=64)[:3])
    expected = numbers(flashomp.attention(q, k, v, backend=backend))
    slow = torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(5):
        late = torch.full_like(q, float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            product = slow
            for _ in range(40):
                product = product @ slow * 1e-2
            late.copy_(q + 0 * product[0, 0].nan_to_num())
            if how == "current":
                o = flashomp.attention(late, k, v, backend=backend)
        if how == "by address":
            o = torch.full_like(q, float("nan"))
            o.record_stream(stream)
            stream.wait_stream(torch.cuda.current_stream())
            flashomp.attention(late, k, v, backend=backend, out=o, stream=stream.cuda_stream)
        stream.synchronize()
        np.testing.assert_array_equal(numbers(o), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_threads_on_two_streams(rng, backend):
    problems = [on_gpu(tensors(rng, rows=129 + i, columns=200, depth=64, depth_v=64), torch.bfloat16) for i in range(2)]
    alone = [numbers(flashomp.attention(*problem[:3], backend=backend)) for problem in problems]
    failures = []

    def work(i):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(20):
                    o = flashomp.attention(*problems[i][:3], backend=backend)
                    stream.synchronize()
                    np.testing.assert_array_equal(numbers(o), alone[i])
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.skipif("cuda" not in BACKENDS, reason="this build has no CUDA backend")
def test_a_cuda_graph_holds_calls_of_the_cuda_backend(rng):
    q, k, v = on_gpu(tensors(rng, depth=64, depth_v=64)[:3], torch.bfloat16)
    flashomp.attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = flashomp.attention(q, k, v, causal="bottom_right")
    for _ in range(3):
        q.copy_(torch.randn_like(q))
        o.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(o, flashomp.attention(q, k, v, causal="bottom_right"), rtol=0, atol=0)


@pytest.mark.skipif("openmp" not in BACKENDS, reason="this build has no GPU code of OpenMP")
def test_openmp_refuses_a_stream_that_is_captured(rng):
    q, k, v = on_gpu(tensors(rng)[:3])
    flashomp.attention(q, k, v, backend="openmp")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = q + 1
        with pytest.raises(flashomp.Error, match="stream is being captured into a CUDA graph"):
            flashomp.attention(q, k, v, backend="openmp")
    graph.replay()
    torch.testing.assert_close(held, q + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_prepared_calls_and_merge(rng, backend):
    q, k, v, dout = on_gpu(tensors(rng, rows=40, columns=96), torch.float32)
    whole, lse = flashomp.attention(q, k, v, backend=backend, return_lse=True)
    prepared = flashomp.prepare(q, k, v, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(prepared.run(q, k, v), whole, rtol=0, atol=0)
    back = flashomp.prepare_backward(q, k, v, whole, lse, dout, backend=backend)
    for one, other in zip(back.run(q, k, v, whole, lse, dout)[:3],
                          flashomp.attention_backward(q, k, v, whole, lse, dout, backend=backend)[:3]):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    parts = [flashomp.attention(q, k[:, part], v[:, part], backend=backend, return_lse=True)
             for part in (slice(0, 50), slice(50, None))]
    o, merged = flashomp.merge(*parts[0], *parts[1])
    torch.testing.assert_close(o, whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged, lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_and_pytorch_take_turns_without_touching_each_other(rng, backend):
    """Memory that PyTorch frees and gives out again while calls come and go."""
    torch.manual_seed(0)
    for i in range(60):
        rows, columns = int(rng.integers(1, 300)), int(rng.integers(1, 300))
        q, k, v = (torch.randn(2, n, 4, 64, device="cuda", dtype=torch.bfloat16) for n in (rows, columns, columns))
        o = flashomp.attention(q, k, v, backend=backend)
        expected = pytorch_sdpa(*(x.float().transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
        del q, k, v
        torch.testing.assert_close(o.float(), expected, rtol=2e-2, atol=2e-2, msg=lambda text: f"{i}: {text}")


def test_packed_sequences(rng):
    starts = torch.tensor([0, 17, 17, 60], dtype=torch.int32)
    q, k, v = (torch.randn(60, 4, 32, device="cuda") for _ in range(3))
    o = flashomp.torch.attention(q, k, v, cu_seqlens_q=starts.cuda(), cu_seqlens_k=starts.cuda(), causal="bottom_right")
    for first, last in ((0, 17), (17, 60)):
        one = flashomp.torch.attention(q[None, first:last], k[None, first:last], v[None, first:last], causal="bottom_right")
        torch.testing.assert_close(o[first:last], one[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_autograd_and_sdpa(dtype):
    torch.manual_seed(1)
    made = [torch.randn(2, 8, 65, 64, device="cuda", dtype=dtype) for _ in range(3)]
    mask = torch.rand(2, 1, 65, 65, device="cuda") < 0.7
    mask[..., 0] = True
    for extra in ({}, {"is_causal": True}, {"attn_mask": mask}):
        ours, theirs = ([x.clone().requires_grad_() for x in made] for _ in range(2))
        exact = [x.double().requires_grad_() for x in made]
        results = []
        for function, inputs in ((flashomp.torch.sdpa, ours), (pytorch_sdpa, theirs), (pytorch_sdpa, exact)):
            o = function(*inputs, **extra)
            (o * torch.arange(64, device="cuda").to(o.dtype)).mean().backward()
            results.append([o, *(x.grad for x in inputs)])
        for mine, pytorch, right in zip(*results):
            error = (mine.double() - right).abs().max()
            assert error <= 3 * (pytorch.double() - right).abs().max() + 1e-5 * right.abs().max()


def test_enable_serves_cuda_when_asked():
    q = torch.randn(1, 2, 40, 64, device="cuda", requires_grad=True)
    flashomp.torch.counts(reset=True)
    with flashomp.torch.enabled():
        F.scaled_dot_product_attention(q, q, q)
        assert flashomp.torch.counts()["pytorch"] == {"query is on cuda": 1}
    flashomp.torch.counts(reset=True)
    with flashomp.torch.enabled(cuda=True):
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    report = flashomp.torch.counts()
    assert (report["forward"], report["backward"], report["pytorch"]) == (1, 1, {})


def test_autocast_and_compile():
    @torch.compile(fullgraph=True)
    def block(x, weight):
        q, k, v = (x @ weight).unflatten(-1, (3, 4, 16)).unbind(-3)
        return flashomp.torch.attention(q, k, v, causal="bottom_right").flatten(-2)

    x, weight = torch.randn(2, 50, 32, device="cuda"), torch.randn(32, 192, device="cuda", requires_grad=True)
    block(x, weight).square().sum().backward()
    compiled, weight.grad = weight.grad, None
    block._torchdynamo_orig_callable(x, weight).square().sum().backward()
    torch.testing.assert_close(compiled, weight.grad, rtol=1e-3, atol=1e-2)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert flashomp.torch.sdpa(x, x, x).dtype == torch.bfloat16


def test_dropout_draws_the_same_mask_as_on_the_cpu():
    q, k, v = (torch.randn(2, 30, 4, 32) for _ in range(3))
    here = flashomp.torch.attention(q, k, v, dropout=0.3, seed=(5, 6))
    there = flashomp.torch.attention(q.cuda(), k.cuda(), v.cuda(), dropout=0.3, seed=(5, 6))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-4)


def test_flash_attention_functions():
    q, k, v = (torch.randn(2, 64, 8, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out, lse, _ = flashomp.flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    out.sum().backward()
    expected = pytorch_sdpa(*(x.detach().double().transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
    assert lse.is_cuda and q.grad.is_cuda


def test_a_transformers_model():
    transformers = pytest.importorskip("transformers")
    import flashomp.transformers

    flashomp.transformers.register()
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=97, pad_token_id=0)
    torch.manual_seed(0)
    eager = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").cuda().eval()
    ours = transformers.LlamaForCausalLM._from_config(config, attn_implementation="flashomp").cuda().eval()
    ours.load_state_dict(eager.state_dict())
    tokens = torch.randint(3, 97, (2, 40), device="cuda")
    mask = torch.ones_like(tokens)
    mask[0, :9] = 0
    with torch.no_grad():
        one, other = (model(input_ids=tokens, attention_mask=mask).logits for model in (eager, ours))
    torch.testing.assert_close(one[mask.bool()], other[mask.bool()], rtol=1e-3, atol=1e-3)
    kwargs = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(eager.generate(tokens, **kwargs), ours.generate(tokens, **kwargs))


def test_arrays_of_cupy(rng):
    cupy = pytest.importorskip("cupy")
    arrays = tensors(rng)[:3]
    q, k, v = (cupy.asarray(array) for array in arrays)
    out = cupy.full((2, 33, 4, 16), cupy.nan, dtype=cupy.float32)
    lse = cupy.empty((2, 4, 33), dtype=cupy.float32)
    flashomp.attention(q, k, v, out=out, lse=lse)
    cupy.cuda.Device().synchronize()
    assert_close(out.get(), reference(*arrays)["o"])


def test_tensors_apart_are_refused():
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(flashomp.Error, match="k is on the CPU but q is on CUDA device 0"):
        flashomp.attention(q.cuda(), q, q.cuda())
    with pytest.raises(flashomp.Error, match="device names another place"):
        flashomp.attention(q.cuda(), q.cuda(), q.cuda(), device="host")


@pytest.mark.skipif("openmp" not in BACKENDS, reason="this build has no GPU code of OpenMP")
@pytest.mark.parametrize("first", ["auto", "openmp"])
def test_a_new_process_finds_openmps_gpus_after_pytorch_has_used_cuda(first):
    """Whichever backend comes first; and the process ends in peace."""
    code = f"""
import flashomp, torch
q = torch.randn(1, 64, 2, 64, device="cuda")
for backend in ({first!r}, "openmp"):
    o, report = flashomp.attention(q, q, q, backend=backend, return_report=True)
    assert report["on_device"]
print(o.isfinite().all().item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_pytorch_first_gives_a_sentence_for_openmp():
    code = """
import torch, flashomp
q = torch.randn(1, 64, 2, 64, device="cuda")
try:
    flashomp.attention(q, q, q, backend="openmp")
except flashomp.Error as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "q is in CUDA memory, but OpenMP finds no such GPU" in done.stdout
