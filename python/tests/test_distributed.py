"""flashomp.torch.distributed on 1 to 4 processes against one: every scheme, option and layout, and what goes wrong."""

import numpy as np
import pytest
from conftest import assert_close, reference

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)
import flashomp  # noqa: E402
import flashomp.torch  # noqa: E402
import flashomp.torch.distributed as ours  # noqa: E402
from ranks import Ranks  # noqa: E402


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pool = Ranks(4, tmp_path_factory.mktemp("ranks") / "store")
    yield pool
    pool.close()


def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def case(name, rows, columns, heads, dtype=torch.float32):
    """The options of a case, as one process takes them."""
    padding = torch.ones(2, columns, dtype=torch.bool)
    padding[0, columns // 2:columns // 2 + 9] = False
    return {
        "plain": {},
        "causal": {"causal": "bottom_right", "scale": 0.3},
        "top left": {"causal": "top_left", "softcap": 2.0},
        "window": {"window": (9, 4)},
        "narrow": {"window": (3, 0), "causal": "bottom_right", "sink": draw(5, heads)},
        "alibi": {"alibi_slopes": draw(6, 2, heads).abs(), "causal": "bottom_right"},
        "bias": {"bias": draw(7, 2, heads, rows, columns, dtype=dtype), "causal": "bottom_right"},
        "bias of rows": {"bias": draw(8, 1, 1, rows, 1)},
        "bias of keys": {"bias": draw(9, 2, heads, 1, columns), "sink": draw(5, heads)},
        "padding": {"key_padding_mask": padding, "sink": draw(5, heads), "window": (20, 20)},
        "mask": {"mask": draw(10, 1, heads, rows, columns) > -0.5},
        "mask of keys": {"mask": draw(11, 2, 1, 1, columns) > 0.0},
        "dropout": {"dropout": 0.3, "seed": (5, 2**64 - 2), "causal": "bottom_right"},
    }[name]


SCHEMES = {
    "ring": {"scheme": "ring"},
    "zigzag": {"scheme": "ring", "layout": "zigzag"},
    "gather": {"scheme": "all_gather"},
    "zigzag gather": {"scheme": "all_gather", "layout": "zigzag"},
    "ulysses": {"scheme": "ulysses"},
    "zigzag ulysses": {"scheme": "ulysses", "layout": "zigzag"},
    "grid": {"scheme": "grid", "heads_ranks": 2},
    "zigzag grid": {"scheme": "grid", "heads_ranks": 2, "layout": "zigzag"},
}


def leaf(x):
    return x.detach().clone().requires_grad_()


def run(attend, q, k, v, dout, options):
    """o, lse and the gradients of a call, by name."""
    q, k, v = leaf(q), leaf(k), leaf(v)
    options = {name: leaf(x) if name in ("bias", "sink") else x for name, x in options.items()}
    o, lse = attend(q, k, v, return_lse=True, **options)
    o.backward(dout)
    results = {"o": o.detach(), "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    results.update({f"d{name}": options[name].grad for name in ("bias", "sink") if name in options})
    return results


def run_sharded(group, q, k, v, dout, options, sharding):
    """The same of this rank's shards, put together again."""
    layout = sharding.get("layout", "contiguous")
    cut = lambda x, dim=1: ours.shard(x, dim, layout, group)  # noqa: E731
    given = {name: cut(x, 2) if name in ("bias", "mask") and x.size(2) > 1 else x for name, x in options.items()}
    results = run(lambda *qkv, **words: ours.attention(*qkv, group=group, **sharding, **words), cut(q), cut(k), cut(v),
                  cut(dout), given)
    for name, x in results.items():
        if name == "dsink" or (name == "dbias" and options["bias"].size(2) == 1):
            dist.all_reduce(x, group=group)
        else:
            results[name] = ours.unshard(x, 2 if name in ("lse", "dbias") else 1, layout, group)
    return results


def agrees(group, name, schemes, rows, columns, heads_kv):
    heads = 4
    q, dout = draw(1, 2, rows, heads, 16), draw(2, 2, rows, heads, 8)
    k, v = draw(3, 2, columns, heads_kv, 16), draw(4, 2, columns, heads_kv, 8)
    options = case(name, rows, columns, heads)
    expected = run(flashomp.torch.attention, q, k, v, dout, options)
    for scheme in schemes:
        got = run_sharded(group, q, k, v, dout, options, SCHEMES[scheme])
        assert got.keys() == expected.keys()
        for what in expected:
            try:
                assert_close(got[what], expected[what], 2e-6 if what in ("o", "lse") else 1e-5)
            except AssertionError as error:
                raise AssertionError(f"{what} of {name} by {scheme}") from error


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["plain", "causal", "narrow"])
def test_ranks_have_the_results_of_one_process(ranks, size, name):
    schemes = [scheme for scheme in SCHEMES if size % 2 == 0 or "grid" not in scheme]
    ranks(size, agrees, name, schemes, 61, 83, 2)
