"""A test that stands beneath a program is not switched off by what stands above it."""

from __future__ import annotations

import pytest
from toolchains import need
from wide import every

from sandbox import Case, Judgement, Limits, Problem, Program, Verdict
from sandbox.core.nouns import MIB
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=10, wall_s=100, memory_bytes=512 * MIB)
TESTS = {
    "c": "#include <assert.h>\n#include <stdlib.h>\nint main(void) { assert(f(2) == 3); /* and */ "
    "if (f(4) != 5) return EXIT_FAILURE; return 0; }",
    "cpp": "#include <cassert>\nbool same(int a, int b) { return a == b; }\n"
    'int main() { assert(same(f(2), 3)); /* R"(and)" */ assert(f(4) == 5); }',
    "java": "class Test { public static void main(String[] args) { assert Solution.f(2) == 3; /* and */\n"
    "if (Arrays.asList(Solution.f(4) == 5).contains(false)) throw new AssertionError(); } }",
    "javascript": "const assert = require('assert')\nfunction t() { console.assert(f(2) === 3); /* and */ "
    "assert.equal(f(4), 5, `no`) }\nt()",
    "rust": 'fn main() { assert_eq!(f(2), 3); /* and */ assert!(f(4) == 5, "no"); }',
    "go": 'func main() { if f(2) != 3 { panic("no") } /* and */ ; s := `no`; if (f(4) == 5) != true { panic(s) } }',
}
HEADS = {
    "c": "int f(int x) { return 0; }\n",
    "cpp": "int f(int x) { return 0; }\n",
    "java": "import java.util.*;\nclass Solution { static int f(int x) { return 0; } }\n",
    "javascript": "function f(x) { return 0 }\n",
    "rust": "fn f(x: i32) -> i32 { 0 }\n",
    "go": "package main\nfunc f(x int) int { return 0 }\n",
}
FAIL = "void __assert_fail(const char *a, const char *b, unsigned c, const char *d) {}\n"
FAKE = 'int fake(void) __asm__("main");\nint fake(void) { return 0; }\n'
ENDS = {
    "c": (
        "#define NDEBUG", "#def\\\nine NDEBUG", "#/**/define NDEBUG", "#define/**/NDEBUG", "%:define NDEBUG",
        "#define assert(x)", "#define __assert_fail(...) ((void)0)", "#define EXIT_FAILURE 0",
        "#define main(...) main(void) { return 0; } int other(void)", "#define if(x) if (0)\n#define return return 0;",
        "int main(void) { return 0; }\n/*", "int main(void) { return 0; }\n//\\", "int main(void) { return 0; }\n#if 0",
        "int main(void) { return 0; }\nvoid g(void) {", f"#pragma GCC optimize(\"O0\")\n{FAIL}",
        f"#define _ASSERT_H_DECLS\n#pragma GCC optimize(\"O0\")\nstatic {FAIL}", f"{FAKE}#define main other",
        f"#pragma redefine_extname main other\n{FAKE}", "int fake(void) { return 0; }\n#pragma weak main = fake",
        "int __wrap_main(void) { return 0; }", "#define f(x) ((x) + 1)",
    ),
    "cpp": (
        "#define NDEBUG 1", "#define same(...) true || other(__VA_ARGS__)", "#define assert(x) (void)0",
        "int main() { return 0; }\n/*", "int main() { return 0; }\nauto s = R\"(", "#define bool",
        "bool same(int, int) { return true; }", "int main() { return 0; }\nnamespace x {",
        "int main() { return 0; }\ntemplate <class T>",
        "extern \"C\" " + FAIL, f"#pragma redefine_extname main other\nextern \"C\" {FAKE.replace('(void)', '()')}",
    ),
    "java": (
        "class Arrays { static List<Boolean> asList(Object x) { return List.of(true); } }\n"
        "class Main { public static void main(String[] a) {} }", "/*", "abstract", "class X { void g() { if (false)",
        "class AssertionError extends RuntimeException {}", "\\u002f\\u002a", 'class X { String s = """\n',
        "class Test { public static void main(String[] a) {} }\n/*", "class String {}", "@interface A {} @A",
    ),
    "javascript": (
        "if (0)", "/*", "`", "function t()", "console.assert = () => {}", "const console = { assert() {} }",
        "require('assert').equal = () => {}; console = { assert() {} }", "const t = () => {}", "process.exit(0)",
        "console.assert = () => {}; require = () => ({ equal() {} })", "export {}\nif (0)", "export {}\n`",
        "console.assert = () => {}; require('module')._load = () => ({ equal() {} })", "export const t = () => {}",
        "console.assert = () => {}; require.cache.assert = { exports: { equal() {} }, loaded: true }",
        "export {}; const console = { assert() {} }; const require = () => ({ equal() {} })", "for (;0;)",
        "require('vm').runInThisContext = () => () => {}",
        "require('vm').Script.prototype.runInThisContext = () => () => {}",
        "process.on('uncaughtException', () => {})", "export {}; await new Promise(() => {})",
    ),
    "rust": (
        "fn main() {}\n#[cfg(any())]", "macro_rules! assert_eq { ($($t:tt)*) => {} }\n"
        "macro_rules! assert { ($($t:tt)*) => {} }", "#[cfg(any())]", "fn main() {}\n/*",
        "#[macro_export] macro_rules! assert_eq { ($($t:tt)*) => {} }", "fn main() {}\nconst S: &str = \"", "mod x {",
        "macro_rules! eat { ($($t:tt)*) => {} }\nfn main() {}\neat! {", "#[path = \"/dev/null\"]",
        "mod m { #[no_mangle] pub extern \"C\" fn main(a: i32, b: *const *const u8) -> i32 { 0 } }",
        "use std::println as assert_eq; use std::println as assert;", "extern crate self as std;",
    ),
    "go": (
        "func panic(x any) {}", "func main() {}\n/*", "func main() {}\nvar s = `", "const true = 1 != 1",
        "func main() {}", "const false = true", "var panic = func(x any) {}", "func h() {", "var x = ",
        "type panic int",
    ),
}  # fmt: skip
ABOVE = (
    ("rust", "#![no_main]\n"
     "mod m { #[no_mangle] pub extern \"C\" fn main(a: i32, b: *const *const u8) -> i32 { 0 } }\n"),
    ("javascript", "'use strict'; console.assert = () => {}\n"),
    ("go", "//go:build ignore\n"),
)  # fmt: skip
WRONG = [
    *((language, HEADS[language] + end) for language, ends in ENDS.items() for end in ends),
    *((language, above + HEADS[language]) for language, above in ABOVE),
]
RIGHT = [
    ("c", "#define NDEBUG\n#include <assert.h>\nint f(int x) { assert(x == 9); return x + 1; }"),
    ("c", "#define INT_MAX 2147483647\n#define INF INT_MAX\nint f(int x) { return x < INF ? x + 1 : INT_MAX; }"),
    ("c", "#define bool int\n#define true 1\nint f(int x) { bool one = true; return x + one; } // true"),
    ("cpp", "#include <bits/stdc++.h>\n#define all(x) x.begin(), x.end()\n#define ll long long\n"
     "ll f(ll x) { std::vector<ll> v{x}; std::sort(all(v)); return v[0] + 1; }"),
    ("java", "import java.util.stream.*;\nimport java.util.Arrays;\nclass Solution { static int f(int x) { "
     "return IntStream.of(x, 1).sum(); } }\nclass Main { public static void main(String[] a) {} }"),
    ("java", "package mine;\nimport java.util.*;\nclass Solution { static int f(int x) { "
     "assert x > 0; return x + 1; } }"),
    ("javascript", "const assert = require('assert')\nconst f = x => x + 1\n"
     "module.exports = { f }; console.assert(f(1) === 2)"),
    ("javascript", "import fs from 'fs'\nexport const f = (x) => x + 1"),
    ("rust", "#![allow(unused)]\nuse std::io::Write;\nfn f(x: i32) -> i32 { assert!(x > 0, \"{x}\"); x + 1 }\n"
     "#[cfg(test)]\nmod tests {}"),
    ("go", "package main\nfunc max(a, len int) int { if a > len { return a }; return len }\n"
     "func f(x int) int { return max(x + 1, 0) } // func main() {}"),
]  # fmt: skip


