"""GPT-2 in plain PyTorch, its attention by whichever implementation is named.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): token and learned position embeddings, blocks with
the norm first, GELU by its tanh formula, the output layer tied to the token embedding, weights from N(0, 0.02²), those of the
last layer of each branch divided by √(2·layers). Dropout is left out: each attention would drop other probabilities, and no two
loss curves could be compared.
"""

import contextlib
import math

import flashomp  # before torch, so that OpenMP's GPU code finds GPUs
import flashomp.torch
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {"pytorch-math": SDPBackend.MATH, "pytorch-flash": SDPBackend.FLASH_ATTENTION,
           "pytorch-efficient": SDPBackend.EFFICIENT_ATTENTION}
BACKENDS = {"flashomp-openmp": "openmp", "flashomp-cuda": "cuda"}
ENABLED = "flashomp-enabled"
ATTENTIONS = (*KERNELS, *BACKENDS, ENABLED)


class Flashomp(torch.autograd.Function):
    """flashomp.attention and flashomp.attention_backward as a function with gradients: the whole glue that a backend of one's
    choice takes. flashomp.torch.attention has all options and works in compiled code, but chooses the backend itself."""

    @staticmethod
    def forward(ctx, q, k, v, options, reports):
        o, lse, report = flashomp.attention(q, k, v, return_lse=True, return_report=True, **options)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        reports["forward"] = report
        ctx.reports = reports
        return o

    @staticmethod
    def backward(ctx, dout):
        q, k, v, o, lse = ctx.saved_tensors
        gradients, ctx.reports["backward"] = flashomp.attention_backward(q, k, v, o, lse, dout.contiguous(), return_report=True,
                                                                         **ctx.options)
        return gradients.dq, gradients.dk, gradients.dv, None, None


class Attention:
    """Causal attention of q, k, v [batch, seqlen, heads, head_dim] by one of ATTENTIONS; what ran is in ran()."""

    def __init__(self, name, device):
        self.name = name
        self.reports = {}
        self.options = {"causal": "top_left", "backend": BACKENDS.get(name)}
        if device == "cpu":
            self.options |= {"device": "host", "threads": torch.get_num_threads()}
        self.is_cuda = device != "cpu"
        flashomp.torch.counts(reset=True)

    def around(self):
        """What is on while the model trains: flashomp in the place of PyTorch's function, for ENABLED alone."""
        return flashomp.torch.enabled(cuda=self.is_cuda) if self.name == ENABLED else contextlib.nullcontext()

    def __call__(self, q, k, v):
        if self.name in BACKENDS:
            # Autocast is the caller's: the products before have made q, k and v of its type.
            if torch.is_grad_enabled():
                return Flashomp.apply(q, k, v, self.options, self.reports)
            return flashomp.attention(q, k, v, **self.options)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(KERNELS[self.name]) if self.name in KERNELS else contextlib.nullcontext():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def ran(self):
        """{"forward": where, "backward": where}, and for ENABLED the counts of calls."""
        told = {direction: f"{report['backend']}:{report['machine']} on {report['ran_on']}"
                for direction, report in self.reports.items()}
        return told | (flashomp.torch.counts() if self.name == ENABLED else {})


class Block(nn.Module):
    def __init__(self, dim, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.projection = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        x = x + self.projection(self.attention(q, k, v).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Logits [batch, seqlen, vocabulary] of tokens [batch, seqlen]. recompute: no block keeps what its backward pass needs but
    for its input, and computes the block again."""

    def __init__(self, vocabulary, seqlen, layers, heads, dim, attention, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.token, self.position = nn.Embedding(vocabulary, dim), nn.Embedding(seqlen, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        for block in self.blocks:
            for last in (block.projection, block.down):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[:tokens.size(1)]
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.recompute and self.training else block(x)
        return F.linear(self.norm(x), self.token.weight)

    def loss(self, tokens, reduction="mean"):
        """Cross-entropy in nats, of each token of a window [batch, seqlen + 1] but the first, in float32."""
        logits = self(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction=reduction)
