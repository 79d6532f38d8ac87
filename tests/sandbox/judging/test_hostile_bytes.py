"""Whatever bytes a run leaves behind, the outcome is a verdict: no error of ours, and no sample to be masked."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolchains import need
from wide import every, wide

from sandbox import Case, Judgement, Limits, Problem, Program, Verdict
from sandbox.build.builder import Builder
from sandbox.jail.run import JailedRun, RunResult
from sandbox.judging.judge import Judge
from sandbox.judging.prepared import NONCE_BYTES, read_frame

ENDS = st.fixed_dictionaries(
    {
        "cause": st.sampled_from([None, None, None, "cpu", "wall", "memory", "output", "security: ptrace"]),
        "exit_code": st.sampled_from([0, 0, 1, 120, 255, None]),
        "signal": st.sampled_from([None, None, 9, 11, 31, 64, 127]),
    }
)


class Told:
    """A jail that answers every run with what it was told; `{nonce}` is the run's."""

    tier = "A"
    ahead = 4

    def __init__(self, end: dict[str, Any], stdout: bytes, stderr: bytes, frame: bytes) -> None:
        self.end, self.stdout, self.stderr, self.frame = end, stdout, stderr, frame
        self.under_way: deque[JailedRun] = deque()

    def start(self, run: JailedRun) -> None:
        self.under_way.append(run)

    def finish(self, *, cancel_fd: int | None = None) -> RunResult:
        job = self.under_way.popleft().job or b""
        result = self.frame.replace(b"{nonce}", job[-NONCE_BYTES:], 1)
        streams = {"stdout": self.stdout, "stderr": self.stderr, "result": result, "collected": None}
        return RunResult(**self.end, **streams, cpu_s=0.1, wall_s=0.1, memory_bytes=1 << 20, left_behind=0)

    def check_memory(self) -> None:
        pass

    def drop(self, **_: Any) -> None:
        self.under_way.clear()

    def forget(self) -> None:
        pass


def outcome(problem: Problem, jail: Told, directory: Path) -> Judgement:
    """Judged, and through all that a judgement goes through on its way to the caller."""
    done = Judge(jail, Builder(directory)).judge(problem, Program("print(1)"))  # type: ignore[arg-type]
    back = Judgement.from_json(json.loads(json.dumps(done.to_json())))
    assert isinstance(back.verdict, Verdict)
    for case in back.cases:
        case.message.encode()
        assert case.message.isprintable()
    back.compile_log.encode()
    return back


HUGE = "an integer of 5,000 digits"  # written as one
KEYS = st.sampled_from([*"itszdbcqfnrgkvm@h", "ok", "error", "stage", "kind", "values", "\ud800", ""])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.sampled_from([10**400, -(10**400), HUGE, "0x" + "f" * 9000, "-0x1", "ff", "\ud800", "1" * 5000, "compile"])
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
FRAMES = st.fixed_dictionaries(
    {},
    optional={
        "ok": st.booleans() | TREES,
        "values": st.lists(TREES, max_size=2) | TREES,
        "error": TREES,
        "stage": st.sampled_from(["compile", "program", "call", "value"]) | TREES,
        "kind": st.sampled_from(["memory", "assertion", "error"]) | TREES,
    },
)


def written(frame: Any, cut: int, nonce: bool) -> bytes:
    text = json.dumps(frame).encode().replace(f'"{HUGE}"'.encode(), b"9" * 5000)
    return b"{nonce}" * nonce + (text[:-cut] if cut else text)


