"""The parts of a policy that are many small kernels, as few: norms, rotary embedding, gated layers and the log-probs of
the output layer, compiled by ``torch.compile``.

Functions of tensors are compiled, never modules: hooks that gather parameters (ZeRO 3), adapters and checkpointing are
around them as they are around what they replace. Which part of a family is one of them is found by trying, so a family
that computes another norm keeps its own. The number of tokens is not part of what is compiled: each function is
compiled once for each width, number type and way of differentiating.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from overlap.core.errors import one_line
from overlap.learner.head import HeadKernels

BACKEND = "inductor"
"""Backend of ``torch.compile``."""
_VARIANTS = 32  # of one function: with and without gradients, by what needs them, and by widths
_FAILURES = (RuntimeError, OSError, ImportError, subprocess.SubprocessError)  # of a compiler that is not there
Kernel = Callable[..., Any]
_ROTARY = "apply_rotary_pos_emb"  # a function of each family's module


def worth_compiling(device: torch.device) -> bool:
    """True when the parts are compiled: on a CPU that takes longer than it saves. torch's own TORCH_COMPILE_DISABLE=1
    turns it off.
    """
    return device.type == "cuda" and not torch._dynamo.config.disable


def compile_parts(model: Any, device: torch.device) -> str:
    """Have the parts of a ``Policy`` compiled where that is worth it; returns which are, or why none is, in words. A
    partitioned model has to be gathered.
    """
    if not worth_compiling(device):
        return f"nothing on {device.type}"
    if fault := _fault(device):
        return f"nothing, so steps are slower: {fault}"
    found = [f"{_norms(model)} norms", f"{_gated(model)} gated layers", f"{_rotaries(model)} rotary embeddings"]
    model.head.kernels = KERNELS
    return ", ".join([*found, "log-probs"])


@cache
def _fault(device: torch.device) -> str:
    """Return why nothing can be compiled here; empty where a first function was, and ran."""
    torch._dynamo.config.recompile_limit = max(_VARIANTS, torch._dynamo.config.recompile_limit)
    try:
        x = torch.ones(4, 32, device=device, requires_grad=True)
        _made(gated)(x, x).sum().backward()
    except _FAILURES as error:
        return (
            f"torch.compile fails ({type(error).__name__}: {one_line(error, 200)}); it needs a C++ compiler and Triton"
        )
    return ""


# --- what is compiled ---------------------------------------------------------------------------------------


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm (Zhang and Sennrich 2019) of [N, h] in float32, as Llama and Qwen round it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU (Shazeer 2020) of [N, i] behind its two products."""
    return nn.functional.silu(gate) * up


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [B, N, H, D] and keys [B, N, K, D] turned by the angles [B, N, D] (Su et al. 2021), in halves."""
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    return query * cos + _turned(query) * sin, key * cos + _turned(key) * sin


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def log_probs(raw: Tensor, targets: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """See ``HeadKernels.measure``."""
    z = raw.float() / temperature
    normaliser = z.logsumexp(-1)
    chosen = raw.gather(-1, targets[:, None])[:, 0].float() / temperature
    spread = normaliser - ((z - normaliser[:, None]).exp() * z).sum(-1) if entropy else None
    return chosen - normaliser, normaliser, spread


def descend(
    raw: Tensor, targets: Tensor, normaliser: Tensor, entropy: Tensor,
    d_log: Tensor, d_entropy: Tensor | None, temperature: float,
) -> None:  # fmt: skip
    """See ``HeadKernels.descend``."""
    log_p = raw.float() / temperature - normaliser[:, None]
    weight = d_log[:, None]
    if d_entropy is not None:
        weight = weight + d_entropy[:, None] * (log_p + entropy[:, None])
    chosen = torch.arange(raw.shape[-1], device=raw.device) == targets[:, None]
    raw.copy_((torch.where(chosen, d_log[:, None], 0.0) - log_p.exp() * weight) / temperature)


# --- how it is called ---------------------------------------------------------------------------------------


@cache
def _made(function: Kernel) -> Kernel:
    """Sizes are compiled in, but those of ``_any_length``: widths that differ (of a head's norm) get kernels each."""
    made: Kernel = torch.compile(function, backend=BACKEND, fullgraph=True, dynamic=False)
    return made


def _any_length(*tensors: Tensor | None, dims: tuple[int, ...] = (0,)) -> None:
    """The sizes of these dimensions are not compiled in."""
    for tensor in tensors:
        if tensor is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, list(dims))


