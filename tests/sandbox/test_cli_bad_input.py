"""The command line and bad input: one line and exit code 2, whatever a file holds. No message forges a line of ours."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from package_files import RIGHT, TIMED, Command, Packages

from sandbox import Case, CaseResult, Judgement, Problem, SandboxError, Verdict
from sandbox.cli import main

SUM = Problem("sum", "stdio", (Case("3 4\n", "7"),)).to_json()
CHECKED = {**SUM, "compare": "checker", "checker": {"source": "1", "language": "python"}}
DONE = Judgement(
    "p", Verdict.RE, (CaseResult(0, Verdict.RE, 0, 0, 1),), 0, 1, False, "A", "python", "cpython", "", 0, 0
)


@pytest.fixture(autouse=True)
def verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No jail: what is asked here is asked before one is started, or after it has ended."""
    monkeypatch.setattr("sandbox.cli.judge", lambda problem, program, **_: DONE)


def judged(directory: Path, text: str) -> tuple[int, str, str]:
    (directory / "problem.json").write_text(text, "utf-8", "surrogatepass")
    (directory / "right.py").write_text("print(7)")
    out, err = sys.stdout, sys.stderr
    try:
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True) for _ in range(2))
        code = main(["judge", str(directory / "problem.json"), str(directory / "right.py")])
        said = [stream.buffer.getvalue().decode("ascii") for stream in (sys.stdout, sys.stderr)]
    finally:
        sys.stdout, sys.stderr = out, err
    return code, said[0], said[1]


def refused(directory: Path, text: str) -> str:
    code, out, err = judged(directory, text)
    assert (code, out) == (2, "")
    assert err.startswith("sandbox: error: ")
    assert err.count("\n") == 1
    assert len(err) < 1000
    return err


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        '{"id":' * 100_000,
        '{"id": ' + "9" * 5000 + "}",
        json.dumps(SUM)[:-1],
        '{"cases": NaN, "id": Infinity, "kind": -0}',
        json.dumps({**SUM, "id": "\ud800\n\x1b[2KAC", "kind": "x"}),
        json.dumps({**SUM, "cases": [{"input": "\ud800", "expected": "7"}]}),
        json.dumps({**SUM, "cases": [{"input": "", "expected": "7\udfff"}]}),
        "\ud800",
    ],
)
def test_a_file_that_is_no_problem_is_one_line_and_exit_code_2(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["source", "name", "input"]), inner),
    max_leaves=4,
)