BYTES = st.binary(max_size=60) | st.text(st.characters(codec=None), max_size=30).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)
RESULTS = st.builds(
    written, FRAMES | TREES, st.sampled_from([0, 0, 0, 1, 5]), st.booleans() | st.just(True)
) | BYTES.map(lambda some: b"{nonce}" + some)
ASSERTS = (
    "assert f() == [1, 2]", "assert f() in (1, 2)", "assert sum(f()) == 3", "assert sorted(f()) == [1]",
    "assert abs(f() - 1.0) < 1e-6", "assert f()[0] == 'a'", "assert len(f()) == len(f()) and max(f()) > min(f())",
    "assert f() + f() == 'ab'", "assert f() * 3 == 9", "assert str(f()) == 'x' or round(f(), 2) == 1.5",
    "assert set(f()) == {1} and dict(f()) == {}", "assert f() // 2 % 3 == 1 or not f() < 3", "assert -f() == f() - 1",
)  # fmt: skip
PROBLEMS = [
    Problem("p", "stdio", (Case("", "1"),)),
    Problem("p", "function", (Case("[]", '{"1": [1, 2.5, null]}'), Case("[]", "[1.5]")), fn_name="f"),
    Problem("p", "assert", (Case("assert f() == {1: 2}\nassert abs(f() - 2.5) < 1\nassert sorted(f())[0] in f()"),)),
    *(Problem("p", "assert", (Case(text),)) for text in ASSERTS),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("build")


@pytest.mark.promise("programs-faults")
@settings(max_examples=900, derandomize=True, deadline=None)
@given(end=ENDS, stderr=BYTES, result=RESULTS, problem=st.sampled_from(PROBLEMS))
def test_any_result_frame_leads_to_a_verdict(
    directory: Path, end: dict[str, Any], stderr: bytes, result: bytes, problem: Problem
) -> None:
    outcome(problem, Told(end, b"1", stderr, result), directory)


MODES = ["exact", "lines", "tokens", "float(1e-6)", "lcb", "sf", "code_contests"]
ODD = b"1 -0 1e999999 1e-999999 nan sNaN inf 0x1p3 1_0 . + 1e 1E+99999999999999999999 \xff \x00 \xed\xa0\x80".split(
    b" "
)
TOKENS = st.sampled_from([*ODD, b"9" * 5000, b"1" * 40 + b"x", "٣".encode(), "ß".encode()])
OUTPUTS = st.lists(TOKENS | BYTES, max_size=5).map(b" ".join) | st.lists(TOKENS, max_size=4).map(b"\n".join)
EXPECTED = st.lists(st.sampled_from(["1", "2.5", "1e5", "nan", "x", "-1e-7"]), min_size=1, max_size=4).map(" ".join)


@settings(max_examples=1000, derandomize=True, deadline=None)
@given(output=OUTPUTS, expected=EXPECTED, mode=st.sampled_from(MODES))
def test_any_output_leads_to_a_verdict_in_every_mode(directory: Path, output: bytes, expected: str, mode: str) -> None:
    end = {"cause": None, "exit_code": 0, "signal": None}
    problem = Problem("p", "stdio", (Case("", expected),), compare=mode)
    assert outcome(problem, Told(end, output, b"", b""), directory).verdict in (Verdict.AC, Verdict.WA)


@pytest.fixture
def _unlimited_digits() -> Iterator[None]:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(limit)


@pytest.mark.usefixtures("_unlimited_digits")
def test_a_caller_who_lifted_the_limit_of_digits_reads_no_long_integer_of_a_program() -> None:
    nonce = b"n" * NONCE_BYTES
    for digits, is_read in (("1" * 4000, True), ("1" * 5000, False), ("1" * (16 << 20), False)):
        frame = read_frame(nonce + b'{"ok": true, "values": [%b]}' % digits.encode(), nonce)
        assert (frame is not None) is is_read


# --- frames that programs write themselves ----------------------------------------------------------------------------


LIMITS = Limits(cpu_s=10, wall_s=60)
STAGES = ("preamble", "compile", "value", "call", "test", "program", "", "no such stage")
PYTHON = """
import os
def forge():
    os.pwrite(4, os.pread(3, 1 << 20, 0)[-32:] + {frame}, 0)
    os._exit({code})
"""
# what a program of the language does to write a frame that carries the nonce of its run
FORGERS = {
    "python": PYTHON + "forge()\ndef f(x): return 0",
    "cpp": "#include <unistd.h>\n#include <sys/stat.h>\nstatic int forged = [] {{ struct stat s; char nonce[32]; "
    "if (fstat(3, &s)) return 0; pread(3, nonce, 32, s.st_size - 32); pwrite(4, nonce, 32, 0); "
    "static const char body[] = {frame}; pwrite(4, body, sizeof body - 1, 32); _exit({code}); return 0; }}();\n"
    "int f(int x) {{ return 0; }}\n",
    "java": "import java.io.*;\nimport java.nio.file.*;\nclass Forge {{ static void go() {{ try {{ "
    'byte[] job = Files.readAllBytes(Path.of("/proc/self/fd/3"));\n'
    'try (var out = new FileOutputStream("/proc/self/fd/4")) {{ out.write(job, job.length - 32, 32); '
    "out.write({frame}.getBytes()); }} }} catch (Exception error) {{ }} Runtime.getRuntime().halt({code}); }} }}\n"
    "class Solution {{ static int f(int x) {{ Forge.go(); return 0; }} }}\n",
    "javascript": "const fs = require('fs')\nconst job = fs.readFileSync('/proc/self/fd/3')\n"
    "fs.writeSync(4, Buffer.concat([job.subarray(job.length - 32), Buffer.from({frame})]), 0, null, 0)\n"
    "process.reallyExit({code})\nfunction f (x) {{ return 0 }}\n",
}
MAIN = {
    "cpp": "int main() { return 0; }",
    "java": "class Main { public static void main(String[] a) { Forge.go(); } }",
}
PREAMBLES = {
    "python": "import os",
    "cpp": "#include <vector>",
    "java": "import java.util.*;",
    "javascript": "const helper = 1",
}


def forger(language: str, stage: str, code: int) -> str:
    text = json.dumps({"ok": False, "stage": stage, "error": "forged", "kind": "error", "lost": "test"})
    frame = f"b'{text}'" if language == "python" else json.dumps(text)
    return FORGERS[language].format(frame=frame, code=code)


def problem_of(kind: str, language: str) -> Problem:
    fields: dict[str, Any] = {"preamble": PREAMBLES[language], "limits": LIMITS}
    if kind == "assert":
        return Problem("p", "assert", (Case("for x in [2, 2]:\n    assert f(x) == 4"),) * 2, **fields)
    if kind == "function":
        return Problem("p", "function", (Case("[2]", "4"),), fn_name="f", **fields)
    return Problem("p", "stdio", (Case("2\n", "4"),), **fields)


ROWS = [
    (language, kind, stage, code)
    for language in FORGERS
    for kind in ("function", "stdio", *["assert"] * (language == "python"))
    for stage in STAGES
    for code in (0, 1)
]


@pytest.mark.promise("programs-faults")
@pytest.mark.parametrize(("language", "kind", "stage", "code"), every(8, ROWS))
def test_a_forged_frame_blames_nobody_but_its_program(
    tiered_judge: Judge, language: str, kind: str, stage: str, code: int
) -> None:
    need(language)
    source = forger(language, stage, code) + (MAIN.get(language, "") if kind == "stdio" else "")
    done = tiered_judge.judge(problem_of(kind, language), Program(source, language))
    wanted = {Verdict.RE, Verdict.WA, Verdict.CE} if language == "python" else {Verdict.RE, Verdict.WA}
    assert done.verdict in wanted, done


@pytest.mark.parametrize("language", ["cpp", *map(wide, ["java", "javascript"])])
def test_a_preamble_of_a_compiled_language_is_above_a_right_program(judge: Judge, language: str) -> None:
    need(language)
    sources = {
        "cpp": "int f(int x) { std::vector<int> v{x}; return 2 * v[0]; }",
        "java": "class Solution { int f(int x) { List<Integer> v = List.of(x); return 2 * v.get(0); } }",
        "javascript": "const f = (x) => 2 * x * helper",
    }
    assert judge.judge(problem_of("function", language), Program(sources[language], language)).verdict is Verdict.AC
