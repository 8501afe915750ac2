"""Training steps of examples/gpt, taken once more by PyTorch's automatic differentiation: the same weights, batches and losses."""

import json
import math
import pathlib
import struct
import subprocess

import numpy as np
import pytest

import flashomp

torch = pytest.importorskip("torch")
functional = torch.nn.functional

PROGRAM = pathlib.Path(flashomp.__file__).parents[2] / "bin" / "gpt"
TEXT = pathlib.Path(__file__).parents[2] / "docs" / "algorithm.md"
LAYERS, HEADS, DIM, SEQLEN, NGRAMS, HASH_ROWS, STEPS, WARMUP = 2, 4, 32, 64, 3, 100, 30, 5
RATE, LAST_RATE, BETA1, BETA2, EPSILON, DECAY, CLIP = 2e-3, 0.1, 0.9, 0.99, 1e-8, 0.1, 1.0
OPTIONS = ["--layers", LAYERS, "--heads", HEADS, "--dim", DIM, "--seqlen", SEQLEN, "--hashed-ngrams", NGRAMS, "--hash-rows", HASH_ROWS,
           "--batch", 1, "--steps", STEPS, "--warmup", WARMUP, "--last-rate", LAST_RATE, "--beta1", BETA1, "--beta2", BETA2, "--weight-decay", DECAY,
           "--clip", CLIP, "--ngram", 0, "--eval-every", 0, "--device", "host", "--threads", 1, "--data", TEXT]
ALL_BITS = (1 << 64) - 1

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="examples/gpt is not built beside this package")


def mix(x):
    """SplitMix64's next number, as examples/gpt/random.hpp has it."""
    x = (x + 0x9E3779B97F4A7C15) & ALL_BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL_BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL_BITS
    return x ^ (x >> 31)


def training_text():
    """The bytes of TEXT before its last twentieth."""
    text = TEXT.read_bytes()
    return text[: text.index(b"\n", len(text) - len(text) // 20) + 1]


def weights_of(path):
    """{name: float32 tensor} of a checkpoint, without AdamW's moments."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__" and not name.startswith("adam."):
            first, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = torch.tensor(np.frombuffer(data[first:end], np.float32).reshape(entry["shape"]).copy())
    return tensors


def ngram_rows(tokens):
    """(token, row of the table) of every n-gram that ends at a token."""
    for i in range(len(tokens)):
        state = 0
        for n in range(1, min(NGRAMS, i + 1) + 1):
            state = mix(state ^ tokens[i - n + 1])
            if n >= 2:
                yield i, (n - 2) * HASH_ROWS + state % HASH_ROWS


def scores(w, tokens):
    """The model of examples/gpt: [SEQLEN, 256]."""
    places, rows = (torch.tensor(each) for each in zip(*ngram_rows(tokens)))
    x = w["embedding.tokens"][torch.tensor(tokens)] + w["embedding.positions"]
    x = x.index_add(0, places, w["embedding.ngrams"][rows])
    distance = torch.arange(SEQLEN)[:, None] - torch.arange(SEQLEN)[None]
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / HEADS) for head in range(HEADS)])
    bias = torch.where(distance >= 0, -slopes[:, None, None] * distance, -math.inf)

    def norm(x, name):
        return functional.layer_norm(x, (DIM,), w[f"{name}.weight"][0], w[f"{name}.bias"][0])

    def linear(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    for layer in (f"layer.{i}" for i in range(LAYERS)):
        qkv = linear(norm(x, f"{layer}.attention.norm"), f"{layer}.attention.qkv")
        q, k, v = qkv.view(SEQLEN, 3, HEADS, DIM // HEADS).permute(1, 2, 0, 3)
        attention = (q @ k.mT / math.sqrt(DIM // HEADS) + bias).softmax(-1) @ v
        x = x + linear(attention.transpose(0, 1).reshape(SEQLEN, DIM), f"{layer}.attention.out")
        hidden = functional.gelu(linear(norm(x, f"{layer}.mlp.norm"), f"{layer}.mlp.up"), approximate="tanh")
        x = x + linear(hidden, f"{layer}.mlp.down")
    return norm(x, "norm") @ w["embedding.tokens"].T


def learning_rate(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * (LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))))


def run(folder, name, rate):
    """Losses, norms of the gradients and the weights after the last step."""
    checkpoint, record = folder / f"{name}.safetensors", folder / f"{name}.jsonl"
    options = [*OPTIONS, "--learning-rate", rate, "--save", checkpoint, "--json", record]
    subprocess.run([PROGRAM, *map(str, options)], check=True, capture_output=True)
    steps = [line for line in map(json.loads, record.read_text().splitlines()) if line["type"] == "step"]
    return [step["loss"] for step in steps], [step["gradient_norm"] for step in steps], weights_of(checkpoint)


def test_steps_are_those_of_pytorch(tmp_path):
    _, _, first = run(tmp_path, "first", 0.0)  # a rate of 0: the initial weights
    losses, norms, last = run(tmp_path, "last", RATE)
    text = training_text()
    w = {name: tensor.requires_grad_() for name, tensor in first.items()}
    vectors = {name for name in w if w[name].shape[0] == 1} | {"embedding.positions", "embedding.ngrams"}
    m, v = ({name: torch.zeros_like(tensor) for name, tensor in w.items()} for _ in range(2))
    for step in range(STEPS):
        start = mix(mix(mix(1) ^ 2) ^ step) % (len(text) - SEQLEN)
        tokens = list(text[start:start + SEQLEN + 1])
        loss = functional.cross_entropy(scores(w, tokens[:-1]), torch.tensor(tokens[1:]))
        gradients = dict(zip(w, torch.autograd.grad(loss, list(w.values()))))
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
        assert loss.item() == pytest.approx(losses[step], rel=2e-5), step
        assert norm == pytest.approx(norms[step], rel=2e-4), step
        with torch.no_grad():
            for name, g in gradients.items():
                g = g * min(1.0, CLIP / norm)
                # Of n-grams, those rows move that the step has looked up.
                moves = (g != 0).any(1, keepdim=True) if name == "embedding.ngrams" else torch.tensor(True)
                m[name] = torch.where(moves, BETA1 * m[name] + (1 - BETA1) * g, m[name])
                v[name] = torch.where(moves, BETA2 * v[name] + (1 - BETA2) * g.square(), v[name])
                mean, square = m[name] / (1 - BETA1 ** (step + 1)), v[name] / (1 - BETA2 ** (step + 1))
                decay = 0.0 if name in vectors else DECAY
                w[name] -= learning_rate(step) * torch.where(moves, mean / (square.sqrt() + EPSILON) + decay * w[name], 0.0)
    for name, tensor in w.items():
        difference = (tensor - last[name]).detach().abs()
        if name.endswith("qkv.bias"):
            difference[:, DIM:2 * DIM] = 0  # softmax does not see the keys' bias: AdamW scales what is rounding there to its rate
        assert difference.max() < 1e-4, name
