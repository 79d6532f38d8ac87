"""Compilation: kept by content, headers compiled ahead, limits on compilers, tools outside /usr."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from toolchains import is_installed
from wide import every

from sandbox import Case, Limits, Problem, Program, SandboxError, ToolchainMissing, Verdict
from sandbox.build import units
from sandbox.build.builder import Builder
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge
from sandbox.kernel import inherited
from sandbox.languages import toolchain
from sandbox.languages.table import LANGUAGES, find_language

PROBLEM = Problem("p", "stdio", (Case("", "ok"),), limits=Limits(cpu_s=5, wall_s=60))
ALL = "#include <bits/stdc++.h>\n"
MAIN = 'int main() { std::cout << "ok"; }\n'
pytestmark = pytest.mark.skipif(not is_installed("cpp"), reason=f"needs {find_language('cpp').package}")


def unit(source: str, language: str = "cpp") -> units.Unit:
    return units.compose(find_language(language), PROBLEM, source, PROBLEM.cases[0])


# --- headers compiled ahead -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["A", "B"])
def test_a_header_compiled_ahead_is_seen_and_used_and_cannot_be_changed(builder: Builder, isolation: str) -> None:
    with Jail(isolation, shared=builder.shared) as jail:  # type: ignore[arg-type]
        flags = builder.headers.flags(jail, find_language("cpp"))
        assert flags[0] == "-I"
        source = b"#include <bits/stdc++.h>\nint main() {}\n"
        compiler = [
            part for part in find_language("cpp").precompile[1:] if part.startswith("-") and part not in ("-x", "-o")
        ]
        argv = ("/usr/bin/g++", *compiler, "-H", "-c", "main.cpp", *flags)
        done = jail.run(
            JailedRun(find_language("cpp").compile_limits, argv=argv, files=(("main.cpp", source),), with_tools=True)
        )
        assert f"! {flags[1]}/bits/stdc++.h.gch" in done.stderr.decode()  # g++ -H marks with ! what it used
        (made,) = Path(builder.shared).rglob("*.gch")
        before = made.read_bytes(), made.stat().st_mtime_ns
        script = f"touch {flags[1]}/bits/stdc++.h.gch; echo >> {flags[1]}/bits/stdc++.h.gch"
        assert jail.run(JailedRun(PROBLEM.limits, argv=("/bin/sh", "-c", script), with_tools=True)).exit_code != 0
        assert (made.read_bytes(), made.stat().st_mtime_ns) == before


def test_a_header_is_compiled_once(builder: Builder, judge: Judge) -> None:
    def made() -> list[tuple[str, int]]:
        return [(str(path), path.stat().st_mtime_ns) for path in sorted(Path(builder.shared).rglob("*.gch"))]

    builder.headers.flags(judge.jail, find_language("cpp"))
    before = made()
    assert len(before) == 1
    assert Builder(builder.directory).headers.flags(judge.jail, find_language("cpp"))
    assert made() == before


INCLUDES = [
    ALL + ALL + MAIN,
    "#include <vector>\n" + ALL + MAIN,
    "#define N 5\n#define ll long long\n" + ALL + MAIN,
    "int x;\n" + ALL + MAIN,
    '#include "bits/stdc++.h"\n' + MAIN,
    "#pragma GCC optimize(\"O3\")\n" + ALL + MAIN,
]  # fmt: skip


@pytest.mark.parametrize("source", every(2, INCLUDES))
def test_a_program_may_include_everything_in_any_way(judge: Judge, source: str) -> None:
    done = judge.judge(PROBLEM, Program(source, "cpp"))
    assert done.verdict is Verdict.AC, done.compile_log


def test_without_a_shared_directory_nothing_is_compiled_ahead(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    with Jail() as jail:
        assert builder.headers.flags(jail, find_language("cpp")) == ()


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_same_source_is_compiled_once_and_old_artefacts_make_room(judge: Judge, tmp_path: Path) -> None:
    builder = Builder(tmp_path, kept_bytes_max=50_000)
    first, runs = builder.build(judge.jail, unit("int main() {}")), judge.jail.runs
    assert builder.build(judge.jail, unit("int main() {}")) == first
    assert judge.jail.runs == runs
    for number in range(40):
        builder._keep(tmp_path / f"{number:064d}", bytes(2_000))
        os.utime(tmp_path / f"{number:064d}", (number, number))
    builder._make_room()
    left = [path.name for path in tmp_path.iterdir() if path.is_file()]
    assert sum((tmp_path / name).stat().st_size for name in left) <= 50_000
    assert f"{39:064d}" in left
    assert f"{0:064d}" not in left


def test_another_that_makes_room_may_take_a_part_file_and_costs_no_build(tmp_path: Path) -> None:
    builder, crowd = Builder(tmp_path, kept_bytes_max=20_000), Builder(tmp_path, kept_bytes_max=0)
    write = inherited.write_with_mode

    def write_and_lose(path: Path, content: bytes, mode: int) -> None:
        write(path, content, mode)
        crowd._make_room()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sandbox.build.builder.inherited.write_with_mode", write_and_lose)
        builder._keep(tmp_path / "artefact", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


def test_a_directory_that_is_gone_is_our_fault(judge: Judge, tmp_path: Path) -> None:
    builder = Builder(tmp_path / "builds")
    shutil.rmtree(builder.directory)
    with pytest.raises(SandboxError, match=rf"cannot keep a compiled program in {builder.directory}"):
        builder.build(judge.jail, unit("int main() {}"))


def test_two_threads_may_keep_the_same_artefact_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder, write, both_have_written = Builder(tmp_path), inherited.write_with_mode, threading.Barrier(2)

    def write_and_wait(path: Path, content: bytes, mode: int) -> None:
        write(path, content, mode)
        both_have_written.wait(timeout=60)

    monkeypatch.setattr(inherited, "write_with_mode", write_and_wait)
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(builder._keep, tmp_path / "artefact", b"content") for _ in range(2)]:
            done.result()
    assert [path.read_bytes() for path in tmp_path.iterdir() if path.is_file()] == [b"content"]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_a_missing_tool_names_the_package_and_is_no_verdict(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_tool", lambda name: None)
    for language in LANGUAGES.values():
        if language.tools:
            with pytest.raises(ToolchainMissing, match="install"):
                judge.judge(PROBLEM, Program("", language.name))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/opt/jdk/bin/java", "/opt/jdk"),
        ("{home}/.rustup/toolchains/stable/bin/rustc", "{home}/.rustup/toolchains/stable"),
        ("{home}/bin/node", "{home}/bin/node"),
        ("{home}/.local/bin/node", "{home}/.local/bin/node"),
    ],
)
def test_a_tool_outside_usr_shows_its_own_directory_and_no_home(
    path: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = os.path.expanduser("~")
    assert toolchain._root(path.format(home=home)) == shown.format(home=home)


def test_what_anybody_may_write_is_no_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "planted-compiler"
    planted.write_text("#!/bin/sh\n")
    planted.chmod(0o755)
    monkeypatch.setenv("SANDBOX_PATH", str(tmp_path))
    assert toolchain.find_tool("planted-compiler") is None


# --- a full disk ------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_is_our_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxError, match=rf"the builder cannot be started: Not a directory in {tmp_path}/file"):
        Builder(tmp_path / "file" / "build")


def test_a_header_that_cannot_be_kept_is_our_fault() -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)  # as root, tier B's programs are another user's
        builder = Builder(Path(place) / "build")
        builder.headers.directory.rmdir()
        with Jail("B", shared=builder.shared) as jail, pytest.raises(SandboxError, match="cannot keep a compiled"):
            builder.build(jail, unit(ALL + MAIN))
