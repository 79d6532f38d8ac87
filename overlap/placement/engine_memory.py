"""Bytes of an engine: weights, KV cache and what it needs beside them; and how many tokens its cache holds."""

from __future__ import annotations

from typing import Literal

from overlap.config.fields import Config
from overlap.placement.planned_run import Items, PlannedRun, number_bytes
from overlap.placement.shapes import ModelShape

CPU_BLOCK_TOKENS = 32
"""Tokens in a KV block on a CPU: shared prompts are found by whole blocks, and the kernels need multiples of 32."""
WORKSPACE = 2_500_000_000
"""Bytes of an engine on a GPU: what a prefill needs, and CUDA graphs. Not measured here."""
ASLEEP = 1 << 30
"""Bytes of ``WORKSPACE`` that an engine keeps while it sleeps: CUDA graphs. Not measured here."""
ENGINE_OWN = 1_600_000_000
"""Bytes of an engine on a CPU, all of its processes; estimated by what one of the default policy had resident."""


def token_bytes(cfg: Config, policy: ModelShape) -> int:
    """Bytes that a token leaves in the KV cache of all GPUs of an engine together. A number type of less than a byte is
    planned with one, its scales among it.
    """
    options, own = cfg.rollout.engine, number_bytes(cfg)
    known = {"auto": own, "bfloat16": 2, "float16": 2}
    width = known.get(str(options.get("kv_cache_dtype") or "auto"), 1)
    if options.get("kv_cache_dtype_skip_layers"):
        width = own  # which layers those are is not known
    return policy.decoder.layers * 2 * policy.decoder.keys * width


def gpu_token_bytes(run: PlannedRun) -> int:
    """Bytes of a token in the KV cache on each GPU of an engine: at most as many as heads of keys share it."""
    parallel = run.cfg.rollout.tensor_parallel
    return -(-token_bytes(run.cfg, run.policy) // min(parallel, run.policy.key_heads or parallel))


def kv_room(run: PlannedRun, size: int) -> int:
    """Bytes of the KV cache on each GPU of an engine, by ``rollout.gpu_memory`` of ``size``. May be below 0."""
    r = run.cfg.rollout
    if not size:
        return gpu_token_bytes(run) * r.at_once * run.cfg.context_tokens
    return int(r.gpu_memory * size) - engine_weights(run).total() - WORKSPACE


def kv_tokens(run: PlannedRun, size: int) -> int:
    """Tokens that the KV cache of an engine holds on GPUs of ``size`` bytes."""
    token = gpu_token_bytes(run)
    return max(0, kv_room(run, size)) // token if token else 0


def engine_shortage(run: PlannedRun, size: int) -> int:
    """Bytes that the KV cache on GPUs of ``size`` bytes lacks for one full sequence, without which no engine starts."""
    return gpu_token_bytes(run) * run.cfg.context_tokens - kv_room(run, size)


def engine_weights(run: PlannedRun) -> Items:
    """On each of its GPUs, with the place for an adapter."""
    return Items({"engine weights": run.weights // run.cfg.rollout.tensor_parallel}) + run.engine_adapter


def engine_on_gpu(run: PlannedRun, size: int, state: Literal["awake", "weights", "asleep"]) -> Items:
    """On one GPU: with all that it needs, woken for its weights alone, or asleep."""
    if state == "asleep":
        return Items({"workspace": ASLEEP})
    cache = max(0, kv_room(run, size)) if state == "awake" else 0
    return Items({"workspace": WORKSPACE, "KV cache": cache}) + engine_weights(run)


def cpu_block_tokens(cfg: Config) -> int:
    """Tokens in a KV block of an engine on a CPU."""
    return int(cfg.rollout.engine.get("block_size") or CPU_BLOCK_TOKENS)


def cpu_kv_bytes(cfg: Config, policy: ModelShape, available: int) -> int:
    """KV cache on a CPU for ``rollout.max_sequences`` full contexts; where less memory is ``available`` half of that,
    but never below one of them.
    """
    tokens = cpu_block_tokens(cfg)
    blocks, block = -(-cfg.context_tokens // tokens) + 1, token_bytes(cfg, policy) * tokens
    room = available // 2 // block if block else 0  # the sizes of some families are not known
    return block * (8 + max(blocks, min(blocks * cfg.rollout.at_once, room)))


def engine_on_cpu(run: PlannedRun, available: int) -> Items:
    """All of its processes, where ``available`` bytes are the engine's share of the memory that is free."""
    cache = cpu_kv_bytes(run.cfg, run.policy, available)
    own = Items({"processes' own": ENGINE_OWN, "engine weights": run.weights, "KV cache": cache})
    return own + run.engine_adapter