def _rows(x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    _any_length(rows)
    return rows


def _measured(
    raw: Tensor, targets: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    _any_length(raw, targets)
    found: tuple[Tensor, Tensor, Tensor | None] = _made(log_probs)(raw, targets, temperature, entropy)
    return found


def _descended(raw: Tensor, *rest: Any) -> None:
    _any_length(raw, *(tensor for tensor in rest if isinstance(tensor, Tensor)))
    _made(descend)(raw, *rest)


KERNELS = HeadKernels(_measured, _descended, chunks=False)
"""Kernels of the output layer."""


# --- where it is put ----------------------------------------------------------------------------------------


def _norms(model: nn.Module) -> int:
    def fits(module: Any) -> bool:
        weight, epsilon = getattr(module, "weight", None), _epsilon(module)
        named = type(module).__name__.endswith("Norm")
        return named and isinstance(weight, nn.Parameter) and isinstance(epsilon, float)

    def forward(kernel: Kernel, module: Any, x: Tensor) -> Tensor:
        found: Tensor = kernel(_rows(x), module.weight, _epsilon(module)).view(x.shape)
        return found

    return _replaced(model, fits, norm, forward)


def _epsilon(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _gated(model: nn.Module) -> int:
    names = ("gate_proj", "up_proj", "down_proj")

    def fits(module: Any) -> bool:
        return all(isinstance(getattr(module, name, None), nn.Linear) for name in names)

    def forward(kernel: Kernel, module: Any, x: Tensor) -> Tensor:
        gate, up = module.gate_proj(x), module.up_proj(x)
        found: Tensor = module.down_proj(kernel(_rows(gate), _rows(up)).view(gate.shape))
        return found

    return _replaced(model, fits, gated, forward)


def _replaced(
    model: nn.Module, fits: Callable[[Any], bool], kernel: Kernel, forward: Callable[[Kernel, Any, Tensor], Tensor]
) -> int:
    """Modules whose pass is now ``forward`` with the compiled kernel: those of a class of which one computes the same
    with the plain one.
    """
    equal: dict[type, bool] = {}
    count = 0
    for module in filter(fits, model.modules()):
        if type(module) not in equal:
            equal[type(module)] = _same(module, partial(forward, kernel))
        if equal[type(module)]:
            module.forward = partial(forward, _made(kernel), module)
            count += 1
    return count


@torch.no_grad()
def _same(module: Any, eager: Callable[[Any, Tensor], Tensor]) -> bool:
    inner: Any = getattr(module, "gate_proj", module)
    weight = next(inner.parameters(recurse=False))
    width = getattr(inner, "in_features", None) or getattr(weight, "ds_shape", weight.shape)[-1]
    x = torch.linspace(-2, 2, 2 * width, device=weight.device, dtype=weight.dtype).view(1, 2, width)
    found: list[Tensor] = []
    was = type(module).forward

    def both(x: Tensor) -> Tensor:  # within the call, so that its hooks have gathered what is partitioned
        found.append(eager(module, x))
        wanted: Tensor = was(module, x)
        return wanted

    module.forward = both
    try:
        wanted = module(x)
    finally:
        del module.forward
    return bool((found[0] - wanted).abs().mean() <= 1e-2 * wanted.abs().mean())


def _rotaries(model: Any) -> int:
    """Modules of families, not of models: all of one family in this process are turned alike."""
    count = 0
    for name in sorted({type(module).__module__ for module in model.modules()}):
        family = sys.modules[name]
        own = getattr(family, _ROTARY, None)
        if own is None or not (isinstance(own, _Rotary) or _turns(own)):
            continue
        if not isinstance(own, _Rotary):
            setattr(family, _ROTARY, _Rotary(own))
        count += 1
    return count


def _turns(own: Callable[..., Any]) -> bool:
    """True when ``own`` computes what ``rotated`` does."""
    query, key = (torch.linspace(-1, 1, 2 * heads * 3 * 8).view(2, heads, 3, 8) for heads in (4, 2))
    cos, sin = (torch.linspace(0, top, 2 * 3 * 8).view(2, 3, 8) for top in (1, 2))
    try:
        wanted = own(query, key, cos, sin)
    except (TypeError, ValueError, RuntimeError, IndexError):  # it takes other arguments
        return False
    found = rotated(query.transpose(1, 2), key.transpose(1, 2), cos, sin)
    return all(torch.allclose(a.transpose(1, 2), b) for a, b in zip(found, wanted, strict=True))


class _Rotary:
    """Replacement of a family's function; calls that it does not know go to that function."""

    def __init__(self, own: Callable[..., Any]) -> None:
        self.own = own

    def __call__(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if unsqueeze_dim != 1 or query.dim() != 4 or cos.dim() != 3 or cos.shape[-1] != query.shape[-1]:
            return self.own(query, key, cos, sin, unsqueeze_dim)
        given = query.transpose(1, 2), key.transpose(1, 2), cos, sin
        _any_length(*given, dims=(0, 1))
        return tuple(x.transpose(1, 2) for x in _made(rotated)(*given))