# Rows of MultiPL-E: the test ends what the prompt has begun.
OPEN = (
    ("c", "int f(int x) {\n    return %s;", "}\n#include <assert.h>\nint main(void) { assert(f(2) == 3); }"),
    ("java", "class Problem {\n    public static long f(long x) {\n        return %s;\n",
     "    }\n    public static void main(String[] args) { String s = \"{\"; assert(f((2l)) == (3l)); }\n}"),
    ("cpp", "#include <bits/stdc++.h>\nlong f(long x) {\n    return %s;", "}\nint main() { assert(f(2) == 3); }"),
    ("rust", "fn f(x: isize) -> isize {\n    %s", "}\nfn main() { let candidate = f; assert_eq!(candidate(2), 3); }"),
    ("go", "package main\nfunc f(x int) int {\n    return %s\n", "}\nfunc main() { if f(2) != 3 { panic(1) } }"),
    ("javascript", "function f(x) {\n  return %s", "}\nconst a = require('node:assert')\na.equal(f(2), 3)"),
)  # fmt: skip


def judged(judge: Judge, language: str, source: str, test: str, preamble: str = "") -> Judgement:
    need(language)
    problem = Problem("p", "assert", (Case(test),), language=language, preamble=preamble, limits=LIMITS)
    return judge.judge(problem, Program(source, language))


