"""The tolerance rule for results that PyTorch has, whoever computed them: exact attention in float64, standard attention in
the tested type beside it, and the limits that follow (docs/algorithm.md, "Precision"; src/reference/accuracy.cpp has each
number's reason, and tests/scripts/compare_python_test.py compares the numbers).

Left out of the rule is what scores of hundreds may lose more: inputs here have LSE below 16.

Tensors are [batch, heads, rows, depth].
"""

import collections
import math

OUTPUT_FACTOR, GRADIENT_FACTOR = 2.0, 3.0  # float32
FLOAT32_SLACK = 2e-6
ROWS_OF_A_BLOCK = 64
FEW_KEYS = 16
HALF_UNITS = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
SCORES_AT_ONCE = 1 << 18  # a matrix of them in float64 stays in a core's cache; 2^22 took twice as long

Limit = collections.namedtuple("Limit", "name value bound")


def share(limit):
    """How much of its bound a limit takes; above 1 it is not kept."""
    if not math.isfinite(limit.value):
        return math.inf
    return limit.value / limit.bound if limit.bound > 0 else (0.0 if limit.value == 0 else math.inf)


def standard_attention(torch, q, k, v, dout, scale, bias, visible, dtype=None):
    """{"o", "dq", "dk", "dv"} with the scores of some rows at a time, in float64; with a dtype, as standard attention that
    rounds to that type after every operation.

    bias: added to the scores, [rows, keys], or None. visible(batch, rows): which scores count, broadcastable to
    [heads, rows, keys], or None where all do.
    """
    scalar = torch.float64 if dtype is None else torch.float32

    def rounded(x):
        return x if dtype in (None, torch.float32) else x.to(dtype).to(scalar)

    group = q.size(1) // k.size(1)
    found = {name: [] for name in ("o", "dq", "dk", "dv")}
    for b in range(q.size(0)):
        queries, gradient = q[b].to(scalar), dout[b].to(scalar)
        keys, values = (x[b].to(scalar).repeat_interleave(group, 0) for x in (k, v))
        dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
        o, dq = torch.empty_like(gradient), torch.empty_like(queries)
        step = max(1, SCORES_AT_ONCE // (q.size(1) * k.size(2)))
        for first in range(0, q.size(2), step):
            rows = slice(first, min(first + step, q.size(2)))
            s = rounded(rounded(queries[:, rows] @ keys.mT) * scale)
            if bias is not None:
                s = rounded(s + bias[rows].to(scalar))
            if (seen := visible(b, rows)) is not None:
                s.masked_fill_(~seen, -math.inf)
            p = rounded(torch.exp(rounded(s - s.amax(-1, keepdim=True))))
            p = rounded(p / rounded(p.sum(-1, keepdim=True)))
            o[:, rows] = rounded(p @ values)
            dp = rounded(gradient[:, rows] @ values.mT)
            d = rounded(rounded(p * dp).sum(-1, keepdim=True))
            ds = rounded(rounded(p * rounded(dp - d)) * scale)
            dq[:, rows] = rounded(ds @ keys)
            dk += ds.mT @ queries[:, rows]
            dv += p.mT @ gradient[:, rows]
        for name, x in (("o", o), ("dq", dq)):
            found[name].append(x)
        for name, x in (("dk", dk), ("dv", dv)):
            found[name].append(rounded(x.unflatten(0, (-1, group)).sum(1)))
    return {name: torch.stack(parts) for name, parts in found.items()}


# Of errors, those of standard attention, and exact values: the largest and the root mean squares, sums of products with the values.
Sums = collections.namedtuple("Sums", "largest naive_largest value_largest rms naive_rms value_rms count nonzero mean factor "
                              "naive_factor")


def sums_of(error, naive, exact):
    squares = exact.square().sum().item()
    factors = [(x * exact).sum().item() / squares if squares else 0.0 for x in (error, naive)]
    return Sums(*(x.abs().max().item() for x in (error, naive, exact)),
                *(x.square().mean().sqrt().item() for x in (error, naive, exact)), error.numel(), int(exact.count_nonzero()),
                error.mean().item(), *factors)


def slack_of_rms(dtype, slack, sums):
    """Of a root mean square, and the more of it the fewer errors there are."""
    unit, few = HALF_UNITS.get(dtype, 0.0), 0.25 + 8.0 / math.sqrt(max(1.0, sums.count))
    return FLOAT32_SLACK / 4 + unit * sums.value_rms * few if unit else slack * few


def limits_of(name, dtype, sums, few, in_block, of_few_rows=False):
    """Limits of the largest difference and of the root mean square, and of the whole those of a common factor and the mean."""
    unit = HALF_UNITS.get(dtype, 0.0)
    has_d = name in ("dq", "dk")
    if unit:
        is_loose = name == "dq" and few
        factor = 3.0 if is_loose else 1.0 if name == "o" else 1.5
        of_rms = (3.0 if is_loose else 1.25) if in_block else (2.0 if is_loose else 1.05)
        slack, common = FLOAT32_SLACK * (5.0 if has_d and few else 1.0) + unit * sums.value_largest, 1.25 * unit
    else:
        factor, of_rms, common = OUTPUT_FACTOR if name == "o" else GRADIENT_FACTOR, 2.0, FLOAT32_SLACK
        slack = FLOAT32_SLACK * min(max(sums.value_largest, 5.0 if has_d and few else 1.0), 8.0)
    looser = 1.5 if of_few_rows else 1.0
    factor, of_rms = factor * (1.5 if in_block else looser), of_rms * looser
    where, rms_slack = " of a block of rows" if in_block else "", slack_of_rms(dtype, slack, sums)
    limits = [Limit("largest difference" + where, sums.largest, factor * sums.naive_largest + slack),
              Limit("root mean square" + where, sums.rms, of_rms * sums.naive_rms + rms_slack)]
    if in_block or sums.value_rms == 0:
        return limits
    noise = (sums.naive_rms + rms_slack) / math.sqrt(sums.count)
    return limits + [
        Limit("common factor", abs(sums.factor),
              common + min(1.5 * abs(sums.naive_factor), 2.0 * common) + 4.0 * noise / sums.value_rms),
        Limit("mean", abs(sums.mean), 0.05 * sums.naive_rms + max(rms_slack, unit * sums.value_rms) + 8.0 * noise)]


def judge(name, dtype, actual, exact, naive, few_keys):
    """All limits of one result, of the whole and of the block that comes nearest to each.

    name: "o", "dq", "dk" or "dv". dtype: the name of the tested type. few_keys: which rows see fewer than FEW_KEYS keys.
    """
    def in_rows(x):  # [batch, rows, heads and depth]
        return x.double().transpose(1, 2).flatten(2)
    actual, exact, naive = in_rows(actual), in_rows(exact), in_rows(naive)
    if not bool(actual.isfinite().all()):
        return [Limit("largest difference", math.inf, 0.0)]
    error, naive = actual - exact, naive - exact
    batch, rows, _ = exact.shape
    few_rows, any_few = batch * rows < ROWS_OF_A_BLOCK, bool(few_keys.any())
    limits = limits_of(name, dtype, sums_of(error, naive, exact), any_few or few_rows, False, few_rows)
    if rows < 2 * ROWS_OF_A_BLOCK:
        return limits
    blocks = []
    for b in range(batch):
        for first in range(0, rows - ROWS_OF_A_BLOCK + 1, ROWS_OF_A_BLOCK):
            last = rows if first + 2 * ROWS_OF_A_BLOCK > rows else first + ROWS_OF_A_BLOCK
            sums = sums_of(*(x[b, first:last] for x in (error, naive, exact)))
            few = bool(few_keys[first:last].any()) if name == "dq" else any_few
            if name == "dq" and few and 4 * sums.nonzero < ROWS_OF_A_BLOCK * exact.size(2):
                continue  # one row's rounding, which the whole's limits hold
            blocks.append(limits_of(name, dtype, sums, few, True))
    return limits + [max(alike, key=share) for alike in zip(*blocks)]


def verdict(limits_by_name):
    """What a row of results says: errors and bounds of each result, the nearest limit, and why it is wrong where it is."""
    row = {}
    for name, limits in limits_by_name.items():
        largest = max((limit for limit in limits if limit.name.startswith("largest")), key=share)
        row |= {f"error_{name}": largest.value, f"bound_{name}": largest.bound}
    name, nearest = max(((name, limit) for name, limits in limits_by_name.items() for limit in limits),
                        key=lambda one: share(one[1]))
    row |= {"nearest_limit": f"{name}, {nearest.name}", "nearest_limit_share": share(nearest)}
    if not share(nearest) <= 1:
        row |= {"is_wrong": True, "error_occurred": True,
                "error_message": f"wrong: {name}, {nearest.name} {nearest.value:.3g} is over its bound, {nearest.bound:.3g}"}
    return row
