"""What an engine finds in its environment."""

from __future__ import annotations

import pytest

from overlap.generate.start import engine_environment


def test_float32_is_float32_in_an_engines_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vLLM's attention kernels on GPUs Triton's takes float32, and Triton multiplies that as TF32 by default."""
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    assert knobs.language.fp32_default is None
    monkeypatch.setenv("TRITON_F32_DEFAULT", engine_environment("cuda")["TRITON_F32_DEFAULT"])
    assert knobs.language.fp32_default == "ieee"
