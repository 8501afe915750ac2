"""flashomp.torch's operators: values, gradients, and what PyTorch builds on operators."""

import copy
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import assert_close, reference

torch = pytest.importorskip("torch")
import flashomp  # noqa: E402
import flashomp.torch  # noqa: E402
import torch.utils._python_dispatch  # noqa: E402
import torch.utils.checkpoint  # noqa: E402

attention = flashomp.torch.attention


def tensors(batch=2, rows=33, columns=47, heads=4, heads_kv=2, depth=24, depth_v=16, dtype=torch.float32, grad=True):
    torch.manual_seed(3)
    shapes = ((batch, rows, heads, depth), (batch, columns, heads_kv, depth), (batch, columns, heads_kv, depth_v))
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


def option_cases():
    padding = torch.ones(2, 47, dtype=torch.bool)
    padding[0, 30:] = False
    bias, sink = torch.randn(1, 4, 33, 47).requires_grad_(), torch.randn(4).requires_grad_()
    return {
        "plain": {},
        "causal": {"causal": "bottom_right", "scale": 0.2},
        "window": {"window": (5, 3), "softcap": 3.0},
        "alibi": {"alibi_slopes": torch.rand(4), "causal": "top_left"},
        "bias": {"bias": bias},
        "sink": {"sink": sink, "key_padding_mask": padding},
        "row bias": {"bias": torch.randn(2, 1, 1, 47).requires_grad_()},
        "dropout": {"dropout": 0.25, "seed": (11, 2**64 - 3)},
    }