@pytest.mark.parametrize(("language", "source"), every(5, WRONG))
def test_what_stands_above_a_test_does_not_switch_it_off(judge: Judge, language: str, source: str) -> None:
    done = judged(judge, language, source, TESTS[language])
    assert done.verdict in (Verdict.WA, Verdict.RE, Verdict.CE), source


@pytest.mark.parametrize(("kind", "name"), [("int", "INT_MAX"), ("char *", "NULL"), ("double", "DBL_EPSILON")])
@pytest.mark.parametrize("language", ["c", "cpp"])
def test_a_constant_of_the_standards_is_in_a_test_not_the_programs(
    judge: Judge, language: str, kind: str, name: str
) -> None:
    heads = "#include <assert.h>\n#include <limits.h>\n#include <float.h>\n#include <stddef.h>\n"
    test = f"{heads}int main() {{ assert(f(2) == {name}); }}"
    right = f"{heads}{kind} f(int x) {{ return {name}; }}\n"
    wrong = f"{heads}#undef {name}\n#define {name} (({kind})1)\n{kind} f(int x) {{ return {name}; }}"
    assert judged(judge, language, right, test).verdict is Verdict.AC
    assert judged(judge, language, wrong, test).verdict is Verdict.WA


@pytest.mark.parametrize(("language", "source"), every(3, RIGHT))
def test_an_honest_program_may_have_habits_and_names_of_its_own(judge: Judge, language: str, source: str) -> None:
    done = judged(judge, language, source, TESTS[language])
    assert (done.verdict, done.weak) == (Verdict.AC, True), (done.compile_log, done.cases)


@pytest.mark.parametrize(("language", "source", "test"), every(3, OPEN))
def test_a_test_may_end_what_the_program_has_left_open(judge: Judge, language: str, source: str, test: str) -> None:
    right, wrong, hidden = (judged(judge, language, source % body, test).verdict for body in ("x + 1", "x", "x; /*"))
    assert (right, hidden) == (Verdict.AC, Verdict.CE)
    assert wrong in (Verdict.WA, Verdict.RE)


def test_a_macro_of_the_preamble_holds_in_the_test_whatever_the_program_makes_of_it(judge: Judge) -> None:
    above, test = (
        "#include <stdlib.h>\n#define CHECK(x) \\\n  if (!(x)) abort()\n",
        "int main(void) { CHECK(f(2) == 3); }",
    )
    right, wrong = ("int f(int x) { return x + 1; }", "#undef CHECK\n#define CHECK(x)\nint f(int x) { return 0; }")
    assert judged(judge, "c", right, test, above).verdict is Verdict.AC
    assert judged(judge, "c", wrong, test, above).verdict is Verdict.RE
