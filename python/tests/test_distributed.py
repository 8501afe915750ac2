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


@pytest.mark.parametrize("name", ["top left", "window", "alibi", "bias", "bias of rows", "bias of keys", "padding", "mask",
                                  "mask of keys"])
def test_every_option(ranks, name):
    ranks(4, agrees, name, ["zigzag", "gather", "zigzag grid", "ulysses"], 37, 53, 4)


def test_dropout_draws_the_mask_of_one_process(ranks):
    ranks(3, agrees, "dropout", ["ring", "zigzag", "gather", "zigzag gather"], 61, 83, 2)


def uneven(group, rows, columns, scheme, causal):
    """Contiguous shards of any lengths, none at all among them."""
    rank, ends = dist.get_rank(group), lambda counts: np.concatenate([[0], np.cumsum(counts)]).tolist()
    here_q, here_k = (slice(*ends(counts)[rank:rank + 2]) for counts in (rows, columns))
    q, dout = draw(1, 1, sum(rows), 4, 8), draw(2, 1, sum(rows), 4, 8)
    k, v = draw(3, 1, sum(columns), 2, 8), draw(4, 1, sum(columns), 2, 8)
    options = {"causal": causal, "sink": draw(5, 4)}
    expected = run(flashomp.torch.attention, q, k, v, dout, options)
    got = run(lambda *qkv, **words: ours.attention(*qkv, group=group, **SCHEMES[scheme], **words), q[:, here_q], k[:, here_k],
              v[:, here_k], dout[:, here_q], options)
    for what, here, axis in (("o", here_q, 1), ("lse", here_q, 2), ("dq", here_q, 1), ("dk", here_k, 1), ("dv", here_k, 1)):
        assert_close(got[what], expected[what][(slice(None),) * axis + (here,)], 1e-5)


@pytest.mark.parametrize("scheme", ["ring", "gather", "grid"])
@pytest.mark.parametrize("rows, columns", [((0, 10, 1, 26), (5, 0, 40, 3)), ((7, 0, 0, 0), (0, 0, 0, 9)), ((0,) * 4, (1,) * 4)])
def test_shards_of_any_lengths(ranks, rows, columns, scheme):
    ranks(4, uneven, rows, columns, scheme, "bottom_right")
    ranks(4, uneven, rows, columns, scheme, "top_left")


@pytest.mark.parametrize("rows, columns", [(3, 2), (1, 9), (9, 1)])
def test_fewer_rows_than_ranks(ranks, rows, columns):
    ranks(4, agrees, "causal", list(SCHEMES), rows, columns, 1)


def heads(group, heads_q, heads_kv, scheme):
    q, dout = draw(1, 2, 21, heads_q, 8), draw(2, 2, 21, heads_q, 12)
    k, v = draw(3, 2, 34, heads_kv, 8), draw(4, 2, 34, heads_kv, 12)
    options = {"alibi_slopes": draw(5, heads_q).abs(), "bias": draw(6, 1, heads_q, 21, 34), "sink": draw(7, heads_q)}
    expected = run(flashomp.torch.attention, q, k, v, dout, options)
    got = run_sharded(group, q, k, v, dout, options, SCHEMES[scheme])
    for what in expected:
        assert_close(got[what], expected[what], 1e-5)


@pytest.mark.parametrize("heads_q, heads_kv", [(6, 3), (6, 2), (5, 1), (7, 7), (6, 6)])
def test_heads_that_ranks_cannot_share_out_evenly(ranks, heads_q, heads_kv):
    """Ranges of heads cut through groups, and key heads go to several ranks."""
    ranks(4, heads, heads_q, heads_kv, "ulysses")
    ranks(4, heads, heads_q, heads_kv, "zigzag grid")


def sixteen_bits(group, dtype, scheme):
    q, dout = draw(1, 2, 61, 4, 16, dtype=dtype), draw(2, 2, 61, 4, 16, dtype=dtype)
    k, v = draw(3, 2, 83, 2, 16, dtype=dtype), draw(4, 2, 83, 2, 16, dtype=dtype)
    options = {"causal": "bottom_right"}
    exact = reference(*(x.float().numpy() for x in (q, k, v, dout)), **options)
    alone = run(flashomp.torch.attention, q, k, v, dout, options)
    got = run_sharded(group, q, k, v, dout, options, SCHEMES[scheme])
    for what in ("o", "dq", "dk", "dv"):
        assert got[what].dtype == dtype
        error, error_alone = (np.abs(x[what].double().numpy() - exact[what]).max() for x in (got, alone))
        rounding = torch.finfo(dtype).eps / 2 * np.abs(exact[what]).max()
        assert error <= error_alone + rounding, f"{what}: {error} against {error_alone} of one process"
    assert_close(got["lse"], exact["lse"], 1e-4)


