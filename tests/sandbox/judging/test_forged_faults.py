"""Nothing that a program writes makes its failure the sandbox's or the problem's: such samples would not be scored."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from toolchains import need
from wide import every, wide

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.compare.modes import same_result
from sandbox.compare.values import decode_value
from sandbox.judging.assert_values import holds
from sandbox.judging.judge import Judge
from sandbox.judging.prepared import read_frame
from sandbox.judging.python_asserts import plan_asserts

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


# --- frames and values of any shape -----------------------------------------------------------------------------------

_LEAVES = (None, True, 0, -1, 1.5, 1e308, 1 << 70, "", "a", "0x" + "f" * 50, "zz", "1e9999999999", "sNaN", "NaN", "-0")
_TAGS = ("i", "t", "s", "z", "d", "b", "c", "q", "f", "n", "r", "g", "k", "v", "m", "@", "h", "", "ok")
_ASSERTS = (
    "assert f() == [1, 2]", "assert f() in (1, 2)", "assert sum(f()) == 3", "assert sorted(f()) == [1]",
    "assert abs(f() - 1.0) < 1e-6", "assert f()[0] == 'a'", "assert len(f()) == len(f()) and max(f()) > min(f())",
    "assert f() + f() == 'ab'", "assert f() * 3 == 9", "assert str(f()) == 'x' or round(f(), 2) == 1.5",
    "assert set(f()) == {1} and dict(f()) == {}", "assert f() // 2 % 3 == 1 or not f() < 3", "assert -f() == f() - 1",
)  # fmt: skip


def shape(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(3 if depth < 4 else 1):
        case 0:
            return rng.choice(_LEAVES)
        case 1:
            return [shape(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_TAGS): shape(rng, depth + 1) for _ in range(rng.choice([1, 1, 1, 2]))}


def test_no_value_of_any_shape_is_more_than_a_wrong_answer() -> None:
    rng = random.Random(5)
    checks = [check for text in _ASSERTS for check in plan_asserts(text).checks]
    assert len(checks) == len(_ASSERTS)
    decoded = 0
    for _ in range(20_000):
        body = json.dumps({"ok": True, "values": [shape(rng) for _ in range(4)], rng.choice(_TAGS): shape(rng)})
        frame = read_frame(b"n" * 32 + body.encode(), b"n" * 32)
        assert frame is not None
        try:
            values = [decode_value(value) for value in frame.get("values", [])]
        except ValueError:  # which `decide_values` takes for an unreadable result
            continue
        decoded += 1
        for value in values:
            for mode in ("tokens", "float(1e-6)", "lcb"):
                assert same_result(mode, value, shape(rng)) in (True, False)
        for check in checks:
            assert holds(check, values) in (True, False)
    assert decoded > 1000