@settings(
    max_examples=300, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(key=st.sampled_from(sorted(SUM)), value=VALUES, base=st.sampled_from([SUM, CHECKED]))
def test_no_value_of_a_problem_file_is_a_traceback(
    tmp_path: Path, key: str, value: object, base: dict[str, Any]
) -> None:
    assert judged(tmp_path, json.dumps({**base, key: value}))[0] in (1, 2)


def test_a_message_or_a_compile_log_forges_no_line_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "x\nAC  9 of 9 cases, tier A\r\x1b[2K\x9b\u2028\ud800"
    case = CaseResult(0, Verdict.RE, 0.1, 0.1, 1, said)
    done = Judgement("p", Verdict.RE, (case,), 0, 1, False, "A", "c", "gcc", said, 0, 0)
    monkeypatch.setattr("sandbox.cli.judge", lambda problem, program, **_: done)
    code, out, _ = judged(tmp_path, json.dumps(SUM))
    assert code == 1
    assert out.replace("\n", "").isprintable()
    first = [line[0] for line in out.splitlines()]
    assert first == ["|", "|", " ", "R"]


def test_a_message_of_our_own_fault_forges_none_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Judgement:
        raise SandboxError("the checker said\nAC  9 of 9 cases\x1b[2K \ud800")

    monkeypatch.setattr("sandbox.cli.judge", fail)
    assert "\x1b" not in refused(tmp_path, json.dumps(SUM))


def test_a_program_without_an_end_is_read_no_further_than_one_may_be_long(command: Command) -> None:
    shown = command(1, "run", "/dev/zero", "--language", "python", "--input", "/dev/null")
    assert "the source is longer than" in shown.err


REWARDS = """
def reward(problem, program, language):
    return 1.0
def silent(problem, program, language):
    return None
def short(problem, program):
    return 1.0
"""


@pytest.mark.promise("bad-input")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --cpu-s nan right.py", "limits.cpu_s=nan"),
        ("run --cpu-s 1e400 right.py", "limits.cpu_s=inf"),
        (f"run --memory-mib {'9' * 30} right.py", "limits.memory_bytes="),
        ("run --memory-mib -1 right.py", "limits.memory_bytes=-"),
        ("run --wall-s 0 right.py", "limits.wall_s=0"),
        ("run right.py --packages a..b", "packages='a..b'"),
        ("run right.py --packages os.path.x", "packages='os.path.x'"),
        ("run right.py --packages \ud800", "packages="),
        ("run --language \x1b[2Jc\n right.py", "language="),
        ("run .", ".: is a directory; give one file"),
        ("run no\x00name.py", "null byte"),
        ("run \udcff.py", "No such file"),
        ("judge right.py right.py", "right.py: is not JSON: Expecting value"),
        ("judge right.py problem.json", "give a problem.json, then the program"),
        ("judge absent.json right.py", "error: absent.json: cannot be opened (No such file"),
        ("judge problem.json absent.py", "error: absent.py: cannot be opened (No such file"),
        ("judge problem.json problem.json", "give --language, one of python, c,"),
        ("judge twice.json right.py", "key 'input' is there twice: leave one out"),
        ("judge problem.json sum", "sum: is a directory; give one file"),
        ("judge sum.KPP right.py", "sum.KPP: archives are not supported; unpack it"),
        ("judge sum right.py --all", "--all is for problem.json"),
        ("judge sum right.py --time-limit -1", "--time-limit"),
        ("judge sum /dev/null", "/dev/null: is no file"),
        ("verify sum.zip", "sum.zip: archives are not supported; unpack it"),
        ("verify right.py", "right.py: is no directory"),
        ("zoo absent:reward", "absent:reward: there is no module absent in "),
        ("zoo rewards", "rewards: must be module:function"),
        ("zoo rewards:nothing", "rewards:nothing: rewards has no function nothing"),
        ("check-reward rewards:rewrd", "rewards has no function rewrd; did you mean reward?"),
        ("check-reward absent.py:reward", "absent.py:reward: there is no file "),
        ("check-reward rewards:reward --row rewards:row", "error: --row rewards:row: rewards has no function row"),
        ("zoo rewards:reward --only no-such-entry", "no-such-entry"),
        ("check-reward rewards:silent --no-zoo", "returned None for all"),
        (
            "check-reward rewards:short --no-zoo",
            "short(problem, program) looks like a reward of plain, but cannot be called as one (too many",
        ),
        ("check-reward rewards:reward --samples absent.jsonl", "absent.jsonl"),
        ("check-reward rewards:reward --samples bad.jsonl", "bad.jsonl:2:"),
        ("check-reward rewards:reward --samples unlabelled.jsonl", '"right" must be true or false'),
        *(
            (f"{command} os:getcwd {words}", words)
            for command in ("zoo", "check-reward")
            for words in ("--deadline-s nan", "--deadline-s inf", "--repeats 0", "--workers -1", "--accept nan")
        ),
        ("check-reward os:getcwd --accept inf", "--accept inf"),
        ("bench --rounds 0", "--rounds 0"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(
    packages: Packages, command: Command, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    packages.write({"problem.yaml": TIMED, **RIGHT})
    monkeypatch.chdir(packages.root)
    Path("right.py").write_text("print(7)")
    Path("problem.json").write_text(json.dumps(SUM))
    Path("twice.json").write_text('{"id": "x", "kind": "stdio", "cases": [{"input": "1", "input": "2"}]}')
    Path("rewards.py").write_text(REWARDS)
    Path("bad.jsonl").write_text("\n{]\n")
    Path("unlabelled.jsonl").write_text('{"program": ""}\n')
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    error = command(2, *words.split(" ")).err
    assert error.startswith("sandbox: error: ")
    assert said in error
    assert error.count("\n") == 1
    assert error.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("serve --port x", "argument --port: invalid int value: 'x'; `sandbox serve --help` lists what there is"),
        ("serve --tokn x", "not known here: --tokn x; `sandbox serve --help` lists what there is"),
        ("check-reward a:b --style grpo", "invalid choice: 'grpo' (choose from 'auto', 'plain', 'trl'"),
        ("serv", "invalid choice: 'serv' (choose from"),
        ("", "are required: "),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_without_the_usage(
    capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("sandbox: error: "), said in err) == ("", 1, True, True), err