def expected_of(q, k, v, dout, options):
    plain = {name: value.detach().numpy() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    if "seed" in plain:
        seed, offset = plain.pop("seed")
        shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        plain["keep"] = flashomp.dropout_mask(shape, dropout=plain["dropout"], seed=seed, offset=offset)
    return reference(*(x.detach().float().numpy() for x in (q, k, v)), dout.float().numpy(), **plain)


@pytest.mark.parametrize("name", list(option_cases()))
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_values_and_gradients(name, layout):
    options = option_cases()[name]
    q, k, v = tensors()
    dout = torch.randn(2, 33, 4, 16)
    expected = expected_of(q, k, v, dout, options)
    given = (q, k, v) if layout == "bshd" else [x.transpose(1, 2) for x in (q, k, v)]
    o, lse = attention(*given, layout=layout, return_lse=True, **options)
    assert not lse.requires_grad
    o = o if layout == "bshd" else o.transpose(1, 2)
    assert o.is_contiguous()  # in both layouts, so that the heads can be joined without a copy
    o.backward(dout)
    assert_close(o.detach(), expected["o"])
    assert_close(lse, expected["lse"])
    for leaf, what in ((q, "dq"), (k, "dk"), (v, "dv"), (options.get("bias"), "dbias"), (options.get("sink"), "dsink")):
        if leaf is not None:
            assert_close(leaf.grad, expected[what], 1e-4)
    with torch.no_grad():  # not through the operator, and with the same bits
        again, lse_again = attention(*given, layout=layout, return_lse=True, **options)
    again = again if layout == "bshd" else again.transpose(1, 2)
    assert torch.equal(again, o) and torch.equal(lse, lse_again)


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
def test_sixteen_bits(dtype, bound):
    q, k, v = tensors(dtype=dtype)
    dout = torch.randn(2, 33, 4, 16).to(dtype)
    expected = expected_of(q, k, v, dout, {})
    o = attention(q, k, v)
    o.backward(dout)
    assert o.dtype == dtype and q.grad.dtype == dtype
    assert_close(o.detach().float(), expected["o"], bound)
    assert_close(q.grad.float(), expected["dq"], bound)


def test_packed_sequences():
    starts = torch.tensor([0, 5, 5, 17], dtype=torch.int32)
    q, k, v = (torch.randn(17, 4, 16).requires_grad_() for _ in range(3))
    o, lse = attention(q, k, v, cu_seqlens_q=starts, cu_seqlens_k=starts, causal="top_left", return_lse=True)
    assert lse.shape == (4, 17)
    o.sum().backward()
    part = [x.detach()[None, 5:17].clone().requires_grad_() for x in (q, k, v)]
    alone = attention(*part, causal="top_left")
    alone.sum().backward()
    assert_close(o.detach()[5:17], alone.detach()[0], 1e-6)
    assert_close(q.grad[5:17], part[0].grad[0], 1e-5)


def test_zero_copy_and_the_library_s_own_call():
    q, k, v = tensors(grad=False)
    o = flashomp.attention(q, k, v)
    assert type(o) is torch.Tensor and o.dtype == torch.float32
    assert torch.equal(o, attention(q, k, v))
    out = torch.empty(2, 33, 4, 16)
    address = out.data_ptr()
    assert flashomp.attention(q, k, v, out=out) is out and out.data_ptr() == address
    assert torch.equal(out, o)
    mixed = flashomp.attention(q.numpy(), k, v.numpy())
    assert type(mixed) is np.ndarray
    np.testing.assert_array_equal(mixed, o.numpy())
    gradients = flashomp.attention_backward(q.bfloat16(), k.bfloat16(), v.bfloat16(), o.bfloat16(),
                                            torch.zeros(2, 4, 33), o.bfloat16())
    assert gradients.dq.dtype == torch.bfloat16


def test_gradients_that_do_not_exist_are_refused():
    q, k, v = tensors()
    out = torch.zeros(2, 33, 4, 16)
    with pytest.raises(flashomp.Error, match="q requires a gradient, which this function does not record"):
        flashomp.attention(q, k, v, out=out)
    assert not out.any()
    with torch.no_grad():
        flashomp.attention(q, k, v, out=out)
    assert out.any()
    slopes = torch.rand(4).requires_grad_()
    with pytest.raises(flashomp.Error, match="alibi_slopes requires a gradient"):
        attention(q, k, v, alibi_slopes=slopes)
    with pytest.raises(flashomp.Error, match="bias requires a gradient"):
        flashomp.attention(*(x.detach() for x in (q, k, v)), bias=torch.zeros(1, 1, 33, 47).requires_grad_())
    o = attention(q, k, v)
    (dq,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    with pytest.raises(flashomp.NotBuilt, match="no second derivatives"):
        dq.sum().backward()


def test_a_mode_sees_both_operators():
    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), words=None):
            names.append(str(function))
            return function(*arguments, **(words or {}))

    names = []
    q, k, v = tensors()
    with Names():
        attention(q, k, v).sum().backward()
    assert "flashomp.forward.default" in names and "flashomp.backward.default" in names
    names.clear()
    o = attention(q, k, v).sum()  # a mode that comes later sees what comes later
    with Names():
        o.backward()
    assert "flashomp.backward.default" in names


def test_errors_are_the_library_s_sentences():
    q, k, v = tensors()
    with pytest.raises(flashomp.Error, match="dtype"):
        attention(q, k.bfloat16(), v)
    with pytest.raises(flashomp.Error, match="float64"):
        attention(q.double(), k.double(), v.double())
    with pytest.raises(flashomp.Error, match="causal was 'yes'"):
        attention(q, k, v, causal="yes")
    with pytest.raises(flashomp.Error, match="q is on|cannot be read|device"):
        flashomp.attention(q.detach().to("meta"), k.detach(), v.detach())
    with pytest.raises(flashomp.Error, match="stride"):
        flashomp.attention(q.detach().transpose(2, 3).contiguous().transpose(2, 3), k.detach(), v.detach())
    # PyTorch's operators take any strides, and so does this one.
    same = attention(q.transpose(2, 3).contiguous().transpose(2, 3), k, v)
    assert torch.equal(same, attention(q, k, v))


