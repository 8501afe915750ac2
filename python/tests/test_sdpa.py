"""flashomp.torch.sdpa and enable() beside PyTorch's function."""

import copy
import inspect
import io
import pickle
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
import flashomp  # noqa: E402
import flashomp.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from flashomp.torch._sdpa import pytorch_sdpa  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

sdpa = flashomp.torch.sdpa


def make(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype)


def boolean(*shape):
    mask = torch.rand(shape) > 0.3
    mask[..., 0] = True
    return mask


SHAPES = {
    "four axes": ((2, 4, 5, 8), (2, 4, 7, 8)),
    "three axes": ((4, 5, 8), (4, 7, 8)),
    "two axes": ((5, 8), (7, 8)),
    "five axes": ((3, 2, 4, 5, 8), (3, 2, 4, 7, 8)),
    "batch broadcast": ((2, 4, 5, 8), (1, 4, 7, 8)),
    "one head of keys": ((2, 4, 5, 8), (2, 1, 7, 8)),
    "one head of queries": ((2, 1, 5, 8), (2, 4, 7, 8)),
    "keys without batch": ((2, 4, 5, 8), (4, 7, 8)),
    "queries without batch": ((4, 5, 8), (2, 4, 7, 8)),
    "no keys": ((2, 4, 5, 8), (2, 4, 0, 8)),
    "no rows": ((2, 4, 0, 8), (2, 4, 7, 8)),
    "no batch": ((0, 4, 5, 8), (0, 4, 7, 8)),
    "one row": ((2, 4, 1, 8), (2, 4, 7, 8)),
}


def compare(q, k, v, mask=None, bound=2e-5, **options):
    """Values and gradients beside PyTorch's math in float64."""
    leaves = [q, k, v] + ([mask] if mask is not None and mask.is_floating_point() else [])
    ours = [x.clone().requires_grad_() for x in leaves]
    theirs = [x.double().requires_grad_() for x in leaves]
    o = sdpa(*ours[:3], ours[3] if len(ours) > 3 else mask, **options)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = pytorch_sdpa(*theirs[:3], theirs[3] if len(theirs) > 3 else mask, **options)
    assert o.dtype == q.dtype
    torch.testing.assert_close(o.double(), expected, rtol=bound, atol=bound)
    dout = torch.randn_like(o)
    o.backward(dout)
    expected.backward(dout.double())
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=10 * bound, atol=10 * bound)
    with torch.no_grad():
        assert torch.equal(o, sdpa(q, k, v, mask, **options))


def test_the_signature_is_pytorch_s():
    text = F.scaled_dot_product_attention.__doc__.split("->")[0]
    names = list(inspect.signature(sdpa).parameters)
    assert names == [part.split("=")[0].strip() for part in text[text.index("(") + 1 : text.rindex(")")].split(",")]
    defaults = [p.default for p in inspect.signature(sdpa).parameters.values()]
    assert defaults[3:] == [None, 0.0, False, None, False]


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("is_causal", [False, True])
def test_shapes(name, is_causal):
    q, k = SHAPES[name]
    compare(make(*q), make(*k), make(*k[:-1], 6), is_causal=is_causal)


@pytest.mark.parametrize("depth, depth_v", [(288, 288), (300, 260), (512, 512), (576, 512), (40, 512)])
@pytest.mark.parametrize("rows", [1, 9])
def test_wide_heads(depth, depth_v, rows):
    q, k, v = make(2, 4, rows, depth), make(2, 4, 37, depth), make(2, 4, 37, depth_v)
    compare(q, k, v)
    compare(q, k, v, is_causal=True)


