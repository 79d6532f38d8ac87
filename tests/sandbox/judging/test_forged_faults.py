"""Nothing that a program writes makes its failure the sandbox's or the problem's: such samples would not be scored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toolchains import need
from wide import every, wide

from sandbox import Case, Limits, Problem, Program, Verdict
from sandbox.judging.judge import Judge

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
