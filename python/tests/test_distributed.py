"""flashomp.torch.distributed on 1 to 4 processes against one: every scheme, option and layout, and what goes wrong."""

import random
from unittest import mock

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
from flashomp.torch.distributed import _function  # noqa: E402
from flashomp.torch.distributed._output import stand_in  # noqa: E402
from ranks import Ranks, home  # noqa: E402


def first_call(group):
    q, k, v = (torch.ones(1, 1, 1, 1, device=home()) for _ in range(3))
    assert ours.attention(q, k, v) == 1  # without a group: all processes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pool = Ranks(4, tmp_path_factory.mktemp("ranks") / "store")
    pool(4, first_call)  # all load what they need at the same time
    yield pool
    pool.close()


def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(home(), dtype)


def case(name, rows, columns, heads, dtype=torch.float32):
    """The options of a case, as one process takes them."""
    padding = torch.ones(2, columns, dtype=torch.bool, device=home())
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
        "padding": {"key_padding_mask": padding.t().contiguous().t(), "sink": draw(5, heads), "window": (20, 20)},
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
    ranks(3, agrees, "dropout", ["ring", "zigzag", "gather", "zigzag gather", "ulysses", "zigzag ulysses"], 61, 83, 2)
    ranks(4, agrees, "dropout", ["grid", "zigzag grid", "ulysses"], 61, 83, 1)


def sink_without_gradient(group, scheme):
    """Large logits, which calls that see whole rows repair: the sink is one of them, whoever asks for dsink."""
    q, k, v, dout = draw(1, 1, 37, 4, 16), 10 * draw(2, 1, 37, 2, 16), draw(3, 1, 37, 2, 16), draw(4, 1, 37, 4, 16)
    sink = torch.full((4,), 30.0, device=home())

    def gradients(attend, *tensors):
        *qkv, dout = tensors
        qkv = [leaf(x) for x in qkv]
        attend(*qkv, sink=sink).backward(dout)
        return [x.grad for x in qkv]

    expected = gradients(flashomp.torch.attention, q, k, v, dout)
    got = gradients(lambda *qkv, **words: ours.attention(*qkv, group=group, **SCHEMES[scheme], **words),
                    *(ours.shard(x, 1, "contiguous", group) for x in (q, k, v, dout)))
    for of_rank, exact in zip(got, expected):
        assert_close(ours.unshard(of_rank, 1, "contiguous", group), exact, 1e-4)


@pytest.mark.parametrize("scheme", ["ring", "gather", "ulysses"])
def test_a_sink_may_have_no_gradient(ranks, scheme):
    ranks(2, sink_without_gradient, scheme)


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
@pytest.mark.parametrize("rows, columns", [((0, 10, 1, 26), (5, 0, 40, 3)), ((7, 0, 0, 0), (0, 0, 0, 9)),
                                           ((0, 0, 0, 0), (1, 1, 1, 1))])
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


def sixteen_bits(group, dtype, scheme, mean):
    q, dout = draw(1, 2, 61, 4, 16, dtype=dtype), draw(2, 2, 61, 4, 16, dtype=dtype)
    k, v = draw(3, 2, 83, 2, 16, dtype=dtype), (draw(4, 2, 83, 2, 16) + mean).to(dtype)
    options = {"causal": "bottom_right"}
    exact = reference(*(x.float().cpu().numpy() for x in (q, k, v, dout)), **options)
    alone = run(flashomp.torch.attention, q, k, v, dout, options)
    got = run_sharded(group, q, k, v, dout, options, SCHEMES[scheme])
    for what in ("o", "dq", "dk", "dv"):
        assert got[what].dtype == dtype
        error, error_alone = (np.abs(x[what].double().cpu().numpy() - exact[what]).max() for x in (got, alone))
        rounding = torch.finfo(dtype).eps / 2 * np.abs(exact[what]).max()
        assert error <= error_alone + rounding, f"{what}: {error} against {error_alone} of one process"
    assert_close(got["lse"], exact["lse"], 1e-4)


