"""Trains one GPT by one attention: what bench/language_model.py runs in a process of its own for each configuration.

    lm_training.py <CONFIGURATIONS.json         one line of JSON on stdout for each, when it has finished

Seed and step alone decide weights and batches, so that configurations that differ in attention, dtype or recomputation start from
the same weights and see the same tokens in the same order.
"""

import hashlib
import json
import math
import pathlib
import statistics
import struct
import sys
import time

import lm_model
import lm_text
import torch

BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.1, 1.0
UNTIMED_STEPS = 3  # the first ones allocate and choose kernels


def rate_of(step, configuration):
    """Learning rate: linear warm-up, then a cosine down to a tenth."""
    warmup, steps, rate = configuration["warmup"], configuration["steps"], configuration["learning_rate"]
    if step < warmup:
        return rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def optimizer_of(model):
    """AdamW that shrinks matrices, but neither biases nor norms."""
    matrices = [x for x in model.parameters() if x.dim() > 1]
    vectors = [x for x in model.parameters() if x.dim() < 2]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
                             betas=BETAS)


def status_bytes(name):
    """A line of /proc/self/status: VmRSS, what is resident; VmHWM, the most that was."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


class Memory:
    """The most memory of a training run. On the CPU that is the process's, less what was resident before the model was made."""

    def __init__(self, device):
        self.device = device
        if device == "cpu":
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
            self.before = status_bytes("VmRSS")
        else:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()

    def row(self):
        if self.device == "cpu":
            peak = status_bytes("VmHWM")
            return {"peak_bytes": peak - self.before, "peak_rss_bytes": peak, "rss_before_bytes": self.before}
        free, total = torch.cuda.mem_get_info()
        # PyTorch's counter does not see what flashomp takes by itself; what the whole GPU has in use does.
        return {"peak_bytes": torch.cuda.max_memory_allocated() - self.before, "reserved_bytes": torch.cuda.max_memory_reserved(),
                "device_used_bytes": total - free}


class Training:
    """A model, its optimizer and its tokens."""

    def __init__(self, configuration, train, validation):
        self.configuration, self.train, self.validation = configuration, train, validation
        self.device = configuration["device"]
        self.attention = lm_model.Attention(configuration["attention"], self.device)
        torch.manual_seed(configuration["seed"])
        self.model = lm_model.GPT(*(configuration[name] for name in ("vocabulary", "seqlen", "layers", "heads", "dim")),
                                  self.attention, configuration["checkpoint"] == "layer").to(self.device)
        self.optimizer = optimizer_of(self.model)
        self.batches = torch.Generator().manual_seed(configuration["seed"])

    def autocast(self):
        return torch.autocast(self.device, torch.bfloat16, enabled=self.configuration["dtype"] == "bfloat16")

    def batch(self):
        """Windows [batch, seqlen + 1] from anywhere in the training text."""
        length = self.configuration["seqlen"] + 1
        starts = torch.randint(len(self.train) - length + 1, (self.configuration["batch"],), generator=self.batches)
        return torch.stack([self.train[start:start + length] for start in starts.tolist()]).long().to(self.device)

    def step(self, number):
        """Loss and the gradients' norm of one step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate_of(number, self.configuration)
        tokens = self.batch()
        with self.autocast():
            loss = self.model.loss(tokens)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.item(), norm.item()

    @torch.no_grad()
    def evaluate(self, most_windows):
        """(mean loss in nats, tokens) of the first windows of the validation text, side by side; 0 is all of them."""
        length = self.configuration["seqlen"]
        starts = range(0, len(self.validation) - length, length)
        starts = starts[:most_windows] if most_windows else starts
        self.model.eval()
        total, batch = 0.0, self.configuration["batch"]
        for first in range(0, len(starts), batch):
            tokens = torch.stack([self.validation[start:start + length + 1] for start in starts[first:first + batch]])
            with self.autocast():
                total += self.model.loss(tokens.long().to(self.device), "sum").item()
        self.model.train()
        return total / (len(starts) * length), len(starts) * length

    def run(self, tell):
        """Trains; returns the part of a row that was measured."""
        steps, every = self.configuration["steps"], self.configuration["eval_every"]
        times, curve, evaluations, digest = [], [], [], hashlib.sha256()
        with self.attention.around():
            for number in range(steps):
                start = time.perf_counter()
                loss, norm = self.step(number)  # ends with .item(), which waits for the GPU
                times.append(time.perf_counter() - start)
                digest.update(struct.pack("<dd", loss, norm))
                if not math.isfinite(loss):
                    raise FloatingPointError(f"the loss of step {number + 1} is {loss}")
                done = number + 1
                if number % every == 0 or done == steps:
                    curve.append({"step": done, "loss": loss, "gradient_norm": norm})
                if done % every == 0 or done == steps:
                    loss, tokens = self.evaluate(self.configuration["last_windows" if done == steps else "eval_windows"])
                    evaluations.append({"step": done, "loss": loss, "perplexity": math.exp(loss), "tokens": tokens})
                    tell(f"step {done} of {steps}: validation perplexity {math.exp(loss):.4f}, "
                         f"{1e3 * statistics.median(times[-every:]):.1f} ms a step")
        timed = times[UNTIMED_STEPS:] or times
        median = statistics.median(timed)
        return {"real_time": 1e3 * median, "least_time": 1e3 * min(timed), "most_time": 1e3 * max(timed), "time_unit": "ms",
                "repetitions": len(timed), "seconds": sum(times),
                "tokens_per_second": self.configuration["batch"] * self.configuration["seqlen"] / median,
                "parameters": sum(x.numel() for x in self.model.parameters()), "perplexity": evaluations[-1]["perplexity"],
                "bits_per_token": evaluations[-1]["loss"] / math.log(2), "curve": curve, "evaluations": evaluations,
                "losses_digest": digest.hexdigest()[:16], "ran": self.attention.ran()}


def refusal(ran, name):
    """A sentence where another implementation computed than was named, or None."""
    if name == lm_model.ENABLED and (ran["pytorch"] or not ran["forward"] or not ran["backward"]):
        return f"PyTorch's function was not served by flashomp: {ran}"
    return None


def measured(configuration, train, validation, tell=lambda words: None):
    """A configuration's results, or {"error_occurred": True, "error_message": …}; memory that runs out is a result, too."""
    try:
        memory = Memory(configuration["device"])
        found = Training(configuration, train, validation).run(tell)
        found |= memory.row()
        why = refusal(found["ran"], configuration["attention"])
    except torch.OutOfMemoryError:
        found, why = {}, "out of memory"
    except (RuntimeError, ValueError, FloatingPointError, MemoryError) as error:
        found, why = {}, " ".join(str(error).split())[:300] or type(error).__name__
    return {"error_occurred": True, "error_message": why} | found if why else found


def main():
    asked = json.load(sys.stdin)
    torch.set_num_threads(asked["threads"])
    first = asked["configurations"][0]
    bpe = pathlib.Path(asked["bpe"]) if asked["bpe"] else None
    parts = lm_text.tokens_of(lm_text.read_corpus(asked["data"]), first["seqlen"], bpe)[:2]
    train, validation = (torch.frombuffer(bytearray(part), dtype=torch.uint8) if bpe is None else
                         torch.tensor(part, dtype=torch.int32) for part in parts)
    for configuration in asked["configurations"]:
        found = measured(configuration, train, validation, lambda words: print("    " + words, file=sys.stderr, flush=True))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