def test_values_may_be_columns_of_the_keys():
    q, latent = make(2, 128, 1, 576).bfloat16(), make(2, 1, 90, 576).bfloat16()
    o = sdpa(q, latent, latent[..., :512], enable_gqa=True)
    assert torch.equal(o, sdpa(q, latent, latent[..., :512].clone(), enable_gqa=True))
    expected = pytorch_sdpa(q.double(), latent.double(), latent[..., :512].double(), enable_gqa=True)
    torch.testing.assert_close(o.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["four axes", "three axes", "two axes", "five axes", "one head of keys"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_every_shape(name, kind):
    q, k = SHAPES[name]
    q, k, v = make(*q), make(*k), make(*k)
    full = (*q.shape[:-1], k.size(-2))
    shapes = [full[-2:], (1, full[-1]), (full[-2], 1), full]
    if len(full) == 4:
        shapes += [(2, 1, 1, 7), (1, 4, 1, 7), (1, 1, 5, 7), (2, 1, 5, 7), (4, 5, 7), (2, 1, 1, 1)]
    if len(full) == 5:
        shapes += [(3, 1, 1, 5, 7), (2, 1, 1, 7), (1, 2, 4, 1, 7)]
    for shape in shapes:
        compare(q, k, v, boolean(*shape) if kind == "bool" else make(*shape))


def test_expanded_masks_stay_small():
    q, k, v = make(2, 4, 5, 8), make(2, 4, 7, 8), make(2, 4, 7, 8)
    padding = boolean(2, 1, 1, 7).expand(2, 4, 5, 7)
    compare(q, k, v, padding)
    compare(q, k, v, make(2, 1, 5, 7).expand(2, 4, 5, 7))


@pytest.mark.parametrize("mask", ["bool", "float"])
@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 1, 7)])
def test_fully_masked_rows_are_zero(mask, shape):
    keep = boolean(*shape)
    keep[..., 0, :] = False
    q, k, v = make(2, 4, 5, 8), make(2, 4, 7, 8), make(2, 4, 7, 8)
    given = keep if mask == "bool" else torch.zeros(shape).masked_fill(~keep, float("-inf"))
    o = sdpa(q, k, v, given)
    expected = pytorch_sdpa(q, k, v, given)
    torch.testing.assert_close(o, expected, rtol=1e-5, atol=1e-5)
    if shape == (5, 7):
        assert not o[:, :, 0].any()
    leaf = q.clone().requires_grad_()
    sdpa(leaf, k, v, given).sum().backward()
    assert torch.isfinite(leaf.grad).all()


def test_gqa():
    q, k, v = make(2, 6, 5, 8), make(2, 2, 7, 8), make(2, 2, 7, 8)
    compare(q, k, v, enable_gqa=True)
    compare(q, k, v, boolean(2, 6, 5, 7), enable_gqa=True)
    compare(make(6, 5, 8), make(3, 7, 8), make(3, 7, 8), enable_gqa=True, is_causal=True)
    with pytest.raises(flashomp.Error, match="do not fit"):
        sdpa(q, k, v)


def test_scale():
    q, k, v = make(2, 4, 5, 8), make(2, 4, 7, 8), make(2, 4, 7, 8)
    for scale in (0.3, 0.0, -0.5):
        compare(q, k, v, scale=scale)


def test_causal_biases():
    q, k, v = make(2, 4, 5, 8), make(2, 4, 7, 8), make(2, 4, 7, 8)
    for make_bias in (causal_upper_left, causal_lower_right):
        bias = make_bias(5, 7)
        torch.testing.assert_close(sdpa(q, k, v, bias), pytorch_sdpa(q, k, v, bias._materialize()), rtol=1e-5, atol=1e-5)


def test_any_strides():
    q, k, v = (make(2, 5, 8, 4).permute(0, 3, 1, 2) for _ in range(3))
    compare(q, k, v)
    compare(q.expand(2, 4, 5, 8), k[:, :1].expand(2, 4, 5, 8), v)


