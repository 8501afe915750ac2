"""flashomp's calls on NumPy's arrays, against float64."""

import inspect
import re
import threading
import time

import flashomp
import numpy as np
import pytest
from conftest import assert_close, reference, tensors


def option_cases(rng):
    bias = rng.standard_normal((1, 4, 33, 47)).astype(np.float32)
    padding = np.ones((2, 47), bool)
    padding[0, 30:] = False
    padding[1, :5] = False
    return {
        "plain": {},
        "scale": {"scale": 0.3},
        "top_left": {"causal": "top_left"},
        "bottom_right": {"causal": "bottom_right"},
        "window": {"window": (5, 3)},
        "softcap": {"softcap": 2.0},
        "alibi": {"alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32)},
        "bias": {"bias": bias},
        "padding": {"key_padding_mask": padding},
        "sink": {"sink": np.array([0.5, -1.0, 2.0, 0.0], np.float32)},
        "all": {"causal": "bottom_right", "window": (20, 0), "softcap": 3.0, "bias": bias[:, :1], "scale": 0.4,
                "key_padding_mask": padding, "sink": np.zeros(4, np.float32)},
    }


@pytest.mark.parametrize("name", list(option_cases(np.random.default_rng(0))))
def test_every_option_forward_and_backward(name, rng):
    options = option_cases(rng)[name]
    q, k, v, dout = tensors(rng)
    expected = reference(q, k, v, dout, **options)
    o, lse = flashomp.attention(q, k, v, return_lse=True, **options)
    assert type(o) is np.ndarray and o.dtype == np.float32 and lse.dtype == np.float32
    assert_close(o, expected["o"])
    assert_close(lse, expected["lse"])
    gradients = flashomp.attention_backward(q, k, v, o, lse, dout, dbias="bias" in options, dsink="sink" in options,
                                            **options)
    for got, what in zip(gradients, ("dq", "dk", "dv", "dbias", "dsink")):
        if what in expected:
            assert_close(got, expected[what], 1e-4)
        else:
            assert got is None


def test_dropout_is_the_mask(rng):
    q, k, v, dout = tensors(rng)
    options = {"dropout": 0.3, "seed": 2**63 + 5, "offset": 9}
    keep = flashomp.dropout_mask((2, 4, 33, 47), **options)
    assert 0.6 < keep.mean() < 0.8
    expected = reference(q, k, v, dout, keep=keep, dropout=0.3)
    o, lse = flashomp.attention(q, k, v, return_lse=True, **options)
    assert_close(o, expected["o"])
    gradients = flashomp.attention_backward(q, k, v, o, lse, dout, **options)
    assert_close(gradients.dk, expected["dk"], 1e-4)
    assert_close(gradients.dv, expected["dv"], 1e-4)
    assert not np.array_equal(o, flashomp.attention(q, k, v, dropout=0.3, seed=1))


def test_float16(rng):
    q, k, v, dout = (x.astype(np.float16) for x in tensors(rng))
    expected = reference(q, k, v, dout)
    o, lse = flashomp.attention(q, k, v, return_lse=True)
    assert o.dtype == np.float16
    assert_close(o, expected["o"], 3e-3)
    assert_close(flashomp.attention_backward(q, k, v, o, lse, dout).dq, expected["dq"], 1e-2)


def test_bfloat16_of_ml_dtypes(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v, _ = (x.astype(ml_dtypes.bfloat16) for x in tensors(rng))
    expected = reference(*(x.astype(np.float64) for x in (q, k, v)))
    o = flashomp.attention(q, k, v)
    assert o.dtype == ml_dtypes.bfloat16
    assert_close(o.astype(np.float64), expected["o"], 2e-2)
    out = np.zeros_like(o)
    assert flashomp.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out.view(np.int16), o.view(np.int16))


def test_float8_reaches_the_library(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v, _ = (x.astype(ml_dtypes.float8_e4m3fn) for x in tensors(rng))
    with pytest.raises(flashomp.Error, match="float8_e4m3"):
        flashomp.attention(q, k, v, backend="openmp", device="host")


def test_layouts_and_strides_give_the_same_bits(rng):
    q, k, v, dout = tensors(rng)
    o, lse = flashomp.attention(q, k, v, return_lse=True, causal="bottom_right")
    swap = lambda x: np.ascontiguousarray(x.swapaxes(1, 2))  # noqa: E731
    o2, lse2 = flashomp.attention(swap(q), swap(k), swap(v), return_lse=True, causal="bottom_right", layout="bhsd")
    np.testing.assert_array_equal(o2.swapaxes(1, 2), o)
    np.testing.assert_array_equal(lse2, lse)
    wide = np.zeros((*q.shape[:-1], 40), np.float32)
    wide[..., 8:32] = q
    np.testing.assert_array_equal(flashomp.attention(wide[..., 8:32], k, v, causal="bottom_right"), o)
    got = flashomp.attention_backward(swap(q), swap(k), swap(v), swap(o), lse, swap(dout), causal="bottom_right",
                                      layout="bhsd")
    expected = flashomp.attention_backward(q, k, v, o, lse, dout, causal="bottom_right")
    for a, b in zip(got[:3], expected[:3]):
        np.testing.assert_array_equal(a.swapaxes(1, 2), b)


def test_packed_sequences(rng):
    starts_q, starts_k = np.array([0, 5, 5, 17], np.int32), np.array([0, 9, 12, 30], np.int32)
    q = rng.standard_normal((17, 4, 16)).astype(np.float32)
    k, v = (rng.standard_normal((30, 2, 16)).astype(np.float32) for _ in range(2))
    o, lse = flashomp.attention(q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, causal="bottom_right",
                                return_lse=True)
    assert lse.shape == (4, 17)
    for n in range(3):
        rows, keys = slice(*starts_q[n : n + 2]), slice(*starts_k[n : n + 2])
        part = reference(q[None, rows], k[None, keys], v[None, keys], causal="bottom_right")
        assert_close(o[None, rows], part["o"])
        assert_close(lse[None, :, rows], part["lse"])


def test_outputs_that_are_given_are_written(rng):
    q, k, v, dout = tensors(rng)
    out, lse = np.empty((2, 33, 4, 16), np.float32), np.empty((2, 4, 33), np.float32)
    result = flashomp.attention(q, k, v, out=out, lse=lse, return_lse=True)
    assert result[0] is out and result[1] is lse
    np.testing.assert_array_equal(out, flashomp.attention(q, k, v))
    dq = np.empty_like(q)
    gradients = flashomp.attention_backward(q, k, v, out, lse, dout, dq=dq)
    assert gradients.dq is dq
    np.testing.assert_array_equal(dq, flashomp.attention_backward(q, k, v, out, lse, dout).dq)


def test_report(rng):
    q, k, v, _ = tensors(rng)
    o, report = flashomp.attention(q, k, v, return_report=True, device="host", threads=1)
    assert o.shape == (2, 33, 4, 16)
    assert report["backend"] == "openmp" and report["ran_on"].startswith("host") and report["on_device"] is False
    assert report["standard_bytes"] > 0
    o, lse, report = flashomp.attention(q, k, v, return_report=True, return_lse=True)
    gradients, report = flashomp.attention_backward(q, k, v, o, lse, o, return_report=True)
    assert gradients.dq.shape == q.shape and report["machine"]


def test_merge_of_two_halves(rng):
    q, k, v, _ = tensors(rng)
    a, b = (flashomp.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 20), slice(20, 47)))
    o, lse = flashomp.merge(*a, *b)
    expected = reference(q, k, v)
    assert_close(o, expected["o"])
    assert_close(lse, expected["lse"])
    again = flashomp.merge(*a, *b, out=a[0], lse_out=a[1])
    assert again[0] is a[0]
    np.testing.assert_array_equal(a[0], o)