WRONG = {
    "no tensors": ({"q": None}, TypeError, "q was None; it must be a tensor of PyTorch."),
    "a number": ({"k": 3.0}, TypeError, "k was 3.0; it must be a tensor of PyTorch."),
    "an array": ({"v": np.zeros((1, 2), np.float32)}, TypeError, "v was array"),
    "an array for a bias": ({"bias": np.zeros((1, 1, 33, 47))}, TypeError, "bias was array"),
    "a list for starts": ({"cu_seqlens_q": [0, 3]}, TypeError, "cu_seqlens_q was [0, 3]; it must be a tensor"),
    "a number for a sink": ({"sink": 0.5}, TypeError, "sink was 0.5"),
    "q of no axes": ({"q": torch.tensor(1.0)}, flashomp.Error, "q has 0 axes"),
    "v of no axes": ({"v": torch.tensor(1.0)}, flashomp.Error, "v has 0 axes"),
    "a mask of no axes": ({"key_padding_mask": torch.tensor(True)}, flashomp.Error, "key_padding_mask has 0 axes"),
    "one axis": ({"k": torch.zeros(3)}, flashomp.Error, "k has 1 axis; it must have 4, or 3"),
    "five axes": ({"k": torch.zeros(1, 1, 1, 1, 1)}, flashomp.Error, "k has 5 axes; it must have 4, or 3"),
    "a window that is a number": ({"window": 5}, flashomp.Error, "window was 5; it must be two integers"),
    "a window in words": ({"window": "ab"}, flashomp.Error, "window was 'ab'; it must be two integers"),
    "half a window": ({"window": (1.5, 2)}, flashomp.Error, "window"),
    "a layout": ({"layout": None}, flashomp.Error, "layout was None; allowed are"),
    "a scale in words": ({"scale": "big"}, flashomp.Error, "scale was 'big'; it must be a number"),
    "a dropout in words": ({"dropout": "much"}, flashomp.Error, "dropout was 'much'; it must be a number"),
    "one seed": ({"dropout": 0.5, "seed": 3}, flashomp.Error, "seed was 3; it must be (seed, offset)"),
    "three seeds": ({"dropout": 0.5, "seed": (1, 2, 3)}, flashomp.Error, "seed was (1, 2, 3)"),
    "seeds that are no integers": ({"dropout": 0.5, "seed": (1.0, 2)}, flashomp.Error, "seed was (1.0, 2)"),
    "a negative seed": ({"dropout": 0.5, "seed": (-1, 2)}, flashomp.Error, "seed was (-1, 2)"),
    "a large seed": ({"dropout": 0.5, "seed": (0, 2**64)}, flashomp.Error, "seed was (0, 18446744073709551616)"),
    "seeds of 32 bits": ({"dropout": 0.5, "seed": torch.zeros(2, dtype=torch.int32)}, flashomp.Error, "seed is torch.int32"),
    "a tensor of one seed": ({"seed": torch.zeros(1, dtype=torch.int64)}, flashomp.Error, "of shape [1]"),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_types_are_one_sentence(name, grad):
    change, kind, words = WRONG[name]
    q, k, v = tensors(grad=grad)
    with pytest.raises(kind) as error:
        attention(**{"q": q, "k": k, "v": v, **change})
    text = str(error.value)
    assert words in text and "\n" not in text and text.endswith("."), text


def test_seeds_of_every_form_are_the_same():
    q, k, v = tensors(grad=False)
    o = attention(q, k, v, dropout=0.5, seed=(3, 2**64 - 1))
    for seed in ([3, 2**64 - 1], (np.int64(3), 2**64 - 1), torch.tensor([3, -1])):
        assert torch.equal(o, attention(q, k, v, dropout=0.5, seed=seed))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_gradients_lie_in_memory_as_the_inputs_and_are_new(layout, transposed):
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    if transposed:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    o, lse = attention(q, k, v, layout=layout, return_lse=True)
    options = (*(None,) * 9, "none", -1, -1, 0.0, 0.0, layout)
    gradients = torch.ops.flashomp.backward(q, k, v, o, lse, torch.ones_like(o), *options, False, False)
    for gradient, of in zip(gradients, (q, k, v)):
        assert gradient.stride() == (of.stride() if layout == "bhsd" else torch.empty(of.shape).stride())
        assert gradient._version == 0  # nobody has seen the tensor before, so that nobody need be told that it was written


BEFORE_2_10 = """
import torch
torch.Tensor.__dlpack_c_exchange_api__ = None  # as before PyTorch 2.10
torch.__version__ = "2.9.1"
import flashomp
q = torch.randn(1, 5, 2, 8)
o, lse = flashomp.attention(q, q.bfloat16().float(), q, return_lse=True)
assert type(o) is torch.Tensor and type(lse) is torch.Tensor and lse.shape == (1, 2, 5)
assert type(flashomp.attention(*(q.bfloat16() for _ in range(3)))) is torch.Tensor
for module in ("flashomp.torch", "flashomp.flash_attn", "flashomp.transformers"):
    try:
        __import__(module)
    except ImportError as error:
        text = str(error)
        assert text == ("flashomp.torch needs PyTorch 2.10 or newer, whose tensors have DLPack's table of functions; this is "
                        "PyTorch 2.9.1."), text
    else:
        raise AssertionError(module)
"""


def test_pytorch_before_2_10_is_refused_in_one_sentence():
    """Its tensors still work in flashomp.attention, and results are PyTorch's."""
    subprocess.run([sys.executable, "-c", BEFORE_2_10], check=True, timeout=120)


def test_tensors_without_memory():
    q = torch.randn(1, 4, 2, 8)
    freed = q.clone()
    freed.untyped_storage().resize_(0)
    for bad in (freed, q.to_sparse(), q.to("meta")):
        with pytest.raises(flashomp.Error, match="^q .*[.]$") as error:
            flashomp.attention(bad, q, q)
        assert "\n" not in str(error.value)
    with pytest.raises(flashomp.Error, match="q cannot be read through DLPack"):
        torch.func.vmap(lambda a: flashomp.attention(a, a, a))(q[None])


SAMPLES = {
    "plain": {},
    "options": {"causal": "bottom_right", "scale": 0.2, "window": (5, 0), "softcap": 3.0},
    "bias": {"bias": "bias"},
    "padding": {"key_padding_mask": "padding", "sink": "sink"},
    "mask": {"mask": "mask"},
}


@pytest.mark.parametrize("name", list(SAMPLES))
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "bhsd, depth apart"])
def test_opcheck(name, layout):
    sample = dict(SAMPLES[name])
    q, k, v = tensors(rows=6, columns=9, depth=8, depth_v=4)
    made = {"bias": torch.randn(1, 4, 6, 9).requires_grad_(), "padding": torch.ones(2, 9, dtype=torch.bool),
            "mask": torch.rand(2, 1, 6, 9) < 0.7,
            "sink": torch.randn(4).requires_grad_()}
    sample = {key: made[value] if isinstance(value, str) and value in made else value for key, value in sample.items()}
    if layout != "bshd":
        layout, _, apart = layout.partition(", ")
        if apart:  # as rearrange(qkv, "b n (h d qkv) -> qkv b h n d") has them: copied, and no order of axes is kept
            q, k, v = (torch.stack((x.detach(), x.detach()), -1)[..., 0] for x in (q, k, v))
        q, k, v = (x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v))
    window = sample.get("window", (-1, -1))
    args = (q, k, v, sample.get("bias"), sample.get("key_padding_mask"), None, sample.get("sink"), None, None, None,
            sample.get("mask"), sample.get("scale"), sample.get("causal", "none"), *window, sample.get("softcap", 0.0), 0.0, layout)
    torch.library.opcheck(torch.ops.flashomp.forward.default, args)
    o, lse = torch.ops.flashomp.forward.default(*args)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
    back = (*plain[:3], o.detach(), lse, torch.randn_like(o), *plain[3:], "bias" in sample, "sink" in sample)
    torch.library.opcheck(torch.ops.flashomp.backward.default, back)


