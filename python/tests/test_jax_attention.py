"""flashomp.jax.attention against softmax attention in jax.numpy: values, gradients, and JAX's transforms."""

import re
import threading

import numpy as np
import pytest
from conftest import assert_close, reference, tensors

jax = pytest.importorskip("jax")
import flashomp  # noqa: E402
import flashomp.jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

attention = flashomp.jax.attention
if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:
    from jax.experimental import enable_x64


def plain(q, k, v, sink=None, bias=None, causal="none", window=(-1, -1), softcap=0.0, alibi_slopes=None,
          key_padding_mask=None, scale=None, layout="bshd"):
    """(o, lse) by jax.numpy. JAX differentiates it."""
    if layout == "bhsd":
        o, lse = plain(*(x.swapaxes(1, 2) for x in (q, k, v)), sink, bias, causal, window, softcap, alibi_slopes,
                       key_padding_mask, scale)
        return o.swapaxes(1, 2), lse
    (batch, rows, heads, depth), columns = q.shape, k.shape[1]
    k, v = (jnp.repeat(x, heads // k.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) * (depth**-0.5 if scale is None else scale)
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    i, j = jnp.arange(rows)[:, None], jnp.arange(columns)[None, :]
    delta = columns - rows
    if alibi_slopes is not None:
        scores = scores - jnp.broadcast_to(alibi_slopes, (batch, heads))[:, :, None, None] * abs(i + delta - j)
    if bias is not None:
        scores = scores + bias
    seen = jnp.ones((batch, 1, rows, columns), bool)
    if causal != "none":
        seen &= j <= i + (delta if causal == "bottom_right" else 0)
    if window[0] >= 0:
        seen &= j >= i + delta - window[0]
    if window[1] >= 0:
        seen &= j <= i + delta + window[1]
    if key_padding_mask is not None:
        seen &= key_padding_mask[:, None, None, :]
    logits = jnp.where(seen, scores, -1e30)
    if sink is not None:
        logits = jnp.concatenate([logits, jnp.broadcast_to(sink[:, None, None], (batch, heads, rows, 1))], axis=-1)
    lse = jax.scipy.special.logsumexp(logits, axis=-1)
    p = jnp.where(seen, jnp.exp(scores - lse[..., None]), 0.0)
    return jnp.einsum("bhij,bjhd->bihd", p, v), lse


def arrays(rng, dtype="float32", layout="bshd", **shape):
    q, k, v, dout = (jnp.asarray(x, dtype) for x in tensors(rng, **shape))
    return [x.swapaxes(1, 2) if layout == "bhsd" else x for x in (q, k, v, dout)]


def random(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


CASES = {
    "plain": lambda rng: {},
    "causal": lambda rng: {"causal": "bottom_right", "scale": 0.2},
    "window": lambda rng: {"window": (5, 3), "softcap": 3.0},
    "alibi": lambda rng: {"alibi_slopes": jnp.abs(random(rng, 4)), "causal": "top_left"},
    "bias": lambda rng: {"bias": random(rng, 1, 4, 33, 47)},
    "row bias": lambda rng: {"bias": random(rng, 2, 1, 1, 47), "window": (-1, 9)},
    "sink": lambda rng: {"sink": random(rng, 4), "key_padding_mask": jnp.asarray(np.arange(47) < [[30], [47]])},
    "both": lambda rng: {"sink": random(rng, 4), "bias": random(rng, 2, 4, 33, 47), "causal": "top_left"},
}


def split(options):
    """Options with a gradient, and the others."""
    with_gradient = {name: options[name] for name in ("bias", "sink") if name in options}
    return with_gradient, {name: x for name, x in options.items() if name not in with_gradient}


def gradients(function, q, k, v, weights, options):
    """Of a weighted sum of o, by name."""
    with_gradient, fixed = split(options)

    def loss(given):
        o, _ = function(given["q"], given["k"], given["v"], **{n: given[n] for n in with_gradient}, **fixed)
        return (o * weights).sum()

    return jax.grad(loss)({"q": q, "k": k, "v": v, **with_gradient})


def with_lse(*arguments, **options):
    return attention(*arguments, return_lse=True, **options)


def exact(*values):
    """The same in float64, within enable_x64()."""
    return jax.tree.map(lambda x: x.astype(jnp.float64) if isinstance(x, jax.Array) and x.dtype.kind == "f" else x, values)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("name", list(CASES))
def test_values_and_gradients(name, layout, rng):
    options = {**CASES[name](rng), "layout": layout}
    q, k, v, dout = arrays(rng, layout=layout)
    o, lse = attention(q, k, v, return_lse=True, **options)
    assert o.dtype == q.dtype and lse.dtype == jnp.float32
    got = gradients(with_lse, q, k, v, dout, options)
    with enable_x64(True):
        expected = plain(*exact(q, k, v), **exact(options)[0])
        expected_gradients = gradients(plain, *exact(q, k, v), exact(dout)[0], exact(options)[0])
        assert expected[0].dtype == jnp.float64
    assert_close(o, expected[0])
    assert_close(lse, expected[1])
    assert set(got) == set(expected_gradients)
    for part in got:
        assert got[part].dtype == jnp.float32
        assert_close(got[part], expected_gradients[part], 1e-4)


@pytest.mark.parametrize("dtype, bound", [("bfloat16", 4e-2), ("float16", 6e-3)])
def test_16_bits(dtype, bound, rng):
    q, k, v, dout = arrays(rng, dtype)
    bias, sink = random(rng, 1, 4, 1, 47).astype(dtype), random(rng, 4)
    options = {"bias": bias, "sink": sink, "causal": "bottom_right"}
    o, lse = attention(q, k, v, return_lse=True, **options)
    got = gradients(with_lse, q, k, v, dout, options)
    assert (o.dtype, lse.dtype, got["q"].dtype, got["bias"].dtype, got["sink"].dtype) == (dtype, "float32", dtype, dtype,
                                                                                       "float32")
    wide = [x.astype(jnp.float32) for x in (q, k, v, dout, bias)]
    expected = plain(*wide[:3], bias=wide[4], sink=sink, causal="bottom_right")
    assert_close(o.astype(jnp.float32), expected[0], bound)
    assert_close(lse, expected[1], bound)
    expected = gradients(plain, *wide[:3], wide[3], {"bias": wide[4], "sink": sink, "causal": "bottom_right"})
    for part in got:
        assert_close(got[part].astype(jnp.float32), expected[part], bound)


def test_every_transform_gives_the_bits_of_the_library(rng):
    """jit, grad of jit, jit of grad and checkpoint, and float64 switched on."""
    options = CASES["both"](rng)
    q, k, v, dout = arrays(rng)
    o, lse = flashomp.attention(q, k, v, return_lse=True, **options)
    expected = flashomp.attention_backward(q, k, v, o, lse, dout, dbias=True, dsink=True, **options)

    def loss(q, k, v, bias, sink):
        o = attention(q, k, v, bias=bias, sink=sink, causal=options["causal"])
        return (o * dout).sum(), o

    every = {"argnums": range(5), "has_aux": True}
    for function in (jax.grad(loss, **every), jax.jit(jax.grad(loss, **every)), jax.grad(jax.jit(loss), **every),
                     jax.jit(jax.grad(jax.checkpoint(loss), **every)), jax.grad(jax.checkpoint(jax.jit(loss)), **every)):
        for x64 in (False, True):
            with enable_x64(x64):
                got, value = function(q, k, v, options["bias"], options["sink"])
            np.testing.assert_array_equal(value, o)
            for mine, theirs in zip(got, expected):
                np.testing.assert_array_equal(mine, theirs)


def test_only_what_is_asked_for_is_computed(rng):
    q, k, v, dout = arrays(rng)
    bias = random(rng, 1, 1, 33, 47)

    def calls(function, *arguments):
        text = str(jax.make_jaxpr(function)(*arguments))
        return re.findall(r"'results', '([a-z,]*)'", text)

    one = lambda q: (attention(q, k, v, bias=bias) * dout).sum()  # noqa: E731
    assert calls(one, q) == ["o,lse"]
    assert calls(jax.grad(one), q) == ["o,lse", "dk,dq,dv"]
    assert calls(jax.grad(lambda b: attention(q, k, v, bias=b, return_lse=True)[0].sum()), bias) == ["o,lse", "dbias,dk,dq,dv"]
    text = jax.jit(one).lower(q).compile().as_text()
    assert 'custom_call_target="flashomp_forward"' in text and not re.search(r" (copy|transpose)\(", text)


def test_shapes_are_known_before_anything_runs():
    shape = jax.eval_shape(lambda q, k: attention(q, k, k, layout="bhsd", return_lse=True),
                           jax.ShapeDtypeStruct((1000, 8, 1 << 20, 128), jnp.bfloat16),
                           jax.ShapeDtypeStruct((1000, 2, 1 << 20, 128), jnp.bfloat16))
    assert [(x.shape, x.dtype) for x in shape] == [((1000, 8, 1 << 20, 128), jnp.bfloat16), ((1000, 8, 1 << 20), jnp.float32)]


@pytest.mark.parametrize("rows, columns, heads, heads_kv, depth, depth_v", [
    (1, 1, 1, 1, 1, 1), (1, 129, 6, 2, 80, 40), (65, 7, 5, 1, 3, 256), (9, 33, 4, 2, 576, 512), (0, 5, 2, 2, 8, 8), (5, 0, 2, 2, 8, 8)])
def test_odd_sizes(rows, columns, heads, heads_kv, depth, depth_v, rng):
    q, k, v, dout = arrays(rng, batch=3, rows=rows, columns=columns, heads=heads, heads_kv=heads_kv, depth=depth,
                           depth_v=depth_v)
    o, pull = jax.vjp(jax.jit(lambda *x: attention(*x, causal="bottom_right")), q, k, v)
    expected = reference(*(np.asarray(x) for x in (q, k, v, dout)), causal="bottom_right")
    assert_close(o, expected["o"])
    for name, mine in zip(("dq", "dk", "dv"), pull(dout)):
        assert_close(mine, expected[name], 1e-4)


def test_packed_sequences(rng):
    starts_q, starts_k = np.array([0, 5, 5, 30], np.int32), np.array([0, 9, 12, 50], np.int32)
    q, dout = random(rng, 30, 4, 24), random(rng, 30, 4, 16)
    k, v = random(rng, 50, 2, 24), random(rng, 50, 2, 16)
    sink = random(rng, 4)

    @jax.jit
    def packed(starts_q, starts_k, q, k, v, sink):
        return attention(q, k, v, sink=sink, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, causal="bottom_right",
                         return_lse=True)

    def one_by_one(q, k, v, sink):
        parts = [plain(q[None, a:b], k[None, c:d], v[None, c:d], sink=sink, causal="bottom_right")
                 for a, b, c, d in zip(starts_q, starts_q[1:], starts_k, starts_k[1:])]
        return jnp.concatenate([o[0] for o, _ in parts]), jnp.concatenate([lse[0] for _, lse in parts], axis=1)

    got, pull, lse = jax.vjp(lambda *x: packed(jnp.asarray(starts_q), jnp.asarray(starts_k), *x), q, k, v, sink, has_aux=True)
    expected, pull_expected, expected_lse = jax.vjp(one_by_one, q, k, v, sink, has_aux=True)
    for mine, theirs in zip((got, lse, *pull(dout)), (expected, expected_lse, *pull_expected(dout))):
        assert_close(mine, theirs, 1e-4)


def test_what_hidden_keys_hold_does_not_matter(rng):
    mask = np.arange(47) < [[30], [46]]
    q, k, v, dout = arrays(rng)
    poisoned = [jnp.where(mask[:, :, None, None], x, jnp.nan) for x in (k, v)]
    run = jax.jit(lambda q, k, v: jax.vjp(lambda *x: attention(*x, key_padding_mask=jnp.asarray(mask), return_lse=True),
                                          q, k, v, has_aux=True))
    (clean, pull, lse), (dirty, pull_dirty, dirty_lse) = run(q, k, v), run(q, *poisoned)
    for a, b in zip((clean, lse, *pull(dout)), (dirty, dirty_lse, *pull_dirty(dout))):
        assert jnp.isfinite(b).all()
        assert_close(b, a, 1e-6)
    assert not np.asarray(pull_dirty(dout)[1])[~mask].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_lse_has_no_gradient(dtype, rng):
    q, k, v, _ = arrays(rng, dtype)
    for loss in (lambda k: with_lse(q, k, v)[1].sum(), lambda k: sum(x.sum() for x in with_lse(q, k, v))):
        for function in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.checkpoint(loss))):
            with pytest.raises(flashomp.NotBuilt, match="lse is differentiated, but flashomp computes no gradient for it"):
                function(k)

    def stopped(k):
        o, lse = with_lse(q, k, v)
        return (o * jax.lax.stop_gradient(lse).swapaxes(1, 2)[..., None].astype(dtype)).sum()

    for function in (jax.grad(stopped), jax.grad(jax.jit(stopped)), jax.grad(jax.checkpoint(stopped))):
        assert jnp.isfinite(function(k)).all() and function(k).any()


def test_rows_without_keys(rng):
    q, k, v, dout = arrays(rng)
    mask = jnp.zeros((2, 47), bool).at[1].set(True)
    o, pull, lse = jax.vjp(lambda *x: attention(*x, key_padding_mask=mask, return_lse=True), q, k, v, has_aux=True)
    assert not o[0].any() and (lse[0] == -jnp.inf).all()
    assert all(not g[0].any() and jnp.isfinite(g).all() for g in pull(dout))


# Dropout


def test_a_traced_seed_draws_anew(rng):
    q, k, v, dout = arrays(rng)
    run = jax.jit(lambda seed, offset: jax.vjp(lambda *x: attention(*x, dropout=0.3, seed=seed, offset=offset), q, k, v))
    results = {}
    for seed, offset in ((0, 0), (1, 0), (0, 1), (-3, 7)):
        o, pull = run(jnp.int32(seed), jnp.int32(offset))
        options = {"dropout": 0.3, "seed": seed % 2**64, "offset": offset}
        expected, lse = flashomp.attention(q, k, v, return_lse=True, **options)
        np.testing.assert_array_equal(o, expected)
        for mine, theirs in zip(pull(dout), flashomp.attention_backward(q, k, v, o, lse, dout, **options)):
            np.testing.assert_array_equal(mine, theirs)
        results[seed, offset] = np.asarray(o)
    assert run._cache_size() == 1
    assert len({x.tobytes() for x in results.values()}) == 4


def test_every_kind_of_seed(rng):
    q, k, v, _ = arrays(rng)
    call = lambda **options: np.asarray(attention(q, k, v, dropout=0.5, **options))  # noqa: E731
    expected = lambda **options: flashomp.attention(q, k, v, dropout=0.5, **options)  # noqa: E731
    np.testing.assert_array_equal(call(), expected())
    wide = 2**64 - 5
    np.testing.assert_array_equal(call(seed=wide, offset=2**40 + 1), expected(seed=wide, offset=2**40 + 1))
    np.testing.assert_array_equal(call(seed=np.array(wide, np.uint64)), expected(seed=wide))
    with enable_x64(True):
        np.testing.assert_array_equal(jax.jit(lambda s: attention(q, k, v, dropout=0.5, seed=s))(jnp.uint64(wide)),
                                      expected(seed=wide))
        np.testing.assert_array_equal(call(seed=jnp.int64(-5)), expected(seed=wide))
    key = jax.random.key(3)
    low, high = (int(x) for x in jax.random.bits(key, (2,), jnp.uint32))
    np.testing.assert_array_equal(jax.jit(lambda s: attention(q, k, v, dropout=0.5, seed=s))(key),
                                  expected(seed=low | high << 32))
    _, lse = attention(q, k, v, dropout=0.5, return_lse=True)
    assert_close(lse, plain(q, k, v)[1])  # dropout does not touch the LSE


# vmap


def with_gradients(names, **options):
    def function(q, k, v, dout, *rest):
        o, pull = jax.vjp(lambda q, k, v, *rest: attention(q, k, v, **dict(zip(names, rest)), **options), q, k, v, *rest)
        return o, pull(dout)
    return function


def vmap_cases(rng):
    """A function, its arguments' axes, more arguments, and how many loops the mapped function has."""
    mask, small = jnp.asarray(rng.random((2, 47)) < 0.7), random(rng, 1, 4, 1, 47)
    slopes, starts = jnp.abs(random(rng, 4)), jnp.array([0, 10, 33], jnp.int32)
    return {
        "batch": (with_gradients((), causal="top_left"), (0, 0, 0, 0), (), 0),
        "another axis": (with_gradients(()), (2, 0, 1, 0), (), 0),
        "shared keys": (with_gradients(()), (0, None, None, 0), (), 2),
        "bias": (with_gradients(("bias",)), (0,) * 5, (random(rng, 3, 2, 1, 33, 1),), 0),
        "bias of all": (with_gradients(("bias",)), (0,) * 5, (random(rng, 3, 1, 1, 33, 1),), 2),
        "shared bias": (with_gradients(("bias",)), (0,) * 4 + (None,), (small,), 1),
        "sink": (with_gradients(("sink",)), (0,) * 5, (random(rng, 3, 4),), 2),
        "shared sink": (with_gradients(("sink",)), (0,) * 4 + (None,), (random(rng, 4),), 1),
        "fixed": (with_gradients((), bias=small, sink=slopes, key_padding_mask=mask, alibi_slopes=slopes), (0,) * 4, (), 0),
        "padding and alibi": (lambda q, k, v, dout, m, a: attention(q, k, v, key_padding_mask=m, alibi_slopes=a),
                              (0,) * 6, (jnp.stack([mask, ~mask, mask]), jnp.abs(random(rng, 3, 4))), 0),
        "alibi of a batch": (lambda q, k, v, dout, a: attention(q, k, v, alibi_slopes=a, return_lse=True),
                             (0,) * 4 + (None,), (jnp.abs(random(rng, 2, 4)),), 0),
        "seeds": (lambda q, k, v, dout, seed: attention(q, k, v, dropout=0.3, seed=seed), (0,) * 5, (jnp.arange(3),), 1),
        "packed": (lambda q, k, v, dout: attention(q[0], k[0, :33], v[0, :33], cu_seqlens_q=starts, cu_seqlens_k=starts),
                   (0,) * 4, (), 1),
    }


@pytest.mark.parametrize("name", list(vmap_cases(np.random.default_rng(0))))
def test_vmap_is_one_call_for_each(name, rng):
    function, axes, more, loops = vmap_cases(rng)[name]
    stacked = [np.stack(x) for x in zip(*(tensors(rng) for _ in range(3)))]
    arguments = [*(jnp.asarray(x[0]) if axis is None else jnp.moveaxis(jnp.asarray(x), 0, axis)
                   for x, axis in zip(stacked, axes)), *more]
    take = lambda x, axis, i: x if axis is None else jnp.take(x, i, axis=axis)  # noqa: E731
    each = [function(*(take(x, axis, i) for x, axis in zip(arguments, axes))) for i in range(3)]
    mapped = jax.vmap(function, in_axes=axes)
    for run in (mapped, jax.jit(mapped)):
        for got, expected in zip(jax.tree.leaves(run(*arguments)), jax.tree.leaves(jax.tree.map(lambda *x: jnp.stack(x), *each))):
            np.testing.assert_array_equal(got, expected)
    assert len(re.findall(r"\bscan\[", str(jax.make_jaxpr(mapped)(*arguments)))) == loops


def test_vmap_within_vmap(rng):
    q, k, v = random(rng, 2, 3, 2, 9, 4, 8), random(rng, 2, 2, 7, 2, 8), random(rng, 2, 3, 2, 7, 2, 8)
    got = jax.vmap(jax.vmap(attention, in_axes=(0, None, 0)))(q, k, v)
    for i in range(2):
        for j in range(3):
            np.testing.assert_array_equal(got[i, j], attention(q[i, j], k[i], v[i, j]))


# Errors and threads


def test_what_is_static_is_refused_while_jax_traces(rng):
    q, k, v, _ = arrays(rng)
    slopes = jnp.ones(4)
    for wrong, sentence in (
            (lambda q: attention(q[..., :8], k, v), "k has head_dim 24 but q has 8; they must be equal."),
            (lambda q: attention(q, k, v, causal=True), "causal was True; allowed are 'none', 'top_left', 'bottom_right'."),
            (lambda q: attention(q, k, v, window=(1, 2, 3)), "window was (1, 2, 3); it must be two integers"),
            (lambda q: attention(q.astype(jnp.int16), k, v), "q has dtype int16; allowed are float32"),
            (lambda q: attention(q, k[0], v), "k has 3 axes"),
            (lambda q: attention(q[None], k, v), "q has 5 axes; it must have 1 to 4"),
            (lambda q: attention(q, k, v, bias=jnp.ones((3, 1, 1, 1))), "bias has shape [3, 1, 1, 1]; it must be"),
            (lambda q: attention(q, k, v, cu_seqlens_q=jnp.zeros(3)), "q has 4 axes"),
            (lambda q: attention(q, k, v, dropout=0.5, seed=-1), "seed was -1; it must be an integer from 0 to 2^64 - 1."),
            (lambda q: attention(q, k, v, dropout=0.5, offset=q), "offset is float32 of shape (2, 33, 4, 24); it must be"),
            (lambda q: attention(q, k, v, layout="bsdh"), "layout was 'bsdh'; allowed are 'bshd', 'bhsd'."),
            (lambda q: jax.grad(lambda s: attention(q, k, v, alibi_slopes=s).sum())(slopes), "jax.lax.stop_gradient")):
        for call in (wrong, jax.jit(wrong), lambda q: jax.eval_shape(wrong, q)):
            with pytest.raises(flashomp.Error, match=re.escape(sentence)):
                call(q)
    with pytest.raises(flashomp.Error, match=re.escape("scale was ") + ".*; it must be a number."):
        jax.jit(lambda scale: attention(q, k, v, scale=scale))(0.1)
    attention(q, k, v, alibi_slopes=jax.lax.stop_gradient(slopes))
    with pytest.raises(TypeError, match="no option|unexpected keyword"):
        attention(q, k, v, tau=1)


def test_what_only_the_run_knows_comes_from_xla(rng):
    x = random(rng, 33, 2, 8)
    run = jax.jit(lambda starts: attention(x, x, x, cu_seqlens_q=starts, cu_seqlens_k=starts))
    for call in (run, lambda starts: attention(x, x, x, cu_seqlens_q=starts, cu_seqlens_k=starts)):
        with pytest.raises(RuntimeError, match="cu_seqlens_q decreases from 40 to 33 at index 2; it must not decrease."):
            call(jnp.array([0, 40, 33], jnp.int32)).block_until_ready()
    assert jnp.isfinite(run(jnp.array([0, 20, 33], jnp.int32))).all()


def test_second_derivatives_and_forward_mode_are_refused(rng):
    q, k, v, _ = arrays(rng)
    function = lambda q: attention(q, k, v).sum()  # noqa: E731
    for call in (jax.hessian(function), jax.grad(lambda q: jax.grad(function)(q).sum())):
        with pytest.raises(flashomp.NotBuilt, match="first derivatives in reverse mode only"):
            call(q)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(function, (q,), (q,))


def test_two_threads_at_once(rng):
    arguments = [arrays(rng, rows=257, columns=300) for _ in range(2)]
    function = jax.jit(jax.value_and_grad(lambda q, k, v, dout: (attention(q, k, v) * dout).sum(), argnums=(0, 1, 2)))
    expected = [function(*x) for x in arguments]
    barrier, wrong = threading.Barrier(2), []

    def work(i):
        barrier.wait()
        for _ in range(20):
            got = function(*arguments[i])
            if not all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected[i]))):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
