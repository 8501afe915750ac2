"""positions_q=, positions_k=, first_sequence= and first_head=: parts have the results of the whole; results in float32."""

import numpy as np
import pytest

import flashomp


def inputs(rows=61, columns=83):
    rng = np.random.default_rng(28)
    draw = lambda *shape: rng.standard_normal(shape, dtype=np.float32)  # noqa: E731
    return draw(2, rows, 4, 16), draw(2, columns, 2, 16), draw(2, columns, 2, 16), draw(2, rows, 4, 16)


def shards(length, ranks, zigzag):
    """Of each rank: its positions, and its rows."""
    ends = [index * length // (2 * ranks) for index in range(2 * ranks + 1)]
    for rank in range(ranks):
        chunks = (rank, 2 * ranks - 1 - rank) if zigzag else (2 * rank, 2 * rank + 1)
        stretches = [(ends[chunk], ends[chunk + 1] - ends[chunk]) for chunk in chunks]
        yield (length, stretches), np.concatenate([np.arange(first, first + count) for first, count in stretches])


@pytest.mark.parametrize("zigzag", [False, True])
def test_shards_have_the_results_of_the_whole(zigzag):
    q, k, v, dout = inputs()
    options = {"causal": "bottom_right", "alibi_slopes": np.full(4, 0.1, np.float32), "dropout": 0.2, "seed": 7}
    o, lse = flashomp.attention(q, k, v, return_lse=True, **options)
    want = flashomp.attention_backward(q, k, v, o, lse, dout, **options)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for positions_q, rows in shards(61, 3, zigzag):
        calls = [(np.ascontiguousarray(k[:, keys]), np.ascontiguousarray(v[:, keys]), keys,
                  dict(options, positions_q=positions_q, positions_k=positions_k))
                 for positions_k, keys in shards(83, 3, zigzag)]
        mine, mine_dout = np.ascontiguousarray(q[:, rows]), np.ascontiguousarray(dout[:, rows])
        parts = [flashomp.attention(mine, k_, v_, return_lse=True, **given) for k_, v_, _, given in calls]
        part = parts[0]
        for other in parts[1:]:
            part = flashomp.merge(*part, *other)
        np.testing.assert_allclose(part[0], o[:, rows], atol=1e-5)
        np.testing.assert_allclose(part[1], lse[:, :, rows], atol=1e-5)
        for k_, v_, keys, given in calls:
            some = flashomp.attention_backward(mine, k_, v_, *part, mine_dout, **given)
            dq[:, rows] += some.dq
            dk[:, keys] += some.dk
            dv[:, keys] += some.dv
    for got, expected in zip((dq, dk, dv), want):
        np.testing.assert_allclose(got, expected, atol=1e-4)


def test_results_may_be_float32():
    q, k, v, _ = (x.astype(np.float16) for x in inputs())
    wide = np.empty(q.shape, np.float32)
    flashomp.attention(q, k, v, out=wide, device="host")
    assert np.array_equal(wide.astype(np.float16), flashomp.attention(q, k, v, device="host"))
    assert np.any(wide != wide.astype(np.float16))


def test_parts_of_sequences_and_heads_have_the_results_of_the_whole():
    q, k, v, dout = inputs()
    options = {"causal": "bottom_right", "dropout": 0.3, "seed": 9}
    o, lse = flashomp.attention(q, k, v, return_lse=True, **options)
    want = flashomp.attention_backward(q, k, v, o, lse, dout, **options)
    b, h, h_kv = slice(1, 2), slice(2, 4), slice(1, 2)
    part = dict(options, first_sequence=1, first_head=2)
    rows = lambda x: x[b, :, h]  # noqa: E731
    got, got_lse = flashomp.attention(rows(q), k[b, :, h_kv], v[b, :, h_kv], return_lse=True, **part)
    np.testing.assert_array_equal(got_lse, lse[b, h])
    np.testing.assert_allclose(got, rows(o), atol=1e-6)
    assert abs(flashomp.attention(rows(q), k[b, :, h_kv], v[b, :, h_kv], **options) - rows(o)).max() > 0.05
    gradients = flashomp.attention_backward(rows(q), k[b, :, h_kv], v[b, :, h_kv], got, got_lse, rows(dout), **part)
    np.testing.assert_allclose(gradients.dq, rows(want.dq), atol=1e-5)
    np.testing.assert_allclose(gradients.dk, want.dk[b, :, h_kv], atol=1e-5)
    np.testing.assert_allclose(gradients.dv, want.dv[b, :, h_kv], atol=1e-5)


@pytest.mark.parametrize("options, words", [
    ({"first_head": 1.5}, "first_head was"),
    ({"first_sequence": -1}, "first_sequence was -1 with 2 sequences of q; it must be 0 to 1073741822."),
])
def test_bad_numbers_of_parts(options, words):
    q, k, v, _ = inputs()
    with pytest.raises(flashomp.Error, match=words):
        flashomp.attention(q, k, v, **options)


@pytest.mark.parametrize("positions, words", [
    (7, "positions_q was"),
    ((100, []), r"it must be \(whole"),
    ((100, [(0, 61.5)]), "positions_q was"),
    ((100, [(0, 60)]), "positions_q has 60 rows but q has 61"),
    ((60, [(0, 61)]), "within the 60 rows"),
    ((100, [(50, 31), (0, 30)]), "second stretch that begins at 0"),
])
def test_bad_positions(positions, words):
    q, k, v, _ = inputs()
    with pytest.raises(flashomp.Error, match=words):
        flashomp.attention(q, k, v, positions_q=positions)