class Block(torch.nn.Module):
    """Self-attention of a small model."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(5)
        self.project = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).unbind(-3)
        o = attention(q, k, v, causal="bottom_right", dropout=self.dropout)
        return self.out(o.flatten(-2))


def run(module, x):
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    y = module(x)
    y.square().sum().backward()
    return y.detach(), x.grad, module.project.weight.grad.clone()


def test_compile_fullgraph():
    block, x = Block(), torch.randn(2, 10, 32)
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for size in (10, 13, 17):  # dynamic shapes from the second on
        x = torch.randn(2, size, 32)
        for got, want in zip(run_compiled(compiled, block, x), run(block, x)):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def run_compiled(compiled, block, x):
    x = x.detach().clone().requires_grad_()
    block.zero_grad()
    y = compiled(x)
    y.square().sum().backward()
    return y.detach(), x.grad, block.project.weight.grad.clone()


def test_compile_fullgraph_with_dropout_draws_anew():
    block, x = Block(dropout=0.5), torch.randn(2, 10, 32)
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(1)
    assert torch.equal(first, compiled(x)) and not torch.equal(first, second)


def test_compile_of_a_projection_whose_depth_is_apart():
    linear = torch.nn.Linear(64, 192)

    def attend(x):
        qkv = linear(x).unflatten(-1, (4, 16, 3)).permute(4, 0, 2, 1, 3)
        return torch.nn.functional.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2)

    x = torch.randn(2, 8, 64)
    expected = attend(x)
    torch._dynamo.reset()
    with flashomp.torch.enabled():
        assert_close(torch.compile(attend, backend="aot_eager")(x).detach(), expected.detach())


def test_inductor():
    pytest.importorskip("triton", reason="inductor's own needs")
    block, x = Block(), torch.randn(2, 10, 32)
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True)
    for got, want in zip(run_compiled(compiled, block, x), run(block, x)):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_export():
    block, x = Block(), torch.randn(2, 10, 32)
    program = torch.export.export(block, (x,), dynamic_shapes=({1: torch.export.Dim("rows", min=2, max=64)},))
    assert any("flashomp.forward" in str(node.target) for node in program.graph.nodes)
    x = torch.randn(2, 21, 32)
    torch.testing.assert_close(program.module()(x), block(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpoint_draws_the_same_mask_again(dropout):
    block, x = Block(dropout), torch.randn(2, 10, 32)
    torch.manual_seed(8)
    expected = run(block, x)

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = block.project

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

    torch.manual_seed(8)
    for got, want in zip(run(Checkpointed(), x), expected):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_autocast():
    q, k, v = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = attention(q, k, v, bias=torch.randn(1, 1, 33, 47))
        inferred = attention(*(x.detach() for x in (q, k, v)))
    assert o.dtype == torch.bfloat16 and inferred.dtype == torch.bfloat16
    o.float().sum().backward()
    assert q.grad.dtype == torch.float32
    assert torch.equal(inferred, attention(*(x.detach().bfloat16() for x in (q, k, v))))
    half = torch.randn(1, 1, 33, 47).half()
    q, k, v = (x.detach() for x in (q, k, v))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(q, k, v, bias=half), attention(q, k, v, bias=half.bfloat16()))
        for wrong in (half > 0, half.double()):  # autocast leaves both alone
            with pytest.raises(flashomp.Error, match="^bias is "):
                attention(q, k, v, bias=wrong)


def test_vmap_falls_back_to_a_loop():
    q, k, v = (torch.randn(3, 2, 9, 2, 8) for _ in range(3))
    got = torch.func.vmap(lambda a, b, c: attention(a, b, c, causal="top_left"))(q, k, v)
    want = torch.stack([attention(a, b, c, causal="top_left") for a, b, c in zip(q, k, v)])
    assert torch.equal(got, want)


def test_functorch():
    q, k, v = (torch.randn(2, 9, 2, 8) for _ in range(3))
    loss = lambda a: attention(a, k, v).square().sum()  # noqa: E731
    leaf = q.clone().requires_grad_()
    loss(leaf).backward()
    torch.testing.assert_close(torch.func.grad(loss)(q), leaf.grad)
    with pytest.raises(Exception, match="(?i)forward.*(AD|mode)|jvp"):
        torch.func.jvp(loss, (q,), (torch.ones_like(q),))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(Exception, match="(?i)forward.*(AD|mode)|jvp"):
            attention(dual, k, v)


def test_only_what_the_backward_pass_needs_is_saved():
    q, k, v = tensors()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        o, lse = attention(q, k, v, causal="top_left", return_lse=True)
    assert sorted(t.data_ptr() for t in saved) == sorted(t.data_ptr() for t in (q, k, v, o, lse))


def test_deep_copies_and_threads():
    """Backward passes of several threads; PyTorch's threads of autograd release nothing they hold."""
    block = Block()
    x = torch.randn(2, 10, 32)
    expected = run(copy.deepcopy(block), x)
    results = [None] * 4

    def work(n):
        own = copy.deepcopy(block)
        for _ in range(5):
            results[n] = run(own, x)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        for got, want in zip(result, expected):
            torch.testing.assert_close(got, want)


