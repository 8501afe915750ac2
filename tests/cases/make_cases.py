#!/usr/bin/env python3
"""Makes the cases of this folder that PyTorch did not make: those with dropout, a sink or a negative scale.

    tests/cases/make_cases.py [FOLDER]     writes them into FOLDER (this one)
    tests/cases/make_cases.py --check      compares the files here with what it computes: exit status 1 if they differ

Attention and its gradients in float64, from the equations of include/flashomp/attention.hpp and the dropout mask that
include/flashomp/dropout.hpp documents: Philox4x32-10 (Salmon and others, SC 2011). It shares no code with the library
and needs nothing but Python: sums are math.fsum's, D is the sum of P times dP, and every gradient is also compared with
a difference quotient of the loss sum(o * do).
"""
import json
import math
import pathlib
import random
import struct
import sys

WORD = 0xFFFFFFFF


def philox4x32_10(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & WORD, (p0 >> 32) ^ c3 ^ k1, p0 & WORD
        k0, k1 = (k0 + 0x9E3779B9) & WORD, (k1 + 0xBB67AE85) & WORD
    return c0, c1, c2, c3


# The known answers of the paper's own library (Random123, kat_vectors).
assert philox4x32_10((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
assert philox4x32_10((WORD,) * 4, (WORD,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def kept(dropout, b, h, i, j):
    """Whether the probability at (batch, query head, i, j) is kept."""
    seed, offset = dropout.get("seed", 0), dropout.get("offset", 0)
    key = philox4x32_10((offset & WORD, offset >> 32, 0, 0), (seed & WORD, seed >> 32))[:2]
    draw = philox4x32_10((j // 4, i, h, b), key)[j % 4]
    return draw >= int(dropout["probability"] * 2.0**32 + 0.5)


def bfloat16(x):
    """The nearest number that bfloat16 has, and float16 too where it is not tiny."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def drawn(rng, shape, spread=1.0):
    """Nested lists [..] of that shape."""
    if not shape:
        return bfloat16(rng.gauss(0.0, spread))
    return [drawn(rng, shape[1:], spread) for _ in range(shape[0])]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


class Problem:
    """q, do [B][Nq][Hq][d], k, v [B][Nk][Hkv][d]; bias [1][1][Nq][Nk], sink [Hq] and dropout may be None."""

    def __init__(self, shape, seed, options, sink=None, bias=False, spread=1.0):
        b, hq, hkv, nq, nk, d = shape
        rng = random.Random(seed)
        self.shape, self.options = shape, options
        self.q, self.k = drawn(rng, (b, nq, hq, d), spread), drawn(rng, (b, nk, hkv, d), spread)
        self.v, self.do = drawn(rng, (b, nk, hkv, d)), drawn(rng, (b, nq, hq, d))
        self.sink = sink
        self.bias = drawn(rng, (1, 1, nq, nk)) if bias else None
        self.scale = options.get("scale", 1.0 / math.sqrt(d))
        dropout = options.get("dropout")
        self.factor = {}
        if dropout:
            for at in ((n, h, i, j) for n in range(b) for h in range(hq) for i in range(nq) for j in range(nk)):
                self.factor[at] = 1.0 / (1.0 - dropout["probability"]) if kept(dropout, *at) else 0.0

    def visible(self, i, j):
        _, _, _, nq, nk, _ = self.shape
        distance = i + nk - nq - j
        left, right = self.options.get("window", (-1, -1))
        causal = self.options.get("causal", "none")
        return ((causal != "top_left" or j <= i) and (causal != "bottom_right" or distance >= 0)
                and (left < 0 or distance <= left) and (right < 0 or -distance <= right))

    def row(self, n, h, i):
        """Probabilities by key, that of the sink, LSE and o of one row."""
        _, hq, hkv, _, nk, d = self.shape
        kv = h // (hq // hkv)
        logits = {}
        for j in range(nk):
            if self.visible(i, j):
                s = self.scale * dot(self.q[n][i][h], self.k[n][j][kv])
                softcap = self.options.get("softcap", 0.0)
                if softcap:
                    s = softcap * math.tanh(s / softcap)
                logits[j] = s + (self.bias[0][0][i][j] if self.bias else 0.0)
        sink = self.sink[h] if self.sink else -math.inf
        most = max([*logits.values(), sink])
        if most == -math.inf:
            return {}, 0.0, -math.inf, [0.0] * d
        total = math.fsum([*(math.exp(s - most) for s in logits.values()), math.exp(sink - most)])
        p = {j: math.exp(s - most) / total for j, s in logits.items()}
        dropped = {j: x * self.factor.get((n, h, i, j), 1.0) for j, x in p.items()}
        o = [math.fsum(x * self.v[n][j][kv][c] for j, x in dropped.items()) for c in range(d)]
        return p, math.exp(sink - most) / total, most + math.log(total), o

    def loss(self):
        b, hq, _, nq, _, _ = self.shape
        return math.fsum(dot(self.row(n, h, i)[3], self.do[n][i][h])
                         for n in range(b) for h in range(hq) for i in range(nq))

    def results(self):
        b, hq, hkv, nq, nk, d = self.shape

        def zeros(*shape):
            return [zeros(*shape[1:]) for _ in range(shape[0])] if shape else 0.0

        r = {"o": zeros(b, nq, hq, d), "lse": zeros(b, hq, nq), "dq": zeros(b, nq, hq, d), "dk": zeros(b, nk, hkv, d),
             "dv": zeros(b, nk, hkv, d)}
        if self.bias:
            r["dbias"] = zeros(1, 1, nq, nk)
        if self.sink:
            r["dsink"] = zeros(hq)
        softcap = self.options.get("softcap", 0.0)
        for n in range(b):
            for h in range(hq):
                kv = h // (hq // hkv)
                for i in range(nq):
                    p, p_sink, lse, o = self.row(n, h, i)
                    r["o"][n][i][h], r["lse"][n][h][i] = o, lse
                    do, q = self.do[n][i][h], self.q[n][i][h]
                    factor = {j: self.factor.get((n, h, i, j), 1.0) for j in p}
                    dp = {j: dot(do, self.v[n][j][kv]) * factor[j] for j in p}
                    delta = math.fsum(p[j] * dp[j] for j in p)
                    if self.sink:
                        r["dsink"][h] -= p_sink * delta
                    for j in p:
                        ds = p[j] * (dp[j] - delta)
                        if self.bias:
                            r["dbias"][0][0][i][j] += ds
                        if softcap:
                            ds *= 1.0 - math.tanh(self.scale * dot(q, self.k[n][j][kv]) / softcap) ** 2
                        ds *= self.scale
                        for c in range(d):
                            r["dq"][n][i][h][c] += ds * self.k[n][j][kv][c]
                            r["dk"][n][j][kv][c] += ds * q[c]
                            r["dv"][n][j][kv][c] += p[j] * factor[j] * do[c]
        self.compare_with_quotients(r)
        return r

    def compare_with_quotients(self, r):
        """Moves some inputs a little and asks how far the loss moves."""
        rng = random.Random(7)
        inputs = {"dq": self.q, "dk": self.k, "dv": self.v, "dbias": self.bias, "dsink": self.sink}
        for name in r:
            for _ in range(2 if name in inputs else 0):
                at, gradient = inputs[name], r[name]
                while isinstance(at[0], list):
                    n = rng.randrange(len(at))
                    at, gradient = at[n], gradient[n]
                n, step = rng.randrange(len(at)), 1e-5
                before = at[n]
                at[n] = before + step
                up = self.loss()
                at[n] = before - step
                down = self.loss()
                at[n] = before
                quotient = (up - down) / (2.0 * step)
                assert abs(quotient - gradient[n]) < 1e-7 * max(1.0, abs(quotient)), (name, quotient, gradient[n])


def npy(values, code):
    """The bytes of a .npy file, version 1.0."""
    shape, flat = [], values
    while isinstance(flat, list):
        shape.append(len(flat))
        flat = flat[0]

    def flattened(nested):
        return [x for part in nested for x in flattened(part)] if isinstance(nested, list) else [nested]

    extents = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '<f{4 if code == 'f' else 8}', 'fortran_order': False, 'shape': ({extents}), }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    data = flattened(values)
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
    return header + struct.pack(f"<{len(data)}{code}", *data)


def same(a, b):
    """Whether two .npy files say the same: another C library may give another last bit."""
    header = b.index(b"\n") + 1
    if a[:header] != b[:header] or len(a) != len(b):
        return False
    code = "d" if b"<f8" in b[:header] else "f"
    pairs = zip(*(struct.unpack(f"<{(len(b) - header) // struct.calcsize(code)}{code}", x[header:]) for x in (a, b)))
    return all(x == y or abs(x - y) <= 1e-6 * max(1e-3, abs(x)) for x, y in pairs)


def cases():
    """Name, options as in cases.json, and the problem."""
    dropout = {"probability": 0.17, "seed": 81985529216486895, "offset": 1311768467463790320}
    for name, shape, options, extra in (
            ("dropout", (2, 2, 2, 19, 37, 16), {"dropout": dropout}, {}),
            ("dropout_gqa_causal", (1, 4, 2, 23, 41, 8),
             {"causal": "bottom_right", "dropout": {**dropout, "probability": 0.5}}, {}),
            ("sink", (2, 3, 3, 19, 37, 16), {}, {"sink": [0.5, -2.0, 6.0]}),
            ("sink_causal_more_queries", (1, 2, 1, 37, 19, 16), {"causal": "bottom_right"}, {"sink": [1.5, -0.25]}),
            ("sink_decode_1x700", (1, 4, 1, 1, 700, 16), {"causal": "bottom_right"}, {"sink": [4.0, -3.0, 0.0, 7.0]}),
            ("sink_dropout_softcap_window_bias", (1, 4, 2, 33, 45, 8),
             {"window": [13, 9], "softcap": 5.0, "dropout": {"probability": 0.25, "seed": 3}},
             {"sink": [0.25, 1.0, -1.0, 2.0], "bias": True}),
            # The largest dot product is the smallest logit, by hundreds.
            ("negative_scale_large_logits", (1, 2, 2, 35, 70, 16), {"scale": -1.0}, {"spread": 4.0})):
        yield name, options, Problem(shape, name, options, **extra)


def files():
    for name, options, problem in cases():
        entry = {"name": name, "options": options}
        tensors = {key: npy(getattr(problem, key), "f") for key in ("q", "k", "v", "do")}
        for key in ("bias", "sink"):
            if getattr(problem, key):
                tensors[key] = npy(getattr(problem, key), "f")
                entry[key], entry["d" + key] = f"{key}.npy", f"d{key}.npy"
        for key, values in problem.results().items():
            tensors[key] = npy(values, "d" if key == "lse" else "f")
        yield name, entry, tensors


def main(arguments):
    here = pathlib.Path(__file__).resolve().parent
    is_check = arguments == ["--check"]
    folder = here if is_check or not arguments else pathlib.Path(arguments[0])
    differ = []
    listed = {case["name"]: case for case in json.loads((here / "cases.json").read_text())["cases"]}
    for name, entry, tensors in files():
        if is_check:
            differ += [name] if listed.get(name) != entry else []
            differ += [f"{name}/{key}" for key, data in tensors.items()
                       if not same((folder / name / f"{key}.npy").read_bytes(), data)]
            continue
        (folder / name).mkdir(parents=True, exist_ok=True)
        for key, data in tensors.items():
            (folder / name / f"{key}.npy").write_bytes(data)
        print(json.dumps(entry))
    if differ:
        print("differ: " + ", ".join(differ))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
