"""Parsers are known by name before an engine starts, and what an engine finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.config.load import load_config
from overlap.errors import ConfigError
from overlap.generate.start import check_parsers, engine_environment


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed vLLM, of which only the source of two tables is there."""
    for folder, table in (
        ("tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
        ("reasoning", "_REASONING_PARSERS_TO_REGISTER"),
    ):
        (tmp_path / "vllm" / folder).mkdir(parents=True)
        names = '{"hermes": ("a", "A"), "qwen3": ("b", "B")}'
        (tmp_path / "vllm" / folder / "__init__.py").write_text(f"import nothing_that_is_there\n{table} = {names}\n")
    (tmp_path / "vllm" / "__init__.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "vllm"


@pytest.mark.usefixtures("vllm")
def test_a_parser_that_vllm_lists_is_taken() -> None:
    check_parsers(load_config(None, ["episode.tool_parser=hermes", "episode.reasoning_parser=qwen3"]))
    check_parsers(load_config())


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (
            "episode.tool_parser=hermse",
            r"^episode.tool_parser='hermse': vLLM has no such parser; did you mean hermes\?",
        ),
        ("episode.reasoning_parser=x", "^episode.reasoning_parser='x': vLLM has no such parser; it has hermes, qwen3"),
    ],
)
def test_one_that_it_does_not_is_refused_with_what_there_is(setting: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_parsers(load_config(None, [setting]))


def test_where_vllm_has_another_form_the_engine_is_the_judge(vllm: Path) -> None:
    (vllm / "tool_parsers" / "__init__.py").write_text("TABLE = {}\n")
    check_parsers(load_config(None, ["episode.tool_parser=no-such"]))
    (vllm / "tool_parsers" / "__init__.py").unlink()
    check_parsers(load_config(None, ["episode.tool_parser=no-such"]))


def test_float32_is_float32_in_an_engines_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vLLM's attention kernels on GPUs Triton's takes float32, and Triton multiplies that as TF32 by default."""
    knobs = pytest.importorskip("triton").knobs
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    assert knobs.language.fp32_default is None
    monkeypatch.setenv("TRITON_F32_DEFAULT", engine_environment("cuda")["TRITON_F32_DEFAULT"])
    assert knobs.language.fp32_default == "ieee"


def test_an_engine_on_gpus_may_take_longer_to_start() -> None:
    """It compiles kernels where the machine has nvcc."""
    limits = [int(engine_environment(device)["VLLM_ENGINE_READY_TIMEOUT_S"]) for device in ("cpu", "cuda")]
    assert limits == [600, 1200]
