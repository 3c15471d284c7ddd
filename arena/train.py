"""The arena: a small GPT, its optimizers, its schedules and its training step. The one file an agent may edit.

Everything here is in play. What is not: the clock, the step count, the data and the checkpoints are the sealed
trainer's, the metric is the sealed judge's. This file refuses to know them; docs/arena.md has the protocol.

Shape suffixes: B rows, T positions, D model width, H query heads, K key/value heads, E head width, V vocabulary,
N = B*T positions in a row, M matrices of one shape, R x C such a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Knobs: `NAME: Annotated[type, low, high]` or `[type, low, high, "log"]` or `[type, (choice, choice, ...)]`.
# Ratchet's search reads and rewrites exactly these lines; plain constants below them are not searched.
DEPTH: Annotated[int, 1, 24] = 4
HEADS: Annotated[int, 1, 16] = 2
HEAD_DIM: Annotated[int, (8, 16, 32, 64, 128)] = 128
QUERIES_PER_KEY: Annotated[int, (1, 2, 4)] = 1
MLP_RATIO: Annotated[int, 1, 8] = 4
WINDOW_PATTERN: Annotated[str, ("L", "SL", "SSSL")] = "L"
VALUE_EMBEDDINGS: Annotated[str, ("none", "alternate", "all")] = "alternate"
SOFT_CAP: Annotated[float, 5.0, 100.0, "log"] = 15.0
ROPE_BASE: Annotated[float, 1e3, 1e6, "log"] = 1e4
BATCH_ROWS: Annotated[int, 1, 512] = 16
ACCUMULATION: Annotated[int, 1, 256] = 1
MATRIX_LR: Annotated[float, 0.002, 0.2, "log"] = 0.04
EMBEDDING_LR: Annotated[float, 0.03, 3.0, "log"] = 0.6
HEAD_LR: Annotated[float, 0.0004, 0.04, "log"] = 0.004
SCALAR_LR: Annotated[float, 0.01, 2.0, "log"] = 0.5
WEIGHT_DECAY: Annotated[float, 0.0, 1.0] = 0.2
MOMENTUM: Annotated[float, 0.8, 0.99] = 0.95
WARMUP: Annotated[float, 0.0, 0.5] = 0.0
WARMDOWN: Annotated[float, 0.0, 1.0] = 0.5
FINAL_LR: Annotated[float, 0.0, 0.5] = 0.0

ADAM_BETAS = (0.8, 0.95)
MOMENTUM_START, MOMENTUM_STEPS = 0.85, 300  # the momentum rises linearly from the first over so many steps
GATE_CHANNELS = 32  # a value embedding is gated by the first channels of the stream
LOSS_CHUNK = {"cpu": 32, "cuda": 16384, "mps": 4096}  # rows of logits at once; 32 stay in a core's cache
MATRICES = ("query", "key", "value", "out", "gate", "up", "down")  # what Muon trains; AdamW has the rest


def kind(name: str) -> str:
    """The last part of a parameter's name, which says what sort it is."""
    return name.rpartition(".")[2]


def matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns))