LOADER = """
import torch, flashomp.torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        q = torch.full((1, 8, 2, 8), float(index))
        return flashomp.torch.attention(q, q, q).sum()

warm = torch.ones(1, 64, 2, 8)
flashomp.torch.attention(warm, warm, warm)  # the parent's team of threads exists before the fork
loader = torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork")
torch.testing.assert_close(torch.cat(list(loader)), 128.0 * torch.arange(4.0))
"""


def test_in_the_workers_of_a_data_loader():
    """In a process of its own, since JAX's threads, which other tests start, bear no fork."""
    subprocess.run([sys.executable, "-c", LOADER], check=True, timeout=120)


def test_machine_plain_beside_pytorch_s_libgomp():
    """PyTorch's libgomp is older than the compiler's; regions on the host still run (offload/launch/host_teams.cpp)."""
    q, k, v = tensors(grad=False)
    o, report = flashomp.attention(q, k, v, device="host", machine="plain", return_report=True)
    assert report["machine"] == "plain"
    assert_close(o, reference(q, k, v)["o"])


def test_autograd_sees_what_out_writes():
    w = torch.randn(1, 4, 4, 8, requires_grad=True)
    buffer = torch.ones(1, 4, 4, 8)
    a = torch.randn(1, 4, 4, 8)
    z = (w * buffer).sum()
    flashomp.attention(a, a, a, out=buffer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_autograd_sees_what_append_and_dropout_mask_write():
    q, new = torch.randn(1, 1, 2, 8, requires_grad=True), torch.randn(1, 1, 2, 8)
    k, v = torch.randn(1, 8, 2, 8), torch.randn(1, 8, 2, 8)
    o = attention(q, k, v)
    lengths = torch.tensor([3], dtype=torch.int32)
    versions = k._version, v._version
    flashomp.append(new, new, k, v, cache_seqlens=lengths)
    assert k._version > versions[0] and v._version > versions[1]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    before = mask._version
    flashomp.dropout_mask(dropout=0.5, out=mask)
    assert mask._version > before


def test_a_prepared_option_may_get_other_memory():
    q, bias = torch.randn(1, 4, 2, 8), torch.zeros(1, 1, 4, 4)
    prepared = flashomp.prepare(q, q, q, bias=bias)
    other = torch.randn(1, 1, 4, 4)
    bias.data = other.clone()
    assert torch.equal(prepared.run(q, q, q), flashomp.attention(q, q, q, bias=other))


def test_numbers_that_require_gradients_and_layouts_of_runs():
    q = torch.randn(1, 4, 4, 8)
    with pytest.raises(flashomp.Error, match="scale is a tensor"):
        attention(q, q, q, scale=torch.tensor(0.5, requires_grad=True))
    with pytest.raises(flashomp.Error, match="window was"):
        attention(q, q, q, window=(1, 2, 3))
    with pytest.raises(flashomp.Error, match="layout differs"):
        flashomp.prepare(q, q, q).run(q, q, q, layout="bhsd")
    with pytest.raises(flashomp.Error, match="causal was"):
        flashomp.attention(q, q, q, causal="é" * 40)