@pytest.mark.parametrize("dtype, bound", [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_sixteen_bits_with_masks(dtype, bound):
    q, k, v = make(2, 4, 5, 8, dtype=dtype), make(2, 4, 7, 8, dtype=dtype), make(2, 4, 7, 8, dtype=dtype)
    for mask in (None, boolean(5, 7), make(5, 7, dtype=dtype), make(5, 7)):
        o = sdpa(q, k, v, mask)
        wide = mask.double() if mask is not None and mask.is_floating_point() else mask
        expected = pytorch_sdpa(q.double(), k.double(), v.double(), wide)
        torch.testing.assert_close(o.double(), expected, rtol=bound, atol=bound)
        torch.testing.assert_close(o, pytorch_sdpa(q, k, v, mask), rtol=2 * bound, atol=2 * bound)


def test_dropout_is_of_pytorch_s_generator():
    q = make(2, 4, 64, 16)
    torch.manual_seed(4)
    a, b = sdpa(q, q, q, dropout_p=0.5), sdpa(q, q, q, dropout_p=0.5)
    torch.manual_seed(4)
    assert torch.equal(a, sdpa(q, q, q, dropout_p=0.5)) and not torch.equal(a, b)
    ones = torch.ones(2, 4, 512, 16)
    kept = sdpa(torch.zeros(2, 4, 512, 16), torch.zeros(2, 4, 512, 16), ones, dropout_p=0.25)
    assert abs(kept.mean() - 1.0) < 0.01 and kept.std() > 0.01


def test_autocast_as_pytorch():
    q, k, v = make(2, 4, 5, 8), make(2, 4, 7, 8).bfloat16(), make(2, 4, 7, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for mask in (None, torch.randn(5, 7), torch.randn(5, 7).half(), torch.randn(5, 7).bfloat16(), torch.randn(5, 7) > 0):
            want = pytorch_sdpa(q, k, v, mask)
            with flashomp.torch.enabled():
                flashomp.torch.counts(reset=True)
                served = F.scaled_dot_product_attention(q, k, v, mask)
                assert flashomp.torch.counts()["forward"] == 1
            for got in (sdpa(q, k, v, mask), served):
                assert got.dtype == want.dtype == torch.bfloat16
                torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


def test_compile_fullgraph():
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v, mask: sdpa(q, k, v, mask), fullgraph=True, backend="aot_eager")
    for rows in (5, 9, 13):
        q, k, v = (make(2, 4, rows, 8).requires_grad_() for _ in range(3))
        for mask in (None, boolean(rows, rows), boolean(2, 1, 1, rows), make(rows, rows)):
            torch.testing.assert_close(compiled(q, k, v, mask), sdpa(q, k, v, mask))


def test_export_and_fake_tensors():
    class Module(torch.nn.Module):
        def forward(self, q, mask):
            return F.scaled_dot_product_attention(q, q, q, mask)

    q, mask = make(2, 4, 6, 8), boolean(6, 6)
    with flashomp.torch.enabled():
        program = torch.export.export(Module(), (q, mask))
    assert any("flashomp.forward" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(q, mask), pytorch_sdpa(q, q, q, mask), rtol=1e-5, atol=1e-5)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        fake = torch.empty(2, 4, 5, 8)
        assert sdpa(fake, fake, fake).shape == (2, 4, 5, 8)
    assert sdpa(q.to("meta"), q.to("meta"), q.to("meta")).device.type == "meta"


def test_the_negative_bit():
    q = make(2, 4, 5, 8)
    negative = torch._neg_view(q)
    assert torch.equal(sdpa(negative, q, q), sdpa(-q, q, q))
    leaf = q.clone().requires_grad_()
    assert torch.equal(sdpa(negative, leaf, q), sdpa(-q, leaf, q))
    with pytest.raises(flashomp.Error, match="q has PyTorch's negative bit"):
        flashomp.attention(negative, q, q)


BAD = {
    "float64": lambda q: (q.double(),) * 3,
    "head_dim 577": lambda q: (make(1, 1, 4, 577), make(1, 1, 4, 577), make(1, 1, 4, 8)),
    "head_dim 513 of values": lambda q: (make(1, 1, 4, 520),) * 2 + (make(1, 1, 4, 513),),
    "integers": lambda q: (q.int(),) * 3,
    "mask of integers": lambda q: (q, q, q, torch.zeros(5, 5, dtype=torch.int32)),
    "mask that does not fit": lambda q: (q, q, q, torch.zeros(4, 4)),
    "dropout 1": lambda q: (q, q, q, None, 1.0),
    "mask and causal": lambda q: (q, q, q, torch.zeros(5, 5), 0.0, True),
    "one axis": lambda q: (q[0, 0, 0],) * 3,
    "mixed": lambda q: (q, q.half(), q),
    "no tensor": lambda q: (None, q, q),
    "dropout in words": lambda q: (q, q, q, None, "some"),
    "a list": lambda q: (q, q.tolist(), q),
    "scale in words": lambda q: (q, q, q, None, 0.0, False, "big"),
    "scale of infinity": lambda q: (q, q, q, None, 0.0, False, float("inf")),
    "keys and values": lambda q: (q, q, q[:, :, :4]),
}


@pytest.mark.parametrize("name", list(BAD))
def test_enabled_hands_over_what_flashomp_cannot_do(name):
    arguments = BAD[name](make(2, 4, 5, 8))

    def outcome(function):
        try:
            if len(arguments) > 6:
                return function(*arguments[:6], scale=arguments[6])
            return function(*arguments)
        except Exception as error:  # PyTorch's own error is what the user is to see
            return type(error), str(error)

    with pytest.raises(flashomp.Error, match="flashomp cannot do this call of sdpa: .*;"):
        sdpa(*arguments)
    expected = outcome(pytorch_sdpa)
    flashomp.torch.counts(reset=True)
    with flashomp.torch.enabled():
        got = outcome(F.scaled_dot_product_attention)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, equal_nan=True)
    else:
        assert got == expected
    counted = flashomp.torch.counts(reset=True)
    assert counted["forward"] == 0 and sum(counted["pytorch"].values()) == 1


def test_enable_and_disable():
    q = make(2, 4, 5, 8)
    flashomp.torch.counts(reset=True)
    assert F.scaled_dot_product_attention is pytorch_sdpa
    flashomp.torch.enable()
    flashomp.torch.enable()  # twice is once
    try:
        assert F.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"
        torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q), pytorch_sdpa(q, q, q))
        assert flashomp.torch.counts() == {"forward": 1, "backward": 0, "pytorch": {}}
        layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).train()
        layer(torch.randn(2, 6, 32)).sum().backward()
        assert flashomp.torch.counts()["backward"] == 1
    finally:
        flashomp.torch.disable()
    assert F.scaled_dot_product_attention is pytorch_sdpa
    flashomp.torch.disable()
    with flashomp.torch.enabled(), flashomp.torch.enabled():
        assert F.scaled_dot_product_attention is not pytorch_sdpa
    assert F.scaled_dot_product_attention is pytorch_sdpa