def test_no_keys_and_no_rows(rng):
    q, k, v, _ = tensors(rng)
    o, lse = flashomp.attention(q, k[:, :0], v[:, :0], return_lse=True)
    assert not o.any() and np.isneginf(lse).all()
    assert flashomp.attention(q[:, :0], k, v).shape == (2, 0, 4, 16)


def test_prepared_calls_give_the_same_bits(rng):
    q, k, v, dout = tensors(rng)
    padding = np.ones((2, 47), bool)
    padding[:, 30:] = False
    options = {"causal": "bottom_right", "key_padding_mask": padding, "dropout": 0.1, "seed": 3}
    layer = flashomp.prepare(q, k, v, **options)
    backward = flashomp.prepare_backward(q, k, v, dout, np.empty((2, 4, 33), np.float32), dout, **options)
    assert layer.workspace_bytes >= 0 and backward.workspace_bytes > 0
    for _ in range(2):
        expected = flashomp.attention(q, k, v, return_lse=True, **options)
        o, lse, report = layer.run(q, k, v, return_lse=True, return_report=True)
        np.testing.assert_array_equal(o, expected[0])
        np.testing.assert_array_equal(lse, expected[1])
        assert report["machine"]
        for a, b in zip(backward.run(q, k, v, o, lse, dout)[:3],
                        flashomp.attention_backward(q, k, v, o, lse, dout, **options)[:3]):
            np.testing.assert_array_equal(a, b)
        padding[:, 30:] = True  # read anew by each run
    np.testing.assert_array_equal(layer.run(q, k, v, seed=4), flashomp.attention(q, k, v, **{**options, "seed": 4}))
    with pytest.raises(flashomp.Error, match="prepared"):
        layer.run(q[:, :5], k, v)