@pytest.mark.parametrize("scheme", ["zigzag", "gather", "grid"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_once(ranks, dtype, scheme):
    """The error is at most that of one process and one rounding."""
    ranks(4, sixteen_bits, dtype, scheme)


def packed(group, scheme, local):
    starts_q, starts_k = [0, 13, 13, 47, 60, 60], [0, 20, 25, 52, 52, 71]
    layout, ranks, rank = SCHEMES[scheme].get("layout", "contiguous"), dist.get_world_size(group), dist.get_rank(group)
    q, dout = draw(1, 60, 4, 8), draw(2, 60, 4, 8)
    k, v = draw(3, 71, 2, 8), draw(4, 71, 2, 8)
    as_tensor = lambda starts: torch.tensor(starts, dtype=torch.int32)  # noqa: E731
    options = {"causal": "bottom_right", "window": (11, 2), "alibi_slopes": draw(5, 5, 4).abs(), "sink": draw(6, 4)}
    expected = run(flashomp.torch.attention, q, k, v, dout,
                   {**options, "cu_seqlens_q": as_tensor(starts_q), "cu_seqlens_k": as_tensor(starts_k)})

    def rows_of(starts):
        """This rank's rows of the packed tensor, and its own boundaries."""
        sequences = [range(a, b) for a, b in zip(starts[:-1], starts[1:])] if local else [range(starts[-1])]
        rows, ends = [], [0]
        for sequence in sequences:
            rows.append(ours.shard(torch.tensor(sequence, dtype=torch.int64), 0, layout, group))
            ends.append(ends[-1] + len(rows[-1]))
        return torch.cat(rows), as_tensor(ends if local else starts)

    (rows, ours_q), (columns, ours_k) = rows_of(starts_q), rows_of(starts_k)
    given = {**options, "cu_seqlens_q": ours_q, "cu_seqlens_k": ours_k, "cu_seqlens_are": "local" if local else "whole"}
    got = run(lambda *qkv, **words: ours.attention(*qkv, group=group, **SCHEMES[scheme], **words), q[rows], k[columns],
              v[columns], dout[rows], given)
    dist.all_reduce(got["dsink"], group=group)
    assert_close(got["dsink"], expected["dsink"], 1e-5)
    for what, here in (("o", rows), ("dq", rows), ("dk", columns), ("dv", columns)):
        assert_close(got[what], expected[what][here], 1e-5)
    assert_close(got["lse"], expected["lse"][:, rows], 2e-6)


@pytest.mark.parametrize("local", [False, True], ids=["whole", "local"])
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_packed_sequences(ranks, scheme, local):
    ranks(4, packed, scheme, local)


def same_as_flash_attn(group, size):
    from flashomp import flash_attn

    qkv, dout = draw(1, 2, 41, 3, 4, 8), draw(2, 2, 41, 4, 8)
    starts, flat, dout_flat = torch.tensor([0, 17, 41], dtype=torch.int32), draw(3, 41, 3, 4, 8), draw(4, 41, 4, 8)
    words = {"causal": True, "window_size": (9, -1), "alibi_slopes": draw(5, 4).abs(), "softmax_scale": 0.3}
    for prefix, layout in (("ring_flash_attn_", "contiguous"), ("zigzag_ring_flash_attn_", "zigzag")):
        cut = lambda x: ours.shard(x, 1, layout, group)  # noqa: E731
        of_sequence = [ours.shard(torch.arange(a, b), 0, layout, group) for a, b in ((0, 17), (17, 41))]
        rows = torch.cat(of_sequence)
        local = torch.tensor([0, len(of_sequence[0]), len(rows)], dtype=torch.int32)
        for form in ("", "kvpacked_", "qkvpacked_"):
            split = lambda x: {"": x.unbind(-3), "kvpacked_": (x.select(-3, 0), x.narrow(-3, 1, 2)),  # noqa: E731
                               "qkvpacked_": (x,)}[form]
            whole = leaf(qkv)
            out, lse, _ = getattr(flash_attn, f"flash_attn_{form}func")(*split(whole), return_attn_probs=True, **words)
            out.backward(dout)
            here = leaf(cut(qkv))
            o, lse_here, nothing = getattr(ours, f"{prefix}{form}func")(*split(here), group=group, return_attn_probs=True,
                                                                        **words)
            o.backward(cut(dout))
            assert nothing is None
            assert_close(o.detach(), cut(out.detach()), 1e-5)
            assert_close(lse_here, ours.shard(lse, 2, layout, group), 1e-5)
            assert_close(here.grad, cut(whole.grad), 1e-5)

            whole = leaf(flat)
            counts = (starts, starts, 24, 24) if form != "qkvpacked_" else (starts, 24)
            out = getattr(flash_attn, f"flash_attn_varlen_{form}func")(*split(whole), *counts, **words)
            out.backward(dout_flat)
            here = leaf(flat[rows])
            o = getattr(ours, f"{prefix}varlen_{form}func")(*split(here), local, 24, group=group, **words)
            o.backward(dout_flat[rows])
            assert_close(o.detach(), out.detach()[rows], 1e-5)
            assert_close(here.grad, whole.grad[rows], 1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_ring_flash_attention_s_functions(ranks, size):
    ranks(size, same_as_flash_attn, size)