@pytest.mark.parametrize("scheme", ["zigzag", "gather", "grid"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_rounded_once(ranks, dtype, scheme):
    """The error is at most that of one process and one rounding, also where values have a mean, and gradients are
    differences of large numbers."""
    ranks(4, sixteen_bits, dtype, scheme, 0.0)
    ranks(4, sixteen_bits, dtype, scheme, 4.0)


def sixteen_bits_of_o(group, dtype, scheme, mean):
    """As on a GPU, whose backward reads an o of 16 bits."""
    with mock.patch.object(_function, "reads_float32", lambda device: False):
        sixteen_bits(group, dtype, scheme, mean)


@pytest.mark.parametrize("scheme", ["zigzag", "gather", "grid"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_stands_in_for_o(ranks, dtype, scheme):
    ranks(4, sixteen_bits_of_o, dtype, scheme, 0.0)
    ranks(4, sixteen_bits_of_o, dtype, scheme, 4.0)


@pytest.mark.parametrize("head_dim_v", [3, 16, 128])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_stands_in_for_o_has_its_products_with_dout(dtype, head_dim_v):
    o, dout = draw(1, 2, 61, 4, head_dim_v) + 4, draw(2, 2, 61, 4, head_dim_v, dtype=dtype)
    dout[0, :3], dout[0, 3:6, :, 2:] = 0, 0
    o[1, 0], o[1, 1], o[1, 2], dout[1, 2] = 20000, float("nan"), 64992, dout[1, 2].abs()
    made = stand_in(o, dout)
    assert made.dtype == dtype
    products, terms = dout.double() * o, (dout.double() * o).abs().sum(-1)
    error = ((dout.double() * made).sum(-1) - products.sum(-1)).abs()
    assert error[1, 1].isnan().all()
    error[1, 1] = 0
    assert (error[0, 3:6] <= 2**-15 * terms[0, 3:6]).all(), "two elements carry 16 bits"
    error[0, 3:6] = 0
    if dtype == torch.float16:
        assert (made[1, 2] == 64992).all(), "three in one are beyond float16's end"
        error[1, 2] = 0
    assert (error <= 2**-22 * terms.nan_to_num()).all()


def random_case(group, seed):
    """Shapes, options and a scheme that a seed draws; keys that padding hides may hold anything."""
    choose, size = random.Random(seed), dist.get_world_size(group)
    heads_kv, batch = choose.choice([1, 2, 3]), choose.choice([1, 2])
    heads, depth, depth_v = heads_kv * choose.choice([1, 2, 3]), choose.choice([4, 8, 17]), choose.choice([4, 8, 9])
    rows, columns = choose.choice([1, 2, 7, 30, 64, 129]), choose.choice([1, 3, 8, 33, 70, 130])
    q, dout = draw(seed, batch, rows, heads, depth), draw(seed + 1, batch, rows, heads, depth_v)
    k, v = draw(seed + 2, batch, columns, heads_kv, depth), draw(seed + 3, batch, columns, heads_kv, depth_v)
    padding = draw(seed + 4, batch, columns) > -0.5
    k[~padding], v[~padding] = float("nan"), float("inf")
    extents = lambda: [choose.choice([1, extent]) for extent in (batch, heads, rows, columns)]  # noqa: E731
    options = {
        "causal": choose.choice(["none", "top_left", "bottom_right"]), "softcap": choose.choice([0.0, 2.5]),
        "window": (choose.choice([-1, -1, 0, 3, 40]), choose.choice([-1, -1, 0, 5, 50])), "key_padding_mask": padding,
        "alibi_slopes": draw(seed + 5, batch, heads).abs(), "bias": draw(seed + 6, *extents()),
        "mask": draw(seed + 7, *extents()) > -0.5, "sink": draw(seed + 8, heads),
    }
    options = {name: x for name, x in options.items() if name == "key_padding_mask" or choose.random() < 0.5}
    if choose.random() < 0.5:
        options.update(dropout=0.3, seed=(seed, 1))
    scheme = choose.choice([name for name in SCHEMES if not ("grid" in name and (size % 2 or heads < 2))
                            and not ("ulysses" in name and heads < size)])
    expected = run(flashomp.torch.attention, q, k, v, dout, options)
    got = run_sharded(group, q, k, v, dout, options, SCHEMES[scheme])
    for what in expected:
        assert_close(got[what], expected[what], 2e-5)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_random_cases(ranks, size):
    for seed in range(6):
        ranks(size, random_case, 1000 * size + 10 * seed)


def packed(group, scheme, local, with_bias):
    starts_q, starts_k = [0, 13, 13, 47, 60, 60], [0, 20, 25, 52, 52, 71]
    layout, ranks, rank = SCHEMES[scheme].get("layout", "contiguous"), dist.get_world_size(group), dist.get_rank(group)
    q, dout = draw(1, 60, 4, 8), draw(2, 60, 4, 8)
    k, v = draw(3, 71, 2, 8), draw(4, 71, 2, 8)
    as_tensor = lambda starts: torch.tensor(starts, dtype=torch.int32, device=home())  # noqa: E731
    options = {"causal": "bottom_right", "window": (11, 2), "alibi_slopes": draw(5, 5, 4).abs(), "sink": draw(6, 4)}
    if with_bias:  # of the longest sequences, 34 queries and 27 keys
        options = {"bias": draw(7, 5, 4, 34, 27), "mask": draw(8, 1, 1, 34, 27) > -1, "key_padding_mask": draw(9, 5, 27) > -1,
                   "dropout": 0.3, "seed": (5, 7)}
    expected = run(flashomp.torch.attention, q, k, v, dout,
                   {**options, "cu_seqlens_q": as_tensor(starts_q), "cu_seqlens_k": as_tensor(starts_k)})

    def rows_of(starts):
        """This rank's rows of the packed tensor, and its own boundaries."""
        sequences = [range(a, b) for a, b in zip(starts[:-1], starts[1:])] if local else [range(starts[-1])]
        rows, ends = [], [0]
        for sequence in sequences:
            rows.append(ours.shard(torch.tensor(sequence, dtype=torch.int64, device=home()), 0, layout, group))
            ends.append(ends[-1] + len(rows[-1]))
        return torch.cat(rows), as_tensor(ends if local else starts)

    (rows, ours_q), (columns, ours_k) = rows_of(starts_q), rows_of(starts_k)
    given = {**options, "cu_seqlens_q": ours_q, "cu_seqlens_k": ours_k, "cu_seqlens_are": "local" if local else "whole"}
    got = run(lambda *qkv, **words: ours.attention(*qkv, group=group, **SCHEMES[scheme], **words), q[rows], k[columns],
              v[columns], dout[rows], given)
    for parameter in {"dsink", "dbias"} & got.keys():
        dist.all_reduce(got[parameter], group=group)
        assert_close(got[parameter], expected[parameter], 1e-5)
    for what, here in (("o", rows), ("dq", rows), ("dk", columns), ("dv", columns)):
        assert_close(got[what], expected[what][here], 1e-5)
    assert_close(got["lse"], expected["lse"][:, rows], 2e-6)


@pytest.mark.parametrize("local", [False, True], ids=["whole", "local"])
@pytest.mark.parametrize("scheme", list(SCHEMES))
def test_packed_sequences(ranks, scheme, local):
    ranks(4, packed, scheme, local, False)
    ranks(4, packed, scheme, local, True)


def same_as_flash_attn(group):
    from flashomp import flash_attn

    qkv, dout = draw(1, 2, 41, 3, 4, 8), draw(2, 2, 41, 4, 8)
    starts, flat, dout_flat = torch.tensor([0, 17, 41], dtype=torch.int32, device=home()), draw(3, 41, 3, 4, 8), draw(4, 41, 4, 8)
    words = {"causal": True, "window_size": (9, -1), "alibi_slopes": draw(5, 4).abs(), "softmax_scale": 0.3}
    for prefix, layout in (("ring_flash_attn_", "contiguous"), ("zigzag_ring_flash_attn_", "zigzag")):
        cut = lambda x: ours.shard(x, 1, layout, group)  # noqa: E731
        of_sequence = [ours.shard(torch.arange(a, b, device=home()), 0, layout, group) for a, b in ((0, 17), (17, 41))]
        rows = torch.cat(of_sequence)
        local = torch.tensor([0, len(of_sequence[0]), len(rows)], dtype=torch.int32, device=home())
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
    ranks(size, same_as_flash_attn)


def raises_everywhere(group, kind, words, changes, common):
    """A rank's arguments are bad: all ranks raise the same, and the next call works."""
    rank = dist.get_rank(group)
    given = {"q": draw(1, 1, 6, 4, 8), "k": draw(2, 1, 5, 2, 8), "v": draw(3, 1, 5, 2, 8), "group": group}
    good = dict(given)
    given.update({**common, **(changes if rank == 1 else {})})
    try:
        ours.attention(**given)
    except Exception as error:  # noqa: BLE001
        assert type(error) is kind and words in str(error) and "\n" not in str(error) and str(error).endswith("."), error
    else:
        raise AssertionError("nothing was raised")
    ours.attention(**good)


T = torch.zeros
ON_ONE_RANK = {
    "no tensor": (TypeError, "rank 1: q was 3.0; it must be a tensor", {"q": 3.0}),
    "what the library refuses": (flashomp.Error, "rank 1: k has head_dim 7 but q has 8",
                                 {"k": T(1, 5, 2, 7), "v": T(1, 5, 2, 7)}),
    "dtype": (flashomp.Error, "rank 1: ", {"q": T(1, 6, 4, 8, dtype=torch.float64)}),
    "rows of v": (flashomp.Error, "rank 1: v has 4 rows but k has 5", {"v": T(1, 4, 2, 8)}),
    "axes": (flashomp.Error, "rank 1: q has 3 axes", {"q": T(6, 4, 8)}),
    "other dtypes": (flashomp.Error, "q's dtype is 'torch.bfloat16' on rank 1 but 'torch.float32' on rank 0",
                     {name: T(1, 5, 2, 8).bfloat16() if name != "q" else T(1, 6, 4, 8).bfloat16() for name in "qkv"}),
    "other heads": (flashomp.Error, "k's heads and head_dim is [4, 8] on rank 1 but [2, 8] on rank 0",
                    {"k": T(1, 5, 4, 8), "v": T(1, 5, 4, 8)}),
    "another option": (flashomp.Error, "causal is 'top_left' on rank 1 but 'none' on rank 0", {"causal": "top_left"}),
    "an option that others lack": (flashomp.Error, "sink is ['torch.float32', 4] on rank 1 but None on rank 0",
                                   {"sink": T(4)}),
    "another layout": (flashomp.Error, "layout is 'zigzag' on rank 1 but 'contiguous' on rank 0", {"layout": "zigzag"}),
    "another scheme": (flashomp.Error, "scheme is 'all_gather' on rank 1", {"scheme": "all_gather"}),
    "zigzag": (flashomp.Error, "q has 6 rows on rank 0; of 19 rows over 3 ranks a zigzag layout has 7 there",
               {"layout": "zigzag", "q": T(1, 7, 4, 8)}),
    "no such scheme": (flashomp.Error, "rank 1: scheme was 'star'; allowed are", {"scheme": "star"}),
    "a gradient": (flashomp.Error, "require gradients is ['q'] on rank 1 but [] on rank 0",
                   {"q": T(1, 6, 4, 8).requires_grad_()}),
    "seed": (flashomp.Error, "rank 1: seed was 3; it must be (seed, offset)", {"dropout": 0.5, "seed": 3}),
}
ON_ALL_RANKS = {
    "grid": ("heads_ranks was 2; with scheme 'grid' it must be a divisor of the 3 ranks",
             {"scheme": "grid", "heads_ranks": 2}),
    "heads_ranks": ("heads_ranks was 3; only scheme 'grid' takes it", {"heads_ranks": 3}),
    "few heads": ("q has 2 heads, which 3 ranks cannot share out", {"scheme": "ulysses", "q": T(1, 6, 2, 8)}),
    "keys of a bias": ("bias has 5 keys; it must have 1 or 15, those of all ranks", {"bias": T(1, 1, 6, 5)}),
    "rows of a mask": ("mask has 2 rows on rank 0 but q has 6 there", {"mask": T(1, 1, 2, 15, dtype=torch.bool)}),
    "padding": ("key_padding_mask has 5 keys; it must have 15", {"key_padding_mask": T(1, 5, dtype=torch.bool)}),
    "bias of packed": ("bias has 3 rows; it must have 1 or 18, those of the longest sequence",
                       {**{name: T(6, 2, 8) for name in "qkv"}, "bias": T(1, 1, 3, 1),
                        **{f"cu_seqlens_{name}": torch.tensor([0, 6], dtype=torch.int32) for name in "qk"},
                        "cu_seqlens_are": "local"}),
    "padding of packed": ("key_padding_mask has 7 keys; it must have 18, those of the longest sequence",
                          {**{name: T(6, 2, 8) for name in "qkv"}, "key_padding_mask": T(1, 7, dtype=torch.bool),
                           **{f"cu_seqlens_{name}": torch.tensor([0, 18], dtype=torch.int32) for name in "qk"}}),
    "slopes of packed": ("alibi_slopes has 2 sequences but cu_seqlens_q has 1; they must be equal",
                         {**{name: T(6, 2, 8) for name in "qkv"}, "alibi_slopes": T(2, 2),
                          **{f"cu_seqlens_{name}": torch.tensor([0, 18], dtype=torch.int32) for name in "qk"}}),
    "starts of q alone": ("Of cu_seqlens_q and cu_seqlens_k one was given", {"cu_seqlens_q": T(2, dtype=torch.int32)}),
    "a tensor of softcap": ("softcap is a tensor", {"softcap": torch.tensor(1.0)}),
    "slopes": ("alibi_slopes requires a gradient", {"alibi_slopes": T(4).requires_grad_()}),
}


@pytest.mark.parametrize("name", list(ON_ONE_RANK))
def test_an_error_of_one_rank_is_raised_on_all(ranks, name):
    kind, words, changes = ON_ONE_RANK[name]
    ranks(3, raises_everywhere, kind, words, changes, {"layout": "zigzag"} if name == "zigzag" else {})


@pytest.mark.parametrize("name", list(ON_ALL_RANKS))
def test_errors_are_one_sentence(ranks, name):
    words, common = ON_ALL_RANKS[name]
    ranks(3, raises_everywhere, flashomp.Error, words, {}, common)


def fails_in_the_middle(group, scheme, function):
    """One rank's call fails; all ranks raise, none hangs, and the next call works."""
    q, k, v = (leaf(draw(seed, 1, 12, 4, 8)) for seed in (1, 2, 3))
    original, calls = getattr(flashomp._calls, function), []

    def failing(q, *arguments, **words):
        calls.append(q.shape)
        if q.shape[1] and sum(shape[1] > 0 for shape in calls) == 2 - (scheme in ("gather", "ulysses")):
            raise MemoryError("no memory is left.")
        return original(q, *arguments, **words)

    def call():
        o = ours.attention(q, k, v, group=group, **SCHEMES[scheme])
        o.sum().backward()

    if dist.get_rank(group) == 2:
        setattr(flashomp._calls, function, failing)
    try:
        with pytest.raises(flashomp.RunFailure, match="^rank 2: no memory is left.$"):
            call()
    finally:
        setattr(flashomp._calls, function, original)
    q.grad = None
    call()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("function", ["attention", "attention_backward"])
@pytest.mark.parametrize("scheme", ["ring", "gather", "ulysses", "grid"])
def test_a_failure_in_the_middle_ends_on_all_ranks(ranks, scheme, function):
    ranks(4, fails_in_the_middle, scheme, function)


def sends(group, options, scheme, expected, expected_backward):
    """Bytes that this rank sends in each pass; keys that nobody sees may hold anything."""
    from flashomp.torch.distributed import _exchange

    sent, original = [], _exchange.Messages.send

    def send(self, tensor, rank):
        sent.append(tensor.numel() * tensor.element_size())
        original(self, tensor, rank)

    rank = dist.get_rank(group)
    q, k, v = (leaf(draw(seed, 1, 16, 2, 8)) for seed in (1, 2, 3))
    if rank == 3 and "top_left" in options.values():  # 64 keys beside 48 queries
        q = leaf(q[:, :0])
        with torch.no_grad():
            k.fill_(float("nan")), v.fill_(float("inf"))
    _exchange.Messages.send = send
    try:
        o = ours.attention(q, k, v, group=group, **SCHEMES[scheme], **options)
        forward = sum(sent)
        o.sum().backward()
    finally:
        _exchange.Messages.send = original
    block = 2 * 16 * 2 * 8 * 4  # K and V, or dK and dV, of 16 rows, float32
    assert (forward / block, (sum(sent) - forward) / block) == (expected[rank], expected_backward[rank])
    for x in (o, q.grad, k.grad, v.grad):
        assert torch.isfinite(x).all()


def test_hidden_blocks_are_not_sent(ranks):
    # A window of one block: K and V go one hop; in backward they do again, and dK and dV come back.
    window = {"causal": "bottom_right", "window": (15, 0)}
    ranks(4, sends, window, "ring", (1, 1, 1, 0), (1, 2, 2, 1))
    ranks(4, sends, window, "gather", (1, 1, 1, 0), (1, 2, 2, 1))
    # Causal: block b goes to the last rank; dK and dV follow, and come home from there.
    ranks(4, sends, {"causal": "bottom_right"}, "ring", (1, 2, 3, 0), (1, 3, 5, 3))
    # Rank 3's keys are seen by nobody.
    ranks(4, sends, {"causal": "top_left"}, "ring", (1, 2, 0, 0), (1, 3, 2, 0))
    ranks(4, sends, {"causal": "top_left"}, "gather", (2, 1, 0, 0), (2, 2, 2, 0))


def keys_travel_while_a_block_is_computed(group):
    from flashomp.torch.distributed import _exchange, _function

    events, messages, original = [], _exchange.Messages, (_exchange.Messages.start, _exchange.Messages.wait,
                                                          _function.forward_block)

    def noting(name, function):
        def noted(*arguments):
            if not isinstance(arguments[0], messages) or arguments[0]._operations:
                events.append(name)
            return function(*arguments)
        return noted

    messages.start, messages.wait, _function.forward_block = map(noting, ("start", "wait", "compute"), original)
    try:
        ours.attention(*(draw(seed, 1, 8, 2, 8) for seed in (1, 2, 3)), group=group)
    finally:
        messages.start, messages.wait, _function.forward_block = original
    assert events == ["start", "compute", "wait"] * 2 + ["compute"]


def test_keys_travel_while_a_block_is_computed(ranks):
    ranks(3, keys_travel_while_a_block_is_computed)


def same_bits(group, scheme):
    q, k, v, dout = draw(1, 1, 40, 4, 8), draw(2, 1, 40, 2, 8), draw(3, 1, 40, 2, 8), draw(4, 1, 40, 4, 8)
    first, *others = (run_sharded(group, q, k, v, dout, {"causal": "top_left"}, SCHEMES[scheme]) for _ in range(5))
    assert all(torch.equal(first[what], other[what]) for other in others for what in first)


@pytest.mark.parametrize("scheme", ["zigzag", "gather", "grid"])
def test_results_have_the_same_bits_in_every_run(ranks, scheme):
    ranks(4, same_bits, scheme)


def what_pytorch_builds_on_it(group):
    q, k, v = (draw(seed, 1, 8, 2, 8) for seed in (1, 2, 3))
    wanted = ours.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), group=group)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours.attention(q, k.bfloat16(), v, group=group), wanted)
    compiled = torch.compile(lambda q: 2 * ours.attention(2 * q, k, v, group=group), backend="eager")
    assert torch.equal(compiled(q), 2 * ours.attention(2 * q, k, v, group=group))
    o = ours.attention(leaf(q), k, v, group=group, dropout=0.5)  # with the seed of rank 0
    torch.manual_seed(dist.get_rank(group))
    same = ours.attention(q, k, v, group=group, dropout=0.5, seed=(1, 2))
    assert torch.equal(same, ours.attention(q, k, v, group=group, dropout=0.5, seed=torch.tensor([1, 2])))
    assert not torch.equal(o.detach(), same)
    x = leaf(q)
    (dq,) = torch.autograd.grad(ours.attention(x, k, v, group=group).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_autocast_compile_and_second_derivatives(ranks):
    ranks(2, what_pytorch_builds_on_it)


def round_trip(group):
    for layout in ("contiguous", "zigzag"):
        for rows in (0, 1, 7, 24):
            x = torch.arange(3 * rows * 2).reshape(3, rows, 2)
            here = ours.shard(x, 1, layout, group)
            assert torch.equal(ours.unshard(here, 1, layout, group), x)
            assert torch.equal(ours.unshard(here.transpose(1, 2), -1, layout, group), x.transpose(1, 2))
    rank = dist.get_rank(group)
    mine = torch.full((rank, 2), rank, dtype=torch.bool)
    assert ours.unshard(mine, 0, group=group).shape == (sum(range(dist.get_world_size(group))), 2)
    with pytest.raises(flashomp.Error, match="^rank 1: tensor requires a gradient"):
        ours.unshard(torch.zeros(2, requires_grad=rank == 1), 0, group=group)
    with pytest.raises(flashomp.Error, match="the shape of a row is .2. on rank 1 but .3. on rank 0"):
        ours.unshard(torch.zeros(2, 3 - (rank == 1)), 0, group=group)
    with pytest.raises(flashomp.Error, match="layout was 'striped'"):
        ours.shard(torch.zeros(2), 0, "striped", group)


def test_shard_and_unshard(ranks):
    ranks(3, round_trip)
