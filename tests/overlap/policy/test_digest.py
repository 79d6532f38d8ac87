"""Is it the same policy, wherever it lies?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlap.errors import ConfigError
from overlap.policy import policy_digest


def checkpoint(folder: Path, weights: bytes, config: str = "{}") -> str:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return policy_digest(folder)


def test_a_copy_is_the_same_policy_and_other_weights_or_settings_are_another(tmp_path: Path) -> None:
    small, large = b"\1" * 1000, os.urandom(3 << 20)
    assert checkpoint(tmp_path / "a", small) == checkpoint(tmp_path / "b", small)
    assert checkpoint(tmp_path / "c", small[:-1] + b"\2") != policy_digest(tmp_path / "a")
    assert checkpoint(tmp_path / "d", small, '{"x": 1}') != policy_digest(tmp_path / "a")
    assert checkpoint(tmp_path / "e", large) == checkpoint(tmp_path / "f", large)
    trained = bytes(byte ^ 1 for byte in large)
    assert checkpoint(tmp_path / "g", trained) != policy_digest(tmp_path / "e")
    assert checkpoint(tmp_path / "h", large[:-1] + bytes([large[-1] ^ 1])) != policy_digest(tmp_path / "e")


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        policy_digest(tmp_path / "missing")
