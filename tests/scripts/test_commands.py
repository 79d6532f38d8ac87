"""What the commands of ``scripts/`` do before anything is set up."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

PROGRAMS = sorted(path for name in ("bench", "chaos") for path in (ROOT / "scripts" / name).glob("[!_]*.py"))


@pytest.fixture
def command(tmp_path: Path):
    """Run a script where no environment is set up, and see that none was made."""
    nowhere = tmp_path / "venv"

    def run(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"OVERLAP_VENV": str(nowhere)}
        script = ["bash", ROOT / "scripts" / f"{name}.sh", *words]
        done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60)
        assert not nowhere.exists()
        return done

    return run


NOT_CALLED = {"help", "named", "cluster/slurm"}
"""What other scripts source or run, and what runs in a SLURM job alone."""
SCRIPTS = {str(path.relative_to(ROOT / "scripts").with_suffix("")) for path in (ROOT / "scripts").rglob("*.sh")}


@pytest.mark.parametrize("name", sorted(SCRIPTS - NOT_CALLED))
def test_help_installs_nothing(name: str, command) -> None:
    done = command(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "#!" not in done.stdout


@pytest.mark.parametrize("name", ["bench", "chaos"])
def test_the_help_of_bench_and_chaos_lists_every_program_with_its_first_sentence(name: str, command) -> None:
    done = command(name, "--help")
    assert done.returncode == 0, done.stderr
    listed = dict(line.split(None, 1) for line in done.stdout.partition("Names:\n")[2].splitlines())
    programs = {path.stem: path for path in PROGRAMS if path.parent.name == name}
    docs = {stem: ast.get_docstring(ast.parse(path.read_text())) for stem, path in programs.items()}
    assert listed == {stem: (doc or "").splitlines()[0] for stem, doc in docs.items()}
    assert all(len(line) <= 100 and line[0].isupper() for line in listed.values())
    assert all((doc or "").splitlines()[1:2] in ([], [""]) for doc in docs.values())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_program_of_bench_or_chaos_describes_itself_before_a_set_up(program: Path, command) -> None:
    done = command(program.parent.name, program.stem, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ast.get_docstring(ast.parse(program.read_text()), clean=False).strip()


@pytest.mark.parametrize("words", [(), ("no-such-name",), ("_shared",), ("../setup",)])
def test_a_name_that_is_not_there_ends_with_one_line(words: tuple[str, ...], command) -> None:
    done = command("bench", *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "bash scripts/bench.sh --help" in line


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (["--only"], "name some of"),
        (["--only", "verl,nosuch"], "--only nosuch: there is no such package; those that are: mini-swe-agent"),
        (["FOLDER", "--only", "nosuch"], "--only nosuch: there is no such package"),
        (["--nosuch"], "stands behind FOLDER"),
    ],
)
def test_wrong_words_for_clients_end_with_one_line_before_anything_is_installed(
    words: list[str], way_out: str, command
) -> None:
    done = command("clients", *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert way_out in line


def test_no_program_hides_a_module_that_others_import() -> None:
    """Python looks in the program's own folder first."""
    taken = sys.stdlib_module_names | {"overlap", "sandbox", "recipes"}
    assert not taken & {path.stem for path in (ROOT / "scripts").glob("*/*.py")}
