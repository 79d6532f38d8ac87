"""What is free within the limits of a container: control groups as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlap.placement import host

GIB = 2**30


def group(folder: Path, limit: str, usage: int, names: tuple[str, str, str] = host._V2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {GIB}\n")


def test_the_tightest_limit_above_a_process_counts_and_unused_pages_of_files_are_free(tmp_path: Path):
    (own := tmp_path / "own").write_text("0::/job/step\n")
    group(tmp_path / "groups", "max", 90 * GIB)
    group(tmp_path / "groups" / "job", str(8 * GIB), 5 * GIB)
    group(tmp_path / "groups" / "job" / "step", str(16 * GIB), 2 * GIB)
    assert sorted(host._rooms(tmp_path / "groups", own)) == [4 * GIB, 15 * GIB]


def test_the_older_kind_of_groups_is_read_too(tmp_path: Path):
    (own := tmp_path / "own").write_text("4:memory:/docker/x\n1:cpu:/docker/x\n")
    group(tmp_path / "groups" / "memory", str(6 * GIB), 4 * GIB, host._V1)  # what a container sees as the top
    assert list(host._rooms(tmp_path / "groups", own)) == [3 * GIB]


@pytest.mark.parametrize("text", [None, "", "0::/\n"])
def test_without_a_limit_all_that_is_free_can_be_had(tmp_path: Path, text: str | None):
    own = tmp_path / "own"
    if text is not None:
        own.write_text(text)
    assert list(host._rooms(tmp_path / "groups", own)) == []


def test_a_limit_is_less_than_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (own := tmp_path / "own").write_text("0::/\n")
    group(tmp_path / "groups", str(GIB), GIB - 1000)
    monkeypatch.setattr(host, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(host, "_OWN", own)
    assert host.free_memory() <= GIB + 1000
    group(tmp_path / "groups", str(GIB), 3 * GIB)
    assert host.free_memory() == 0


@pytest.mark.parametrize(
    ("flags", "native"),
    [
        ("flags : fpu sse2 avx2 fma", False),
        ("flags : sse2 avx2 avx512bw", True),
        ("flags : sse2 avx512f avx512bw avx512_bf16 amx_bf16", True),
        ("Features : fp asimd", False),
        ("Features : fp asimd bf16", True),
        ("isa : rv64imafdc", True),
    ],
)
def test_a_processor_without_instructions_for_bfloat16_is_known(tmp_path: Path, flags: str, native: bool):
    (told := tmp_path / "cpuinfo").write_text(f"processor : 0\n{flags}\n")
    assert host.computes_bfloat16(told) == native
    assert host.computes_bfloat16(tmp_path / "none")
