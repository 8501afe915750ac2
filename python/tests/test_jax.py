"""flashomp's calls on JAX's arrays of the CPU."""

import pytest
from conftest import assert_close, reference, tensors

jax = pytest.importorskip("jax")
import flashomp  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402


@pytest.mark.parametrize("dtype, bound", [("float32", 3e-5), ("bfloat16", 2e-2), ("float16", 4e-3)])
def test_arrays_come_back_as_arrays(dtype, bound, rng):
    q, k, v, dout = (jnp.asarray(x, dtype) for x in tensors(rng))
    o, lse = flashomp.attention(q, k, v, return_lse=True, causal="bottom_right")
    assert isinstance(o, jax.Array) and isinstance(lse, jax.Array)
    assert o.dtype == q.dtype and lse.dtype == jnp.float32
    plain = [np.asarray(x, np.float64) for x in (q, k, v, dout)]
    expected = reference(*plain, causal="bottom_right")
    assert_close(np.asarray(o, np.float64), expected["o"], bound)
    assert_close(lse, expected["lse"], bound)
    gradients = flashomp.attention_backward(q, k, v, o, lse, dout, causal="bottom_right")
    assert isinstance(gradients.dk, jax.Array)
    assert_close(np.asarray(gradients.dk, np.float64), expected["dk"], 3 * bound)
    assert float(jnp.abs(o.astype(jnp.float32)).sum()) > 0  # JAX computes with it


def test_a_traced_array_is_sent_to_flashomp_jax(rng):
    q, k, v, _ = (jnp.asarray(x) for x in tensors(rng))
    sentence = "is traced by JAX and has no values yet; inside jax.jit, jax.grad and jax.vmap use flashomp.jax.attention."
    with pytest.raises(flashomp.Error) as error:
        jax.jit(flashomp.attention)(q, k, v)
    assert str(error.value) == "q " + sentence
    with pytest.raises(flashomp.Error) as error:
        jax.grad(lambda v: flashomp.attention(q, k, v).sum())(v)
    assert str(error.value) == "v " + sentence
    with pytest.raises(flashomp.Error) as error:
        jax.vmap(lambda bias: flashomp.attention(q, k, v, bias=bias))(jnp.zeros((3, 1, 1, 1, 1)))
    assert str(error.value) == "bias " + sentence


def test_an_array_is_no_output(rng):
    q, k, v, _ = (jnp.asarray(x) for x in tensors(rng))
    with pytest.raises(flashomp.Error, match="out is a JAX array, which cannot be written"):
        flashomp.attention(q, k, v, out=jnp.zeros((2, 33, 4, 16)))
    out = np.zeros((2, 33, 4, 16), np.float32)
    assert flashomp.attention(q, k, v, out=out) is out and out.any()