def norm(x: Tensor) -> Tensor:
    """RMS norm over the last dimension, without weights."""
    return F.rms_norm(x, (x.size(-1),))


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in the dtype of x: the master weights are float32 and are cast where they are used."""
    return F.linear(x, weight.to(x.dtype))


def rotate(x_BTHE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Rotary position embedding (Su et al., 2021): pairs (i, i + E/2) turn by an angle that grows with the position."""
    return x_BTHE * cos_TE + x_BTHE.roll(x_BTHE.size(-1) // 2, -1) * sin_TE


class NormedRotation(torch.autograd.Function):
    """norm(rotate(x, cos, sin)) with half the passes over memory, and the same bits in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated = rotate(x, cos, sin).float()
        scale = (rotated * rotated).mean(-1, keepdim=True).add_(torch.finfo(torch.float32).eps).rsqrt_()
        ctx.save_for_backward(rotated, scale, cos, sin)
        return (rotated * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (rotated, scale, cos, sin), grad = ctx.saved_tensors, grad_outputs[0].float()
        inner = (grad * rotated).sum(-1, keepdim=True).mul_(-0.5).mul_(scale.pow(3)).div_(grad.size(-1) / 2)
        return rotate((grad * scale).add_(rotated * inner).to(cos.dtype), cos, -sin), None, None


class SquaredReLU(torch.autograd.Function):
    """relu(x)**2 (So et al., 2021) with two passes over memory in backward, where autograd makes five."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = F.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return (grad_outputs[0] * ctx.saved_tensors[0]).mul_(2)


class Block(nn.Module):
    """Causal attention (QK norm, grouped queries, perhaps a gated value embedding), then a squared-ReLU MLP."""

    def __init__(self, vocab_size: int, has_value_embedding: bool) -> None:
        super().__init__()
        width, key_heads, inner = HEADS * HEAD_DIM, HEADS // QUERIES_PER_KEY, MLP_RATIO * HEADS * HEAD_DIM
        self.query, self.out = matrix(width, width), matrix(width, width)
        self.key, self.value = matrix(key_heads * HEAD_DIM, width), matrix(key_heads * HEAD_DIM, width)
        self.value_embedding = matrix(vocab_size, key_heads * HEAD_DIM) if has_value_embedding else None
        self.gate = matrix(key_heads, min(GATE_CHANNELS, width)) if has_value_embedding else None
        self.up, self.down = matrix(inner, width), matrix(width, inner)

    def forward(self, x_BTD: Tensor, tokens_BT: Tensor, cos_TE: Tensor, sin_TE: Tensor, mask: Any) -> Tensor:
        x_BTD = x_BTD + self.attention(norm(x_BTD), tokens_BT, cos_TE, sin_TE, mask)
        return x_BTD + linear(SquaredReLU.apply(linear(norm(x_BTD), self.up)), self.down)

    def attention(self, x_BTD: Tensor, tokens_BT: Tensor, cos_TE: Tensor, sin_TE: Tensor, mask: Any) -> Tensor:
        heads = (*x_BTD.shape[:2], -1, HEAD_DIM)
        q_BTHE = NormedRotation.apply(linear(x_BTD, self.query).view(heads), cos_TE, sin_TE)
        k_BTKE = NormedRotation.apply(linear(x_BTD, self.key).view(heads), cos_TE, sin_TE)
        v_BTKE = linear(x_BTD, self.value).view(heads)
        if self.value_embedding is not None and self.gate is not None:
            gate_BTK = 2 * torch.sigmoid(linear(x_BTD[..., : self.gate.size(1)], self.gate))
            embedded = F.embedding(tokens_BT, self.value_embedding).to(v_BTKE.dtype)
            v_BTKE = v_BTKE + gate_BTK.unsqueeze(-1) * embedded.view(heads)
        y_BHTE = attend(q_BTHE.transpose(1, 2), k_BTKE.transpose(1, 2), v_BTKE.transpose(1, 2), mask)
        return linear(y_BHTE.transpose(1, 2).reshape(x_BTD.shape), self.out)


def attend(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: Any) -> Tensor:
    """Attention of each query to the positions its mask allows: `None` is causal, else what `window_mask` made."""
    heads, grouped = (q_BHTE, k_BKTE, v_BKTE), QUERIES_PER_KEY > 1
    if mask is None or isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compiler.is_compiling()  # eager flex would hold all scores in memory
    run = flex_attention if compiled else torch.compile(flex_attention, dynamic=False)
    return run(*heads, block_mask=mask, enable_gqa=grouped)


def window_mask(length: int, window: int, device: torch.device) -> Any:
    """The mask for positions that see themselves and `window - 1` before: a block mask on CUDA, else a tensor."""
    if window >= length:
        return None  # the causal kernels need no mask
    if device.type == "cuda":
        from torch.nn.attention.flex_attention import create_block_mask

        return create_block_mask(
            lambda _b, _h, query, key: (query >= key) & (query - key < window), None, None, length, length, device
        )
    return torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(1 - window)


class GPT(nn.Module):
    """Token ids [B, T] to the normed final stream [B, T, D]; `head` [V, D] turns that into logits."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        self.dtype = getattr(torch, spec.dtype)
        valued = {"none": (), "alternate": range((DEPTH - 1) % 2, DEPTH, 2), "all": range(DEPTH)}[VALUE_EMBEDDINGS]
        self.embedding, self.head = (matrix(spec.vocab_size, HEADS * HEAD_DIM) for _ in range(2))
        self.blocks = nn.ModuleList(Block(spec.vocab_size, layer in valued) for layer in range(DEPTH))
        self.stream_scale = nn.Parameter(torch.ones(DEPTH))  # each layer sees scale * stream + skip * embedding
        self.skip_scale = nn.Parameter(torch.full((DEPTH,), 0.1))
        angle_TE = torch.outer(torch.arange(spec.sequence_len), ROPE_BASE ** -torch.arange(0, 1, 2 / HEAD_DIM))
        cos_TE, sin_TE = angle_TE.cos()[:, None].to(self.dtype), angle_TE.sin()[:, None].to(self.dtype)
        self.register_buffer("cos", torch.cat((cos_TE, cos_TE), dim=-1), persistent=False)
        self.register_buffer("sin", torch.cat((sin_TE, -sin_TE), dim=-1), persistent=False)
        self.initialise(spec.seed)

    def forward(self, tokens_BT: Tensor, masks: Sequence[Any]) -> Tensor:
        cos_TE, sin_TE = self.cos[: tokens_BT.size(1)], self.sin[: tokens_BT.size(1)]
        x_BTD = first_BTD = norm(F.embedding(tokens_BT, self.embedding).to(self.dtype))
        scales = zip(self.stream_scale.to(self.dtype), self.skip_scale.to(self.dtype), strict=True)
        for block, mask, (stream, skip) in zip(self.blocks, masks, scales, strict=True):
            x_BTD = block(stream * x_BTD + skip * first_BTD, tokens_BT, cos_TE, sin_TE, mask)
        return norm(x_BTD)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Fill every parameter from `seed` alone, on the CPU, so that all devices start from the same numbers."""
        generator = torch.Generator().manual_seed(seed)
        bound = (3 / (HEADS * HEAD_DIM)) ** 0.5  # uniform with standard deviation 1 / sqrt(width)
        for name, weight in self.named_parameters():
            if kind(name) in ("embedding", "head"):
                weight.normal_(0.0, 1.0 if kind(name) == "embedding" else 0.001, generator=generator)
            elif kind(name) in ("out", "down", "gate"):
                weight.zero_()
            elif kind(name) in (*MATRICES, "value_embedding"):
                weight.uniform_(-bound, bound, generator=generator)


class SoftCappedLoss(torch.autograd.Function):
    """Mean cross-entropy of SOFT_CAP * tanh(x @ head.T / SOFT_CAP), whose gradient is made in the forward pass.

    One buffer [N, V] in the dtype of x holds the raw logits and then, chunk by chunk, their gradient: nothing else of
    that size exists. The products are whole, since a sum of chunks would round differently from plain autograd.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, head_VD: Tensor, targets_N: Tensor, kernel: Callable) -> Tensor:
        weight_VD = head_VD.to(x_ND.dtype)
        buffer_NV = F.linear(x_ND, weight_VD)
        chunks = [whole.split(LOSS_CHUNK[whole.device.type]) for whole in (buffer_NV, targets_N)]
        nll_N = torch.cat([kernel(raw_NV, targets, len(targets_N)) for raw_NV, targets in zip(*chunks, strict=True)])
        ctx.save_for_backward(buffer_NV @ weight_VD, (buffer_NV.T @ x_ND).to(head_VD.dtype))
        return nll_N.mean()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_x_ND, grad_head_VD = ctx.saved_tensors
        return grad_x_ND * grad_outputs[0], grad_head_VD * grad_outputs[0], None, None


def loss_and_gradient(raw_NV: Tensor, targets_N: Tensor, total: int) -> Tensor:
    """Negative log likelihoods [N] of raw logits, which become, by autograd's own kernels, their gradient."""
    tanh_NV = raw_NV.float().div_(SOFT_CAP).tanh_()
    log_p_NV = torch.log_softmax(tanh_NV * SOFT_CAP, dim=-1)
    grad_NV = torch.zeros_like(log_p_NV).scatter_(1, targets_N[:, None], -1 / total)
    grad_NV = torch.ops.aten._log_softmax_backward_data(grad_NV, log_p_NV, -1, torch.float32)
    raw_NV.copy_(torch.ops.aten.tanh_backward(grad_NV.mul_(SOFT_CAP), tanh_NV).div_(SOFT_CAP))
    return F.nll_loss(log_p_NV, targets_N, reduction="none")


POLAR_EXPRESS = (  # coefficients of Amsel et al., 2025 ("The Polar Express"), five steps
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


def polar(matrices_MRC: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrix to each of a stack, by a polynomial iteration: only batched products."""
    x = matrices_MRC.bfloat16() if matrices_MRC.is_cuda else matrices_MRC
    tall = x.size(-2) > x.size(-1)
    x = (x.mT if tall else x) / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices_MRC.dtype)


class Muon:
    """Momentum whose update is orthogonalised (Jordan et al., 2024), for all matrices of one shape in one stack."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        by_shape = groupby(sorted(parameters, key=lambda p: tuple(p.shape)), key=lambda p: tuple(p.shape))
        self.stacks = {f"{rows}x{columns}": list(stack) for (rows, columns), stack in by_shape}
        self.momentum = {shape: torch.zeros_like(torch.stack(stack)) for shape, stack in self.stacks.items()}

    @torch.no_grad()
    def step(self, lr: float, momentum: float, weight_decay: float) -> None:
        for shape, stack in self.stacks.items():
            weight_MRC = torch.stack(stack)
            grad_MRC = torch.stack([parameter.grad for parameter in stack])
            smooth_MRC = self.momentum[shape].lerp_(grad_MRC, 1 - momentum)
            update_MRC = polar(grad_MRC.lerp_(smooth_MRC, momentum))  # Nesterov
            decayed_MRC = weight_MRC * (update_MRC * weight_MRC > 0) * weight_decay  # only where both agree in sign
            scale = lr * max(1.0, weight_MRC.size(1) / weight_MRC.size(2)) ** 0.5
            torch._foreach_sub_(stack, (scale * (update_MRC + decayed_MRC)).unbind())


class Optimizer:
    """Muon for the matrices of the blocks, AdamW for embeddings, head and scalars; learning rates follow `schedule`."""

    def __init__(self, model: GPT) -> None:
        named = dict(model.named_parameters())
        self.muon = Muon([parameter for name, parameter in named.items() if kind(name) in MATRICES])
        self.others = {name: parameter for name, parameter in named.items() if kind(name) not in MATRICES}
        scale = (HEADS * HEAD_DIM / 768) ** -0.5  # the published rates were found at width 768
        rates = {"stream_scale": SCALAR_LR * 0.01, "skip_scale": SCALAR_LR, "head": HEAD_LR * scale}
        rates |= dict.fromkeys(("embedding", "value_embedding"), EMBEDDING_LR * scale)
        eps = dict.fromkeys(rates, 1e-10) | {"stream_scale": 1e-4, "skip_scale": 1e-4}  # docs/arena.md says why
        groups = [{"params": [p], "base_lr": rates[kind(n)], "eps": eps[kind(n)]} for n, p in self.others.items()]
        self.adamw = torch.optim.AdamW(groups, betas=ADAM_BETAS, weight_decay=0.0, fused=True)
        for parameter in self.others.values():  # as its first step would, so that the state always has all its names
            state = self.adamw.state[parameter] = {"step": torch.zeros((), device=parameter.device)}
            state |= {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        self.steps = torch.zeros((), dtype=torch.int64)

    def step(self, progress: float) -> None:
        """Update every parameter from its gradient at `progress` in [0, 1)."""
        for group in self.adamw.param_groups:
            group["lr"] = group["base_lr"] * schedule(progress)
        self.adamw.step()
        momentum = MOMENTUM_START + min(int(self.steps) / MOMENTUM_STEPS, 1.0) * (MOMENTUM - MOMENTUM_START)
        self.muon.step(MATRIX_LR * schedule(progress), momentum, WEIGHT_DECAY * (1 - progress))
        self.steps += 1

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the next step depends on, by name; the tensors are the live ones."""
        moments = {name: self.adamw.state[parameter] for name, parameter in self.others.items()}
        adamw = {f"{what}.{name}": value for name, state in moments.items() for what, value in state.items()}
        muon = {f"momentum.{shape}": momentum for shape, momentum in self.muon.momentum.items()}
        return {"steps": self.steps, **muon, **adamw}


def schedule(progress: float) -> float:
    """The multiplier of every learning rate: up over WARMUP, constant, down to FINAL_LR over WARMDOWN."""
    if progress < WARMUP:
        return progress / WARMUP
    return 1.0 if progress < 1 - WARMDOWN else FINAL_LR + (1 - FINAL_LR) * (1 - progress) / WARMDOWN


class Experiment:
    """One model in training: what the sealed trainer and the judge talk to. docs/arena.md has what `spec` holds."""

    batch_rows, accumulation = BATCH_ROWS, ACCUMULATION

    def __init__(self, spec: Any) -> None:
        self.device, self.reduce = torch.device(spec.device), getattr(spec, "reduce", list)  # none outside Ratchet
        self.model = GPT(spec).to(self.device)
        self.optimizer = Optimizer(self.model)
        compiled = partial(torch.compile, dynamic=False) if spec.compile else lambda function: function
        self.stream, self.loss_kernel = compiled(self.model), compiled(loss_and_gradient)
        self.sequence_len, self.masks = spec.sequence_len, cache(partial(layer_masks, device=self.device))
        self.last: dict[str, float | Tensor] = {}

    def step(self, batches: Sequence[Tensor], progress: float) -> Tensor:
        """One optimizer step over `accumulation` int64 batches [B, T+1] at `progress` in [0, 1): 0-d mean, nats."""
        losses = [self._backward(batch.to(self.device, non_blocking=True)) for batch in batches]
        self.reduce(gradients := [parameter.grad for parameter in self.model.parameters()])
        self.last = {"lr_scale": schedule(progress), "grad_norm": nn.utils.get_total_norm(gradients)}
        self.optimizer.step(progress)
        self.model.zero_grad(set_to_none=True)
        return torch.stack(losses).mean()

    def _backward(self, batch_BT: Tensor) -> Tensor:
        tokens_BT, targets_BT = batch_BT[:, :-1], batch_BT[:, 1:]
        x_BTD = self.stream(tokens_BT, self.masks(tokens_BT.size(1)))
        loss = SoftCappedLoss.apply(x_BTD.flatten(0, 1), self.model.head, targets_BT.reshape(-1), self.loss_kernel)
        (loss / self.accumulation).backward()
        return loss.detach()

    @torch.no_grad()
    def logits(self, tokens_BT: Tensor) -> Tensor:
        """Float32 logits [B, T, V] of token ids [B, T], T at most the context."""
        x_BTD = self.stream(tokens_BT, self.masks(tokens_BT.size(1)))
        return linear(x_BTD, self.model.head).float().div_(SOFT_CAP).tanh_().mul_(SOFT_CAP)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a step depends on, by name: `model.*` and `optimizer.*`. The tensors are the live ones."""
        model = {f"model.{name}": weight.detach() for name, weight in self.model.named_parameters()}
        return model | {f"optimizer.{name}": value for name, value in self.optimizer.state().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a whole `state_dict` or its `model.*` part alone. Raises KeyError naming what does not fit."""
        mine = self.state_dict()
        whole = any(name.startswith("optimizer.") for name in state)
        wanted = {(name, value.shape) for name, value in mine.items() if whole or name.startswith("model.")}
        if differing := wanted ^ {(name, value.shape) for name, value in state.items()}:
            raise KeyError(f"a state that does not fit this arena: {sorted(differing)[:2]}")
        for name, value in state.items():
            mine[name].copy_(value)

    def metrics(self) -> dict[str, float]:
        """Of the last step: `lr_scale` (multiplier) and `grad_norm` (of all gradients together)."""
        return {name: float(value) for name, value in self.last.items()}

    def num_params(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def flops_per_token(self) -> float:
        """Of training, forward and backward: 6 per weight of a matrix product and 12 per attended channel."""
        used = [weight for name, weight in self.model.named_parameters() if kind(name) in (*MATRICES, "head")]
        return 6.0 * sum(map(Tensor.numel, used)) + 12.0 * HEADS * HEAD_DIM * sum(windows(self.sequence_len))


def windows(length: int) -> list[int]:
    """How many positions each layer sees: the pattern repeated, S half the context, and the last layer always all."""
    sizes = {"S": length // 2, "L": length}
    return [*(sizes[WINDOW_PATTERN[layer % len(WINDOW_PATTERN)]] for layer in range(DEPTH - 1)), length]


def layer_masks(length: int, device: torch.device) -> list[Any]:
    """One mask a layer for a context of `length`, equal ones shared."""
    made = {window: window_mask(length, window, device) for window in set(windows(length))}
    return [made[window] for window in windows(length)]


def build(spec: Any) -> Experiment:
    """A fresh experiment. Raises ValueError when the knobs do not fit together."""
    if HEADS % QUERIES_PER_KEY:
        raise ValueError(f"HEADS={HEADS} is no multiple of QUERIES_PER_KEY={QUERIES_PER_KEY}")
    return Experiment(spec)


if __name__ == "__main__":
    from ratchet.train.standalone import main

    main(__file__)
