"""A small Llama of Transformers with random weights: a training step and generate(), by each way to compute its attention, on
the same weights and tokens, in turn. compare_python.py writes the rows."""

import contextlib
import copy
import math

import flashomp.torch
import flashomp.transformers
import torch
import transformers

import accuracy
from python_calls import described
from pytorch_side import alternating, error_of, row_of_times

SIZES = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 1024}
BATCH, LENGTH, PROMPT, NEW_TOKENS = 2, 512, 256, 64
WEIGHTS_FACTOR = 3.0  # with Transformers' own random weights attention would be next to uniform
DIRECTIONS = ("training step", "generate")
# attn_implementation, and what surrounds every call.
IMPLEMENTATIONS = {"flashomp-transformers": ("flashomp", contextlib.nullcontext),
                   "flashomp-enabled": ("sdpa", flashomp.torch.enabled),
                   "pytorch-sdpa": ("sdpa", contextlib.nullcontext), "pytorch-eager": ("eager", contextlib.nullcontext)}


def description(sizes=None):
    """What the context of a file says of the model."""
    sizes = SIZES if sizes is None else sizes
    model = model_of("eager", sizes)
    return {"class": "LlamaForCausalLM", "parameters": sum(x.numel() for x in model.parameters())} | sizes


def model_of(attention, sizes):
    config = transformers.LlamaConfig(**sizes, attn_implementation=attention, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(WEIGHTS_FACTOR)
    return model


def largest_share(limits):
    return max(limits, key=accuracy.share)


def limit_of(name, got, exact, eager, dtype, factor):
    """A result may be `factor` times as far from float64 as with eager attention in the same dtype, and half a unit in the last
    place of its largest value (in float32 2e-6 of it): eager attention is the standard attention of the tolerance rule."""
    slack = accuracy.HALF_UNITS.get(dtype, accuracy.FLOAT32_SLACK) * exact.abs().max().item()
    error, of_eager = ((x.double() - exact).abs().max().item() for x in (got, eager))
    return accuracy.Limit(name, error if math.isfinite(error) else math.inf, factor * of_eager + slack)


class Llama:
    """The model by each implementation, what is computed with it, and what float64 says."""

    def __init__(self, dtype, sizes, batch, length, prompt, new_tokens):
        self.dtype = dtype
        flashomp.transformers.register()
        self.models = {name: model_of(attention, sizes) for name, (attention, _) in IMPLEMENTATIONS.items()}
        self.exact = copy.deepcopy(self.models["pytorch-eager"]).double()
        generator = torch.Generator().manual_seed(2)
        self.tokens = torch.randint(3, sizes["vocab_size"], (batch, length), generator=generator)
        self.prompt, self.new_tokens = self.tokens[:1, :prompt], new_tokens

    def context(self, name):
        """What surrounds a call of an implementation, with autocast for bfloat16."""
        @contextlib.contextmanager
        def around():
            with IMPLEMENTATIONS[name][1](), torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16"):
                yield
        return around

    def gradients(self, model):
        """Loss, logits and the gradients of all parameters, by name."""
        model.zero_grad()
        out = model(input_ids=self.tokens, labels=self.tokens)
        out.loss.backward()
        return {"loss": out.loss.detach(), "logits": out.logits.detach()} | {
            f"the gradient of {name}": x.grad.clone() for name, x in model.named_parameters()}

    def generate(self, model):
        """Tokens of the prompt and new ones, as many as asked for, and the logits of the new ones."""
        out = model.generate(self.prompt, attention_mask=torch.ones_like(self.prompt), max_new_tokens=self.new_tokens,
                             min_new_tokens=self.new_tokens, do_sample=False, output_logits=True, return_dict_in_generate=True)
        return out.sequences, torch.stack(out.logits, 1)

    def check_training(self):
        """{name: part of a row}: loss, logits and gradients of a step from the same weights, compared with float64."""
        exact = self.gradients(self.exact)
        found = {}
        for name, model in self.models.items():
            with self.context(name)():
                found[name] = self.gradients(model)
        eager = found["pytorch-eager"]
        return {name: self.verdict({key: limit_of(key, got[key], exact[key], eager[key], self.dtype,
                                                  accuracy.GRADIENT_FACTOR if "gradient" in key else accuracy.OUTPUT_FACTOR)
                                    for key in exact}) for name, got in found.items()}

    def check_generate(self):
        """The same of the logits of each new token. Sequences may part at a near tie, so that each is compared with what float64
        says of that very sequence."""
        def against(name):
            with self.context(name)():
                sequences, logits = self.generate(self.models[name])
            with torch.no_grad():
                exact = self.exact(input_ids=sequences).logits[:, self.prompt.size(1) - 1:-1]
            return sequences, logits, exact
        found = {name: against(name) for name in self.models}
        of_eager = found["pytorch-eager"]
        eager_error = (of_eager[1].double() - of_eager[2])
        rows = {}
        for name, (sequences, logits, exact) in found.items():
            limit = limit_of("logits", logits, exact, exact + eager_error, self.dtype, accuracy.OUTPUT_FACTOR)
            rows[name] = self.verdict({"logits": limit}) | {
                "tokens_of_eager": int((sequences == of_eager[0]).cumprod(1).sum()) - self.prompt.size(1)}
        return rows

    @staticmethod
    def verdict(limits):
        nearest = largest_share(limits.values())
        row = {f"{part}_{name}": value for name in ("loss", "logits") if name in limits
               for part, value in (("error", limits[name].value), ("bound", limits[name].bound))}
        row |= {"nearest_limit": nearest.name, "nearest_limit_share": accuracy.share(nearest)}
        if not accuracy.share(nearest) <= 1:
            row |= {"is_wrong": True} | error_of(f"wrong: {nearest.name} is off {nearest.value:.3g}, over its bound, "
                                                 f"{nearest.bound:.3g}")
        return row

    def training_step(self, name):
        """A call that trains: forward, loss, backward, AdamW."""
        model = self.models[name]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

        def call():
            loss = model(input_ids=self.tokens, labels=self.tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return call

    def generation(self, name):
        def call():
            self.generate(self.models[name])
        return call


def rows_of_model(dtype, arguments, sizes=None, batch=BATCH, length=LENGTH, prompt=PROMPT, new_tokens=NEW_TOKENS):
    """Rows of both directions; what is wrong is not timed. generate() comes first, as training changes the weights."""
    sizes = SIZES if sizes is None else sizes
    llama, rows = Llama(dtype, sizes, batch, length, prompt, new_tokens), []
    heads, depth = f"h{sizes['num_attention_heads']}kv{sizes['num_key_value_heads']}", f"d{sizes['head_dim']}_causal"
    for direction, check, call_of, shape in (
            ("generate", llama.check_generate, llama.generation, f"b1_{heads}_n1x{prompt + new_tokens}_{depth}"),
            ("training step", llama.check_training, llama.training_step, f"b{batch}_{heads}_n{length}_{depth}")):
        checked = check()
        kept = {name: (call_of(name), llama.context(name)) for name, row in checked.items() if "is_wrong" not in row}
        flashomp.torch.counts(reset=True)
        times = alternating(kept, lambda: None, arguments.repetitions, arguments.min_time, arguments.time_limit)
        elsewhere = flashomp.torch.counts()["pytorch"]
        for name, row in checked.items():
            row |= {"mask": ""} | (row_of_times(times[name]) if name in times else {})
            if name == "flashomp-enabled" and elsewhere:
                row["pytorch_calls"] = elsewhere
            if direction == "generate" and "real_time" in row:
                row |= {"new_tokens": new_tokens, "tokens_per_second": 1e3 * new_tokens / row["real_time"]}
            rows.append(described(row, "model", direction, dtype, shape, name, arguments))
    return rows
