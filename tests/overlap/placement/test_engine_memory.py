"""Bytes of an engine: what a token takes in its KV cache, and how large that is."""

from __future__ import annotations

import pytest
from shapes import SMALL

from overlap.config.load import load_config
from overlap.placement.engine_memory import cpu_kv_bytes, gpu_token_bytes, token_bytes
from overlap.placement.planned_run import PlannedRun


@pytest.mark.parametrize(("parts", "possible", "shares"), [(1, True, 1), (2, True, 2), (4, True, 2), (8, False, 2)])
def test_devices_beyond_the_key_heads_have_these_twice(parts: int, possible: bool, shares: int):
    assert SMALL.splits(parts) == possible
    run = PlannedRun(load_config(None, [f"rollout.tensor_parallel={parts}"]), SMALL)
    assert gpu_token_bytes(run) == token_bytes(run.cfg, SMALL) // shares


@pytest.mark.parametrize(
    ("settings", "width"),
    [
        ("", 2),
        ("model.dtype=float32", 4),
        ("rollout.engine.kv_cache_dtype=auto model.dtype=float32", 4),
        ("rollout.engine.kv_cache_dtype=bfloat16 model.dtype=float32", 2),
        ("rollout.engine.kv_cache_dtype=fp8_e5m2", 1),
        ("rollout.engine.kv_cache_dtype=nvfp4", 1),
        ("rollout.engine.kv_cache_dtype=fp8 rollout.engine.kv_cache_dtype_skip_layers=['0']", 2),
    ],
)
def test_the_kv_cache_is_counted_in_the_type_that_it_has(settings: str, width: int):
    cfg = load_config(None, settings.split())
    numbers = 2 * SMALL.decoder.layers * SMALL.decoder.keys
    assert token_bytes(cfg, SMALL) == gpu_token_bytes(PlannedRun(cfg, SMALL)) == width * numbers


@pytest.mark.parametrize(
    ("free", "size", "blocks"),
    [(10**12, 32, 8 + 11 * 4), (2 * 20, 32, 8 + 20), (0, 32, 8 + 11), (0, 320, 8 + 2)],
    ids=["enough", "half", "one sequence", "larger blocks"],
)
def test_the_kv_cache_on_a_cpu_shrinks_to_half_of_what_is_free_but_holds_a_sequence(free: int, size: int, blocks: int):
    settings = ["model.prompt_tokens=64", "model.response_tokens=256", "rollout.max_sequences=4"]
    cfg = load_config(None, [*settings, f"rollout.engine.block_size={size}"])
    block = size * token_bytes(cfg, SMALL)
    assert cpu_kv_bytes(cfg, SMALL, free * block) == block * blocks