def test_cuda_is_served_where_the_build_has_it():
    if "cuda" in flashomp.info()["build"]["backends"]:
        with flashomp.torch.enabled(cuda=True):
            return
    for switch in (flashomp.torch.enable, lambda cuda: flashomp.torch.enabled(cuda=cuda).__enter__()):
        with pytest.raises(flashomp.Error, match="cuda was True, but this build of flashomp has no CUDA backend"):
            switch(cuda=True)
    assert F.scaled_dot_product_attention is pytorch_sdpa


def test_enabled_serves_causal_biases():
    q, bias = make(2, 4, 5, 8), causal_lower_right(5, 5)
    with flashomp.torch.enabled():
        torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q, bias), pytorch_sdpa(q, q, q, is_causal=True))
        wide = F.scaled_dot_product_attention(q.double(), q.double(), q.double(), causal_upper_left(5, 5))
    torch.testing.assert_close(wide, pytorch_sdpa(q.double(), q.double(), q.double(), is_causal=True))


def test_enabled_in_several_threads():
    q = make(1, 2, 5, 8)
    wrong = []

    def work():
        for _ in range(50):
            with flashomp.torch.enabled():
                if F.scaled_dot_product_attention is pytorch_sdpa:
                    wrong.append(1)
                F.scaled_dot_product_attention(q, q, q)

    flashomp.torch.counts(reset=True)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and F.scaled_dot_product_attention is pytorch_sdpa
    assert flashomp.torch.counts()["forward"] == 200


def test_enabled_under_compile():
    """A function that was compiled before follows the switch."""
    torch._dynamo.reset()
    q = make(2, 4, 5, 8)
    compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), fullgraph=True,
                             backend="aot_eager")
    for on in (False, True, False, True):
        flashomp.torch.counts(reset=True)
        if on:
            with flashomp.torch.enabled():
                got = compiled(q)
        else:
            got = compiled(q)
        torch.testing.assert_close(got, pytorch_sdpa(q, q, q, is_causal=True))
        assert flashomp.torch.counts()["forward"] == int(on)


def test_results_lie_in_memory_as_pytorch_s_do():
    for shape in ((2, 4, 6, 8), (1, 4, 64, 64), (2, 6, 8)):
        for transposed in (False, True):
            q, k, v = (torch.randn(shape) for _ in range(3))
            if transposed and len(shape) == 4:
                q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
            expected = F.scaled_dot_product_attention(q, k, v)
            for grad in (False, True):
                o = sdpa(q.requires_grad_(grad), k, v)
                assert o.stride() == expected.stride()
                q.requires_grad_(False)


