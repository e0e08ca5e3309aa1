"""The probe: a standard SmolLM3 of five layers, initialised to attend to the tokens just before.

Two layers attend to everything and have no positions; in training they also attend to other documents of the batch, each of
which counts `R` times. Margins then hold for a context of up to R documents at the cost of a short one.
"""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLIDING, FULL = "sliding_attention", "full_attention"
NEVER = -1e9
#: How much louder than the token itself the tokens before it are at first, so that matching them is not drowned by it.
LOUD = 2.0
#: Strength at first of the query for a key.
FETCH = 12.0


class Config:
    """Shape; the names are those of config.json."""

    vocab_size = 2816
    hidden_size = 256
    intermediate_size = 512
    num_attention_heads = 4
    num_key_value_heads = 2
    head_dim = 64
    layer_types = [SLIDING, SLIDING, FULL, SLIDING, FULL]
    sliding_window = 64
    rope_theta = 1000.0
    rms_norm_eps = 1e-6
    #: One coordinate of every embedding is constant, for heads that look at distances only.
    constant = 4.0


def rope_tables(length: int, config: type[Config], offset: int = 0) -> tuple[Tensor, Tensor]:
    """Cosines and sines, `length x 1 x head_dim`."""
    size = config.head_dim
    inverse = 1.0 / (config.rope_theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
    angles = torch.outer(torch.arange(offset, offset + length, dtype=torch.float32), inverse)
    both = torch.cat([angles, angles], -1)[:, None]
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split order of Llama."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class Block(nn.Module):
    """One layer. Parameters are bare matrices so that the optimizer sees which are which."""

    def __init__(self, config: type[Config], kind: str) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self.config, self.kind = config, kind
        empty = lambda *shape: nn.Parameter(torch.empty(*shape))
        self.input_layernorm = nn.Parameter(torch.ones(hidden))
        self.post_attention_layernorm = nn.Parameter(torch.ones(hidden))
        self.q_proj = empty(config.num_attention_heads * size, hidden)
        self.k_proj = empty(config.num_key_value_heads * size, hidden)
        self.v_proj = empty(config.num_key_value_heads * size, hidden)
        self.o_proj = empty(hidden, config.num_attention_heads * size)
        self.gate_proj = empty(config.intermediate_size, hidden)
        self.up_proj = empty(config.intermediate_size, hidden)
        self.down_proj = empty(hidden, config.intermediate_size)

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, `batch x length x heads x head_dim`; queries are already scaled."""
        config = self.config
        batch, length, _ = x.shape
        h = F.rms_norm(x, (config.hidden_size,), self.input_layernorm, config.rms_norm_eps)
        q = F.linear(h, self.q_proj).view(batch, length, config.num_attention_heads, config.head_dim)
        k = F.linear(h, self.k_proj).view(batch, length, config.num_key_value_heads, config.head_dim)
        v = F.linear(h, self.v_proj).view(batch, length, config.num_key_value_heads, config.head_dim)
        if self.kind == SLIDING:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return q * config.head_dim**-0.5, k, v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection and the gated layer."""
        x = x + F.linear(attended, self.o_proj)
        h = F.rms_norm(x, (self.config.hidden_size,), self.post_attention_layernorm, self.config.rms_norm_eps)
        return x + F.linear(F.silu(F.linear(h, self.gate_proj)) * F.linear(h, self.up_proj), self.down_proj)

    def forward(self, x: Tensor, context: "Context") -> Tensor:
        q, k, v = self.qkv(x, context.cos, context.sin)
        attended = self.local(q, k, v, context) if self.kind == SLIDING else self.full(q, k, v, context)
        return self.finish(x, attended)

    def local(self, q: Tensor, k: Tensor, v: Tensor, context: "Context") -> Tensor:
        """Attention inside the window: each block of `sliding_window` queries sees its own keys and those of the block before."""
        window, groups = self.config.sliding_window, self.config.num_key_value_heads
        batch, length, heads, size = q.shape
        blocks, per = length // window, heads // groups
        q = q.view(batch, blocks, window, groups, per, size).permute(0, 1, 3, 4, 2, 5).reshape(-1, per * window, size)

        def with_block_before(t: Tensor) -> Tensor:
            t = t.view(batch, blocks, window, groups, size).permute(0, 1, 3, 2, 4)
            before = torch.cat([torch.zeros_like(t[:, :1]), t[:, :-1]], 1)
            return torch.cat([before, t], 3).reshape(-1, 2 * window, size)

        k, v = with_block_before(k), with_block_before(v)
        scores = torch.bmm(q, k.transpose(1, 2)).view(batch, blocks, groups, per, window, 2 * window)
        weights = (scores + context.local_mask[None, :, None, None]).softmax(-1)
        out = torch.bmm(weights.view(-1, per * window, 2 * window), v)
        return out.view(batch, blocks, groups, per, window, size).permute(0, 1, 4, 2, 3, 5).reshape(batch, length, -1)

    def full(self, q: Tensor, k: Tensor, v: Tensor, context: "Context") -> Tensor:
        """Attention to everything before, and to the documents of the first `distractors` rows with their log-weights."""
        groups, others = self.config.num_key_value_heads, context.distractors
        batch, length, heads, size = q.shape
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        bias = context.causal_mask + context.own_bias[:, None, None]
        if others:
            flat = lambda t: t[:others].transpose(0, 1).reshape(1, groups, others * length, size).expand(batch, -1, -1, -1)
            k, v = torch.cat([flat(k), k], 2), torch.cat([flat(v), v], 2)
            bias = torch.cat([context.other_bias[:, None, None].expand(-1, -1, length, -1), bias], -1)
        k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return out.transpose(1, 2).reshape(batch, length, -1)


class Context:
    """Tables and biases of one batch."""

    def __init__(self, length: int, config: type[Config]) -> None:
        window = config.sliding_window
        self.cos, self.sin = rope_tables(length, config)
        i, j = torch.arange(window)[:, None], torch.arange(2 * window)[None] - window
        near = torch.where((j <= i) & (i - j < window), 0.0, NEVER)[None].repeat(length // window, 1, 1)
        near[0, :, :window] = NEVER
        self.local_mask = near
        at = torch.arange(length)
        self.causal_mask = torch.where(at[:, None] >= at[None], 0.0, NEVER)
        self.distractors = 0
        self.own_bias = self.other_bias = torch.empty(0)


class Probe(nn.Module):
    """Embedding, layers, tied output."""

    def __init__(self, config: type[Config] = Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList([Block(config, kind) for kind in config.layer_types])
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.initialise()

    def forward(self, ids: Tensor, wanted: Tensor, context: Context) -> Tensor:
        """Logits at the flat positions `wanted`."""
        x = self.embed_tokens[ids]
        for block in self.layers:
            x = block(x, context)
        x = x.reshape(-1, self.config.hidden_size)[wanted]
        return F.linear(F.rms_norm(x, (self.config.hidden_size,), self.norm, self.config.rms_norm_eps), self.embed_tokens)

    @torch.no_grad()
    def initialise(self) -> None:
        """Heads of the first two layers look 1, 2, 3, 4 and 4, 8 tokens back; a head of the first full layer matches the four
        tokens before and copies what followed. Everything else is orthogonal."""
        config = self.config
        size = config.head_dim
        self.embed_tokens.normal_()
        self.norm.fill_(0.04)
        self.embed_tokens[:, 0] = config.constant
        self.embed_tokens[:, -size:] = 0
        for block in self.layers:
            for matrix, gain in ((block.q_proj, 1.0), (block.k_proj, 1.0), (block.v_proj, 1.0), (block.gate_proj, 1.0),
                                 (block.up_proj, 1.0), (block.o_proj, 0.5), (block.down_proj, 0.2)):
                nn.init.orthogonal_(matrix, gain=gain)
        first, second = self.layers[0], self.layers[1]
        for head, back in enumerate((1, 2, 3, 4)):
            self.look_back(first, head, head // 2, back)
        first.v_proj[size : 2 * size] = first.v_proj[:size]
        first.v_proj[:, 0] = 0
        nn.init.orthogonal_(first.o_proj, gain=LOUD)
        first.o_proj[-size:] = 0
        for head, back in ((0, 4), (1, 8)):
            self.look_back(second, head, 0, back)
        match = self.layers[config.layer_types.index(FULL)]
        quarter, value = size // 4, first.v_proj[:size].clone()
        for j in range(4):
            code = torch.zeros(quarter, size)
            nn.init.orthogonal_(code)
            out = lambda head: first.o_proj[:, head * size : (head + 1) * size].t()
            rows = slice(j * quarter, (j + 1) * quarter)
            match.k_proj[rows] = 1.3 / LOUD * code @ out(j)
            match.q_proj[rows] = 1.3 * (code @ value if j == 0 else code @ out(j - 1) / LOUD)
        match.o_proj[:, :size] = match.v_proj[:size].t()

    @torch.no_grad()
    def start_with_equal_forms(self, vocabulary: dict[str, int], apart: float = 0.4) -> None:
        """A word without the blank before it begins as the same word with it plus one common direction, so that a head that
        copies one can say the other."""
        direction = torch.randn(self.config.hidden_size) * apart
        direction[0] = 0
        for token, row in vocabulary.items():
            other = vocabulary.get("\u0120" + token)
            if other is not None:
                self.embed_tokens[row] = self.embed_tokens[other] + direction

    @torch.no_grad()
    def start_at_question_mark(self, answer: int, mark: int) -> None:
        """A head of the second layer takes the two tokens before the last question mark to the token that calls for the answer,
        where a head of the first full layer looks for them two and three tokens back: behind `key:` and `key is`.

        The last coordinates of the embedding are free at first and carry the key.
        Half a head of 64 for each token: with a quarter, chance matches of other positions are as strong as the right one."""
        size, head, group = self.config.head_dim, 2, 1
        half, slow = size // 2, size // 2 - 1
        first, second, match = self.layers[0], self.layers[1], self.layers[self.config.layer_types.index(FULL)]
        keys, queries = slice(group * size, (group + 1) * size), slice(head * size, (head + 1) * size)
        for matrix, rows, token in ((second.q_proj, queries, answer), (second.k_proj, keys, mark)):
            direction = self.embed_tokens[token].clone()
            direction[0] = 0
            matrix[rows] *= 0.1
            matrix[rows.start + slow] = 1.6 * direction / direction.norm()
        for part in (0, 1):
            code = torch.empty(half, size)
            nn.init.orthogonal_(code)
            back = lambda tokens: code @ first.o_proj[:, (tokens - 1) * size : tokens * size].t() / LOUD
            taken = slice(part * half, (part + 1) * half)
            here = lambda at: slice(at * size + taken.start, at * size + taken.stop)
            second.v_proj[here(group)] = back(part + 1)
            match.k_proj[here(group)] = back(part + 2)
        match.q_proj[queries] = 0
        match.q_proj[queries, -size:] = FETCH * torch.eye(size)
        second.o_proj[-size:] = 0
        second.o_proj[:, queries] = 0
        second.o_proj[-size:, queries] = torch.eye(size)
        match.o_proj[:, queries] = match.v_proj[keys].t()

    def look_back(self, block: Block, head: int, group: int, back: int, amplitude: float = 1.3, fast: int = 8) -> None:
        """A head that attends `back` tokens back, by the fast frequencies of RoPE."""
        size = self.config.head_dim
        inverse = 1.0 / (self.config.rope_theta ** (torch.arange(0, size, 2).float() / size))[:fast]
        key, query = torch.zeros(size), torch.zeros(size)
        key[:fast] = amplitude
        query[:fast] = amplitude * torch.cos(back * inverse)
        query[size // 2 : size // 2 + fast] = amplitude * torch.sin(-back * inverse)
        rows, key_rows = slice(head * size, (head + 1) * size), slice(group * size, (group + 1) * size)
        block.q_proj[rows] *= 0.1
        block.k_proj[key_rows] *= 0.1
        block.q_proj[rows, 0] = query
        block.k_proj[key_rows, 0] = key


class Optimizer:
    """Muon for matrices, Adam for the embedding and norms."""

    def __init__(self, model: Probe) -> None:
        self.matrices = [p for name, p in model.named_parameters() if "_proj" in name]
        self.vectors = [p for name, p in model.named_parameters() if "_proj" not in name]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.first = [torch.zeros_like(p) for p in self.vectors]
        self.second = [torch.zeros_like(p) for p in self.vectors]
        self.steps = 0

    def state(self) -> dict:
        """Everything that `load` needs."""
        return {"momentum": self.momentum, "first": self.first, "second": self.second, "steps": self.steps}

    def load(self, state: dict) -> None:
        """Goes on from `state`."""
        self.momentum, self.first, self.second, self.steps = (
            state[name] for name in ("momentum", "first", "second", "steps"))

    @torch.no_grad()
    def step(self, rate: float, vector_rate: float) -> None:
        """One update; gradients are cleared."""
        self.steps += 1
        everything = self.matrices + self.vectors
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in everything))
        for p, momentum in zip(self.matrices, self.momentum):
            momentum.mul_(0.95).add_(p.grad)
            update = orthogonalised(p.grad + 0.95 * momentum)
            p.add_(update, alpha=-rate * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
            p.grad = None
        clip = min(1.0, 1.0 / (norm + 1e-6))
        for p, first, second in zip(self.vectors, self.first, self.second):
            gradient = p.grad * clip
            first.mul_(0.9).add_(gradient, alpha=0.1)
            second.mul_(0.98).addcmul_(gradient, gradient, value=0.02)
            mean, square = first / (1 - 0.9**self.steps), second / (1 - 0.98**self.steps)
            p.add_(mean / (square.sqrt() + 1e-8), alpha=-vector_rate * (1.0 if p.dim() == 2 else 0.3))
            p.grad = None


def orthogonalised(matrix: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrix, by Newton-Schulz with the coefficients of Muon."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.mT if tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(steps):
        y = x @ x.mT
        x = torch.addmm(x, torch.addmm(y, y, y, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.mT if tall else x