def sentence(error):
    text = str(error.value)
    assert "\n" not in text and text.endswith(".") and not re.search(r"\.\s+[A-Z]", text), text
    return text


@pytest.mark.parametrize(
    "change, words",
    [
        ({"causal": True}, "causal was True; allowed are 'none', 'top_left', 'bottom_right'"),
        ({"causal": "top-left"}, "causal was 'top-left'"),
        ({"scale": "big"}, "scale was 'big'; it must be a number"),
        ({"scale": True}, "scale was True"),
        ({"scale": float("nan")}, "scale"),
        ({"window": 5}, "window was 5; it must be two integers"),
        ({"window": (1.5, 2)}, "window"),
        ({"window": (-2, 0)}, "window"),
        ({"softcap": -1.0}, "softcap"),
        ({"dropout": 1.0}, "dropout"),
        ({"seed": -1}, "seed was -1; it must be an integer from 0"),
        ({"seed": 1.0}, "seed was 1.0"),
        ({"offset": 2**64}, "offset was"),
        ({"layout": "sbhd"}, "layout was 'sbhd'; allowed are 'bshd', 'bhsd'"),
        ({"backend": "metal"}, "backend was 'metal'"),
        ({"machine": "quick"}, "machine was 'quick'"),
        ({"device": "cpu"}, "device was 'cpu'; allowed are 'auto', 'host'"),
        ({"device": 77}, "device was 77"),
        ({"device": 1.5}, "device was 1.5"),
        ({"threads": -1}, "threads"),
        ({"tiling": {"rows": 3}}, "tiling was"),
        ({"tiling": {"resident_rows": 3}}, "tiling was 3 resident"),
        ({"bias": np.zeros((1, 4, 33, 46), np.float32)}, "bias"),
        ({"bias": np.zeros((1, 4, 33, 47), np.float64)}, "bias"),
        ({"key_padding_mask": np.ones((2, 47), np.int32)}, "key_padding_mask"),
        ({"alibi_slopes": np.ones(3, np.float32)}, "alibi_slopes"),
        ({"q": np.zeros((2, 33, 4, 25), np.float32)}, "head_dim"),
        ({"q": np.zeros((2, 33, 4, 24), np.float64)}, "q is float64"),
        ({"q": np.zeros((2, 33, 4, 24), np.complex64)}, "q has dtype complex64"),
        ({"q": np.zeros((2, 33, 4, 24), np.float16)}, "dtype"),
        ({"q": np.zeros((24,), np.float32)}, "q has 1 axis; it must have 4"),
        ({"q": np.zeros((1, 2, 33, 4, 24), np.float32)}, "q has 5 axes"),
        ({"q": np.zeros((2, 33, 4, 48), np.float32)[..., ::2]}, "q"),
        ({"q": np.zeros((2, 33, 24, 4), np.float32).swapaxes(2, 3)}, "q"),
        ({"k": np.zeros((2, 47, 2, 24), np.float32)[:, ::-1]}, "k"),
        ({"k": np.zeros((2, 47, 3, 24), np.float32)}, "k"),
        ({"v": None}, "v was None; it must be a tensor"),
        ({"out": np.zeros((2, 33, 4, 15), np.float32)}, "o"),
        ({"lse": np.zeros((2, 4, 33), np.float64)}, "lse"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(change, words, rng):
    q, k, v, _ = tensors(rng)
    out, lse = np.full((2, 33, 4, 16), 7, np.float32), np.full((2, 4, 33), 7, np.float32)
    call = {"q": q, "k": k, "v": v, "out": out, "lse": lse, **change}
    with pytest.raises(flashomp.Error) as error:
        flashomp.attention(**call)
    assert isinstance(error.value, ValueError)
    assert words in sentence(error)
    assert (out == 7).all() and (lse == 7).all()


def test_what_is_no_tensor_is_a_type_error(rng):
    q, k, v, _ = tensors(rng)
    for bad in ([1.0, 2.0], "q", 3.0):
        with pytest.raises(TypeError, match="q was .*; it must be a tensor of NumPy") as error:
            flashomp.attention(bad, k, v)
        sentence(error)
    with pytest.raises(TypeError, match="there is no option 'casual'") as error:
        flashomp.attention(q, k, v, casual="none")
    sentence(error)


def test_read_only_and_overlapping_outputs(rng):
    q, k, v, _ = tensors(rng, depth_v=24)
    fixed = np.zeros_like(q)
    fixed.flags.writeable = False
    with pytest.raises(flashomp.Error, match="out is a read-only array"):
        flashomp.attention(q, k, v, out=fixed)
    with pytest.raises(flashomp.Error):
        flashomp.attention(q, k, v, out=q)
    read_only = q.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(flashomp.attention(read_only, k, v), flashomp.attention(q, k, v))


def test_dbias_without_a_bias(rng):
    q, k, v, dout = tensors(rng)
    o, lse = flashomp.attention(q, k, v, return_lse=True)
    with pytest.raises(flashomp.Error, match="dbias is the gradient of bias, which was not given"):
        flashomp.attention_backward(q, k, v, o, lse, dout, dbias=True)
    with pytest.raises(flashomp.Error, match="exactly one"):
        flashomp.dropout_mask(dropout=0.5)
    with pytest.raises(flashomp.Error, match="shape was"):
        flashomp.dropout_mask(("a",), dropout=0.5)


def test_gradients_of_bias_and_sink_are_asked_for_alike(rng):
    """By True, by None and False, and by tensors, in calls and in runs of a prepared call."""
    q, k, v, dout = tensors(rng)
    options = {"bias": rng.standard_normal((1, 4, 33, 47)).astype(np.float32), "sink": np.zeros(4, np.float32)}
    o, lse = flashomp.attention(q, k, v, return_lse=True, **options)
    expected = flashomp.attention_backward(q, k, v, o, lse, dout, dbias=True, dsink=True, **options)
    none = flashomp.attention_backward(q, k, v, o, lse, dout, dbias=None, dsink=False, **options)
    assert none.dbias is None and none.dsink is None
    prepared = flashomp.prepare_backward(q, k, v, o, lse, dout, dbias=True, dsink=True, **options)
    into = np.empty_like(options["bias"])
    for asked in ({}, {"dbias": True, "dsink": True}, {"dbias": into, "dsink": None}):
        got = prepared.run(q, k, v, o, lse, dout, **asked)
        np.testing.assert_array_equal(got.dbias, expected.dbias)
        np.testing.assert_array_equal(got.dsink, expected.dsink)
    assert got.dbias is into
    plain = flashomp.prepare_backward(q, k, v, o, lse, dout, **options)
    assert plain.run(q, k, v, o, lse, dout).dbias is None
    dq = np.full_like(q, 7)
    for call in (lambda: plain.run(q, k, v, o, lse, dout, dq=dq, dbias=True),
                 lambda: prepared.run(q, k, v, o, lse, dout, dq=dq, dbias=False),
                 lambda: flashomp.prepare_backward(q, k, v, o, lse, dout, dbias=into, **options)):
        with pytest.raises(flashomp.Error, match="dbias"):
            call()
    assert (dq == 7).all()


def test_options_that_merge_does_not_have(rng):
    q, k, v, _ = tensors(rng)
    a, b = (flashomp.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 20), slice(20, 47)))
    allowed = {"layout": "bshd", "backend": "auto", "machine": "host", "device": "host", "threads": 1}
    out = np.full_like(a[0], 7)
    for name in [*flashomp.Options.__annotations__, "casual"]:
        if name in allowed or name == "stream":
            continue
        with pytest.raises(TypeError, match=f"merge\\(\\) has no option '{name}'; its options are layout") as error:
            flashomp.merge(*a, *b, out=out, **{name: None})
        sentence(error)
    assert (out == 7).all()
    np.testing.assert_array_equal(flashomp.merge(*a, *b, **allowed)[0], flashomp.merge(*a, *b)[0])
    assert set(inspect.signature(flashomp.merge).parameters) >= {*allowed, "stream"}


def test_masked_arrays_are_refused(rng):
    """NumPy hands their numbers out without the mask."""
    class Own(np.ma.MaskedArray):
        pass

    q, k, v, _ = tensors(rng)
    out = np.full((2, 33, 4, 16), 7, np.float32)
    masked = {"q": q, "k": k, "v": v, "out": out, "bias": np.zeros((1, 1, 33, 47), np.float32)}
    for name, array in masked.items():
        for bad in (np.ma.masked_array(array, mask=array > 0), np.ma.masked_array(array), array.view(Own)):
            call = {"q": q, "k": k, "v": v, name: bad}
            with pytest.raises(flashomp.Error, match=f"^{name} is a masked array of NumPy, .*{name}.filled") as error:
                flashomp.attention(**call)
            sentence(error)
    assert (out == 7).all()
    class MaskedArray(np.ndarray):  # of somebody else
        pass
    np.testing.assert_array_equal(flashomp.attention(q.view(MaskedArray), k, v), flashomp.attention(q, k, v))


def test_signatures_and_documentation_name_every_option():
    parameters = inspect.signature(flashomp.attention).parameters
    assert parameters["causal"].default == "none" and parameters["bias"].kind is inspect.Parameter.KEYWORD_ONLY
    for name in flashomp.Options.__annotations__:
        assert name in parameters
        assert re.search(rf"\b{name}\b", flashomp.attention.__doc__), name
    for name in flashomp.__all__:
        assert getattr(flashomp, name).__doc__


def test_the_gil_is_released(rng):
    """Another thread of Python runs while a long call does."""
    q, k, v, _ = tensors(rng, batch=1, rows=3000, columns=3000, heads=8, heads_kv=8, depth=64, depth_v=64)
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    other = threading.Thread(target=tick)
    other.start()
    begin = time.perf_counter()
    flashomp.attention(q, k, v, threads=1)
    end = time.perf_counter()
    done.set()
    other.join()
    during = [t for t in ticks if begin < t < end]
    assert len(during) > 5 and end - begin > 0.02


def test_threads_at_once(rng):
    cases = [tensors(rng, rows=20 + n) for n in range(6)]
    expected = [flashomp.attention(q, k, v) for q, k, v, _ in cases]
    results = [None] * len(cases)

    def work(n):
        q, k, v, _ = cases[n]
        for _ in range(20):
            results[n] = flashomp.attention(q, k, v, threads=2)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(results, expected):
        np.testing.assert_array_equal(got, want)


def test_a_prepared_call_in_two_threads_is_refused(rng):
    q, k, v, _ = tensors(rng, batch=1, rows=2000, columns=2000, heads=8, heads_kv=8, depth=64, depth_v=64)
    layer = flashomp.prepare(q, k, v, threads=1)
    expected = flashomp.attention(q, k, v, threads=1)
    results, refusals = [], []
    barrier = threading.Barrier(2)

    def work():
        barrier.wait()
        for _ in range(3):
            try:
                results.append(layer.run(q, k, v))
            except flashomp.Error as error:
                refusals.append(str(error))
                time.sleep(0.01)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results and refusals and "another thread" in refusals[0]
    for got in results:
        np.testing.assert_array_equal(got, expected)