def test_who_asks_for_the_math_kernel_gets_it():
    q = torch.randn(1, 2, 3, 8, requires_grad=True)
    with flashomp.torch.enabled(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        (first,) = torch.autograd.grad(F.scaled_dot_product_attention(q, q, q).sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), q)
    assert second.abs().max() > 0


def test_what_pytorch_does_alone_goes_to_pytorch():
    none = torch.randn(2, 0, 6, 8)
    many = torch.randn(2**20 + 1, 1, 1)
    with flashomp.torch.enabled():
        assert F.scaled_dot_product_attention(none, none, none).shape == none.shape
        assert F.scaled_dot_product_attention(many, many, many).shape == many.shape
        with pytest.raises(TypeError):
            F.scaled_dot_product_attention(many, many, many, is_causal=None)


def test_dropout_under_another_default_device():
    q = torch.randn(1, 2, 3, 8)
    with torch.device("meta"):
        assert sdpa(q, q, q, dropout_p=0.5).device.type == "cpu"


def scripted(q: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_a_script_has_pytorch_s_operator():
    q = torch.randn(1, 2, 3, 8)
    flashomp.torch.counts(reset=True)
    with flashomp.torch.enabled():
        script = torch.jit.script(scripted)
        torch.testing.assert_close(script(q), pytorch_sdpa(q, q, q, is_causal=True))
        assert "aten::scaled_dot_product_attention" in str(script.graph)
        torch.testing.assert_close(torch.jit.trace(scripted, q)(q), pytorch_sdpa(q, q, q, is_causal=True))
    torch.testing.assert_close(script(q), pytorch_sdpa(q, q, q, is_causal=True))


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = F.scaled_dot_product_attention


LOAD = """
import pickle, sys, torch
import torch.nn.functional as F
ours = F.scaled_dot_product_attention
attend = pickle.load(sys.stdin.buffer)
q = torch.ones(1, 2, 3, 8)
torch.testing.assert_close(attend(q, q, q), ours(q, q, q))
import flashomp.torch
assert flashomp.torch.counts()["forward"] == 0
with flashomp.torch.enabled():
    assert F.scaled_dot_product_attention is attend
    attend(q, q, q)
assert flashomp.torch.counts()["forward"] == 1
"""


def test_the_served_function_is_pickled():
    """Also in an object that holds it, and after the switch is off; another process has its own switch."""
    with flashomp.torch.enabled():
        held = Holder()
        on = pickle.dumps(held.attend)
        assert copy.deepcopy(held).attend is held.attend is F.scaled_dot_product_attention
        buffer = io.BytesIO()
        torch.save(held, buffer)
    assert pickle.dumps(held.attend) == on and pickle.loads(on) is held.attend
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False).attend is held.attend
    subprocess.run([sys.executable, "-c", LOAD], input=on, check=True, timeout=120)


def test_what_somebody_else_put_in_place_comes_back(monkeypatch):
    q = torch.randn(1, 2, 3, 8)
    calls = []

    def theirs(*arguments, **options):
        calls.append(arguments)
        return pytorch_sdpa(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", theirs)
    flashomp.torch.counts(reset=True)
    with flashomp.torch.enabled(), flashomp.torch.enabled():
        F.scaled_dot_product_attention(q, q, q)
        kept = F.scaled_dot_product_attention
    assert F.scaled_dot_product_attention is theirs and not calls
    kept(q, q, q)  # flashomp is off
    assert flashomp.torch.counts()["forward"] == 1
    with flashomp.torch.enabled():
        monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **o: kept(*a, **o))  # a wrapper of the served one
        theirs_now = F.scaled_dot_product_attention
    assert F.scaled_dot_product_attention is theirs_now
    theirs_now(q, q, q)
    assert flashomp.torch.counts()["forward"] == 1
    with flashomp.torch.enabled():
        F.scaled_dot_product_attention(q.double(), q.double(), q.double())  # no circle
    assert F.scaled_dot_product_attention is theirs_now


def test_a_kept_name_is_pytorch_s_again():
    q = torch.randn(1, 2, 3, 8)
    with flashomp.torch.enabled():
        kept = F.scaled_dot_product_attention
    flashomp.torch.counts(reset=True)
    kept(q, q, q)
    assert flashomp.torch.counts()["forward"] == 0
