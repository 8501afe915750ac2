"""torch.compile of small random models with attn_implementation="flashomp": what they compute, and that flashomp's operators are in
the graphs, of which there are no breaks."""

import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flashomp.torch  # noqa: E402
import flashomp.transformers  # noqa: E402
from test_transformers import close, inputs, pair, registered  # noqa: E402, F401  (registered: a fixture)
from torch._dynamo.utils import counters  # noqa: E402

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.skipif(
    shutil.which("g++") is None, reason="inductor needs a C++ compiler"))]
MODELS = ["llama", "gemma2"]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def logits_and_gradients(model, parameters, given):
    """Logits where there is no padding; the gradients lie in the parameters."""
    for parameter in parameters:
        parameter.grad = None
    logits = model(**given).logits
    if "attention_mask" in given:
        logits = logits[given["attention_mask"].bool()]
    torch.logsumexp(logits.float(), -1).sum().backward()
    return logits.detach()


def compare(eager, ours, compiled, given):
    expected = logits_and_gradients(eager, eager.parameters(), given)
    flashomp.torch.counts(reset=True)
    close(logits_and_gradients(compiled, ours.parameters(), given), expected)
    layers = eager.config.num_hidden_layers
    assert flashomp.torch.counts() == {"forward": layers, "backward": layers, "pytorch": {}}
    for (label, parameter), other in zip(eager.named_parameters(), ours.named_parameters()):
        assert label == other[0] and parameter.grad is not None
        close(other[1].grad, parameter.grad, 2e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(name, backend):
    """Without padding, and padded left and right: one graph serves all of these masks, and a second one all lengths."""
    eager, ours = pair(name)
    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    for side in ("none", "left", "right"):
        compare(eager, ours, compiled, inputs(name, side))
    assert counters["stats"]["unique_graphs"] == 1
    if backend == "aot_eager":  # inductor takes half a minute for a graph
        compare(eager, ours, compiled, {"input_ids": inputs(name, "none")["input_ids"]})
        for rows in (17, 13, 9):
            compare(eager, ours, compiled, {key: x[:, -rows:] for key, x in inputs(name, "left").items()})
        assert counters["stats"]["unique_graphs"] <= 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_generate_with_a_static_cache(name, backend):
    """generate() compiles the step that makes a token; prefill stays as it is."""
    eager, ours = pair(name)
    given = inputs(name, "left")
    options = {"max_new_tokens": 10, "min_new_tokens": 10, "do_sample": False, "cache_implementation": "static"}
    expected = eager.generate(**given, **options, disable_compile=True)
    compiling = transformers.CompileConfig(backend=backend, fullgraph=True, mode=None)
    compiling._compile_all_devices = True  # else on accelerators alone
    flashomp.torch.counts(reset=True)
    tokens = ours.generate(**given, **options, compile_config=compiling)
    assert tokens.tolist() == expected.tolist()
    assert counters["stats"]["unique_graphs"] >= 1 and not counters["graph_break"]
    counts = flashomp.torch.counts()
    assert counts["forward"] == ours.config.num_hidden_layers * 10 and not counts["pytorch"]


def test_bfloat16_under_autocast():
    """The compiled model is no further from float32 than the uncompiled one, but for the order of its operations."""
    eager, ours = pair("llama")
    given = inputs("llama", "left")
    with torch.no_grad():
        exact = eager(**given).logits
        with torch.autocast("cpu", torch.bfloat16):
            uncompiled = ours(**given).logits
            compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)(**given).logits
    real = given["attention_mask"].bool()
    errors = [(x - exact)[real].abs().max().item() for x in (compiled, uncompiled)]
    assert 0 < errors[0] <= 1.5 * errors[1]
