"""The table of languages. Adding one is adding an entry; `sandbox doctor` and the tests then judge its samples.

A program is put together for the kind of its problem (`sandbox.build.units`), compiled by `compile` in the jail's work
directory into `artifact` (kept by content, `sandbox.build`), and started by `run`; a language without `run` is run by
the warm Python harness. In every argv and environment a name in braces means a tool's path ({g++}), a file
({source}, {artifact}: as ./NAME), or a number that the run's limits give ({heap_mib}, {stack_kib}). Where a part is
{source} or {start} and nothing else, the program's names take its place, which are never formats.
"""

from __future__ import annotations

from typing import Final

from sandbox.core.nouns import MIB
from sandbox.errors import InvalidProgram
from sandbox.languages.cpp_call import CPP_CALL
from sandbox.languages.language import KindExample, Language, LanguageHarness, Runtime, Samples

_JVM: Final = Runtime(threads=48, open_files=64)
_JVM_FLAGS: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
_NODE_RUNTIME: Final = Runtime(threads=16, open_files=32, stack_bytes_max=64 * MIB)
_NODE: Final = ("{node}", "--max-old-space-size={heap_mib}", "--stack-size={stack_kib}")
_WRAP: Final = "-Wl,--wrap=main"
_GXX: Final = ("{g++}", "-O2", "-std=gnu++20", "-pthread", "-DONLINE_JUDGE", "-pipe", "-fmax-errors=5")
_C_THREADS: Final = "sandbox_threads.c"
_C_CHANCE: Final = "sandbox_chance.c"
_C_ASKED_FOR: Final = ((("thread", "async", "omp", "execution"), _C_THREADS), (("omp",), "-fopenmp"))


def _c_assert(opened: str, closed: str) -> LanguageHarness:
    """Asserts beneath a program in C or C++ (where names have C's linkage between `opened` and `closed`)."""
    begin = f"{opened} int SANDBOX_TOKEN_begin(void) {{ return 1; }} {closed}"
    end = (
        f"{opened} void *SANDBOX_TOKEN_main(void) {{ return (void *)main; }}\n"
        f"void *SANDBOX_TOKEN_fail(void) {{ return (void *)__assert_fail; }} {closed}"
    )
    after = f"\n\n{{forget}}\n;\n#undef NDEBUG\n#include <assert.h>\n{begin}\n{{test}}\n{end}\n"
    return LanguageHarness("its main has returned 0", after=after, files=("token.c",), compile=("token.c", _WRAP))


_C_ASSERTED: Final = ("Assertion `", "' failed.")
_MAIN: Final = "its main has returned"

_TABLE: Final = (
    Language(
        "python",
        "Python",
        "main.py",
        Samples(
            adds="print(sum(map(int, input().split())))",
            fails="raise ValueError",
            hoards="a = []\nwhile True: a.append(bytearray(1 << 20))",
            spins="while True: pass",
            broken="def f(:",
            asked={
                "function": KindExample(
                    "[[1, 2], 1]",
                    right="def f(a, k): return a[k]",
                    wrong="def f(a, k): return a[k] + 1",
                    early="import os\ndef f(a, k): os._exit(0)",
                ),
                "assert": KindExample(
                    "assert f() == 2", right="def f(): return 2", wrong="def f(): return 3", early="def f(): exit(0)"
                ),
            },
        ),
        suffixes=(".py", ".py3"),
        aliases=("py", "python3"),
        crash_has_own_exit_code=True,
        harness={
            "function": LanguageHarness(complete="the function has returned"),
            "assert": LanguageHarness(complete="the last step of the test is done"),
        },
        said=r"^Traceback \(most recent call last\):\n(?:[ \t].*\n|\n)*(?P<said>\S.*)",
    ),
    Language(
        "c",
        "C",
        "main.c",
        Samples(
            adds='#include <stdio.h>\nint main(void) { int a, b; scanf("%d%d", &a, &b); printf("%d\\n", a + b); }',
            fails="#include <stdlib.h>\nint main(void) { exit(3); }",
            hoards="#include <stdlib.h>\n#include <string.h>\n"
            "int main(void) { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }",
            spins="int main(void) { volatile int x = 0; for (;;) x++; }",
            broken="int main(void) { return x; }",
            asked={
                "assert": KindExample(
                    "#include <assert.h>\nint main(void) { assert(f() == 2); return 0; }",
                    right="int f(void) { return 2; }",
                    wrong="int f(void) { return 3; }",
                    early="#include <stdlib.h>\nint f(void) { exit(0); }",
                )
            },
        ),
        suffixes=(".c",),
        crash_has_own_exit_code=True,
        together=True,
        artifact="main",
        tools=("gcc",),
        version=("{gcc}", "-dumpfullversion"),
        package="gcc (Debian, Ubuntu: apt-get install gcc libc6-dev)",
        compile=(
            *("{gcc}", "-O2", "-std=gnu17", "-pthread", "-DONLINE_JUDGE", "-pipe", "-fmax-errors=5"),
            *("-o", "{artifact}", "{source}", "-lm"),
        ),
        compile_files=(_C_THREADS,),
        chance=(_C_CHANCE,),
        asked_for=_C_ASKED_FOR,
        run=("{artifact}",),
        harness={"assert": _c_assert("", "")},
        asserted=_C_ASSERTED,
    ),
    Language(
        "cpp",
        "C++",
        "main.cpp",
        Samples(
            adds="#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }",
            fails='#include <stdexcept>\nint main() { throw std::runtime_error("no"); }',
            hoards="#include <vector>\n"
            "int main() { std::vector<std::vector<char>> v; for (;;) v.emplace_back(1 << 20, 1); }",
            spins="int main() { volatile int x = 0; for (;;) x = x + 1; }",
            broken="int main() { return x; }",
            asked={
                "function": KindExample(
                    "[[1, 2], 1]",
                    right="int f(std::vector<int> a, int k) { return a[k]; }",
                    wrong="int f(std::vector<int> a, int k) { return a[k] + 1; }",
                    early="int f(std::vector<int> a, int k) { exit(0); }",
                ),
                "assert": KindExample(
                    "#include <cassert>\nint main() { assert(f() == 2); }",
                    right="int f() { return 2; }",
                    wrong="int f() { return 3; }",
                    early="#include <cstdlib>\nint f() { exit(0); }",
                ),
            },
        ),
        suffixes=(".cpp", ".cc", ".cxx", ".c++", ".C"),
        crash_has_own_exit_code=True,
        together=True,
        aliases=("c++", "cc", "cxx"),
        artifact="main",
        tools=("g++",),
        version=("{g++}", "-dumpfullversion"),
        package="g++ (Debian, Ubuntu: apt-get install g++)",
        compile=(*_GXX, "{linker}", "-o", "{artifact}", "{source}"),
        compile_files=(_C_THREADS,),
        chance=(_C_CHANCE,),
        asked_for=_C_ASKED_FOR,
        run=("{artifact}",),
        harness={
            "function": LanguageHarness(
                "the function has returned",
                before='#include <bits/stdc++.h>\n#include "harness.hpp"\n',
                after=CPP_CALL,
                files=("harness.hpp", "harness_json.hpp"),
                compile=(_WRAP,),
            ),
            "assert": _c_assert('extern "C" {', "}"),
        },
        header="bits/stdc++.h",
        precompile=(*_GXX, "-x", "c++-header", "-o", "{artifact}", "{source}"),
        refused=r"std::bad_alloc|std::bad_array_new_length",
        said=r"^(?P<said>terminate called .*(?:\n +what\(\): .*)?)",
        asserted=_C_ASSERTED,
    ),
    Language(
        "java",
        "Java",
        "main.java",
        Samples(
            adds="import java.util.*;\npublic class Sum { public static void main(String[] a) { var in = new Scanner("
            "System.in); System.out.println(in.nextInt() + in.nextInt()); } }",
            fails="class Main { public static void main(String[] a) { throw new RuntimeException(); } }",
            hoards="import java.util.*;\nclass Main { public static void main(String[] a) { "
            "List<int[]> l = new ArrayList<>(); for (;;) l.add(new int[1 << 18]); } }",
            spins="class Main { public static void main(String[] a) { for (;;) ; } }",
            broken="class Main {",
            asked={
                "function": KindExample(
                    "[[1, 2], 1]",
                    right="class Solution { int f(int[] a, int k) { return a[k]; } }",
                    wrong="class Solution { int f(int[] a, int k) { return a[k] + 1; } }",
                    early="class Solution { int f(int[] a, int k) { System.exit(0); return 2; } }",
                ),
                "assert": KindExample(
                    "class Main { public static void main(String[] a) { assert Answer.f() == 2; } }",
                    right="class Answer { static int f() { return 2; } }",
                    wrong="class Answer { static int f() { return 3; } }",
                    early="class Answer { static int f() { System.exit(0); return 2; } }",
                ),
            },
        ),
        suffixes=(".java",),
        together=True,
        starts_in_class=True,
        artifact="main.jar",
        tools=("java", "javac"),
        version=("{java}", "-XX:-UsePerfData", "--version"),
        see=("/etc/java*",),
        package="a JDK of version 11 or later (Debian, Ubuntu: apt-get install default-jdk-headless)",
        compile=(
            *("{java}", *_JVM_FLAGS, "-Xmx768m", "-Xss16m"),
            *("Compile.java", "{artifact}", "{start}", "{source}", "Launch.java"),
        ),
        compile_files=("Compile.java", "Launch.java"),
        compile_runtime=_JVM,
        run=(
            *("{java}", *_JVM_FLAGS, "-Xms8m", "-Xmx{heap_mib}m", "-XX:MaxNewSize={young_mib}m"),
            *("-XX:MaxMetaspaceSize=128m", "-DONLINE_JUDGE=true"),
            *("--add-opens", "java.base/java.io=ALL-UNNAMED", "-cp", "{artifact}", "sandbox.Launch"),
        ),
        runtime=_JVM,
        reports=True,
        harness={
            "function": LanguageHarness("the method has returned"),
            "assert": LanguageHarness(
                _MAIN,
                after="\nstatic int SANDBOX_TOKEN;\n{test}\n",
                compile=("-test", "Test.java"),
                test_file="Test.java",
            ),
        },
        refused=r"java\.lang\.OutOfMemoryError|insufficient memory for the Java Runtime",
        said=r"^(?P<said>Exception in thread .*)",
        asserted=("Exception in thread ", " java.lang.AssertionError"),
    ),
    Language(
        "javascript",
        "JavaScript",
        "main.js",
        Samples(
            adds="const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number)\nconsole.log(a + b)",
            fails="throw new Error()",
            hoards="const a = []; for (;;) a.push(new Array(100000).fill(1.5))",
            spins="for (;;) ;",
            broken="const = 1",
            asked={
                "function": KindExample(
                    "[[1, 2], 1]",
                    right="const f = (a, k) => a[k]",
                    wrong="const f = (a, k) => a[k] + 1",
                    early="const f = () => process.exit(0)",
                ),
                "assert": KindExample(
                    "console.assert(f() === 2)",
                    right="const f = () => 2",
                    wrong="const f = () => 3",
                    early="const f = () => process.exit(0)",
                ),
            },
        ),
        suffixes=(".js",),
        aliases=("js", "node", "nodejs"),
        artifact="main.js",
        tools=("node",),
        version=("{node}", "--version"),
        package="Node.js (Debian, Ubuntu: apt-get install nodejs)",
        compile=("{node}", "--check", "{source}"),
        compile_runtime=_NODE_RUNTIME,
        run=(*_NODE, "{artifact}"),
        runtime=_NODE_RUNTIME,
        environment=(("OPENSSL_CONF", "/dev/null"),),
        harness={
            kind: LanguageHarness(complete, test_file=test, run=(*_NODE, "harness.js"), run_files=("harness.js",))
            for kind, complete, test in (
                ("function", "the function has returned", ""),
                ("assert", "the test has ended and the event loop has run dry", "test.js"),
            )
        },
        refused=r"JavaScript heap out of memory|process out of memory|Array buffer allocation failed",
        said=r"^ *\^+\n\s*(?P<said>\S.*)",
    ),
    Language(
        "rust",
        "Rust",
        "main.rs",
        Samples(
            adds="use std::io::*;\nfn main() { let mut s = String::new(); stdin().read_to_string(&mut s).unwrap();\n"
            'println!("{}", s.split_whitespace().map(|x| x.parse::<i64>().unwrap()).sum::<i64>()); }',
            fails='fn main() { panic!("no"); }',
            hoards="fn main() { let mut v: Vec<Vec<u8>> = vec![]; loop { v.push(vec![1; 1 << 20]); } }",
            spins="fn main() { loop { std::hint::black_box(1); } }",
            broken="fn main() { x }",
            asked={
                "assert": KindExample(
                    "fn main() { assert_eq!(f(), 2); }",
                    right="fn f() -> i32 { 2 }",
                    wrong="fn f() -> i32 { 3 }",
                    early="fn f() -> i32 { std::process::exit(0) }",
                )
            },
        ),
        suffixes=(".rs",),
        crash_has_own_exit_code=True,
        aliases=("rs",),
        artifact="main",
        tools=("rustc", "cc"),
        version=("{rustc}", "--version"),
        sysroot=("{rustc}", "--print", "sysroot"),
        package="rustc (https://rustup.rs; Debian, Ubuntu: apt-get install rustc gcc)",
        compile=(
            *("{rustc}", "--edition=2021", "--crate-name=main", "-Copt-level=2", "-Cstrip=symbols"),
            "-Ccodegen-units=4",
            *("-Clinker={cc}", "-Clink-arg=-fuse-ld=bfd", "-o", "{artifact}", "{source}"),
        ),
        compile_runtime=Runtime(threads=32),
        run=("{artifact}",),
        harness={
            "assert": LanguageHarness(
                "its main has returned without a panic",
                after='\n#[macro_use]\n#[path = "token.rs"]\nmod SANDBOX_TOKEN;\n{test}\n'
                "fn main() -> SANDBOX_TOKEN::Ended { SANDBOX_TOKEN::ended(SANDBOX_TOKEN_main()) }\n",
                files=("token.rs",),
                compile=("-Clink-arg=" + _WRAP,),
                rename_main="SANDBOX_TOKEN_main",
            )
        },
        refused=r"memory allocation of \d+ bytes failed",
        said=r"^thread '[^'\n]*' .*?(?P<said>panicked at .*(?:(?<=:)\n.*)?)",
        asserted=("panicked at ", "assertion"),
    ),
    Language(
        "go",
        "Go",
        "main.go",
        Samples(
            adds='package main\nimport "fmt"\nfunc main() { var a, b int; fmt.Scan(&a, &b); fmt.Println(a + b) }',
            fails='package main\nfunc main() { panic("no") }',
            hoards="package main\nfunc main() { var a [][]byte; for { b := make([]byte, 1<<20); "
            "for i := range b { b[i] = 1 }; a = append(a, b) } }",
            spins="package main\nfunc main() { for { } }",
            broken="package main\nfunc main() { x }",
            asked={
                "assert": KindExample(
                    'func main() { if f() != 2 { panic("no") } }',
                    right="package main\nfunc f() int { return 2 }",
                    wrong="package main\nfunc f() int { return 3 }",
                    early='package main\nimport "os"\n// func main() {\nfunc f() int { os.Exit(0); return 2 }',
                    wrong_is="RE",
                )
            },
        ),
        suffixes=(".go",),
        together=True,
        one_folder=True,
        aliases=("golang",),
        artifact="main",
        tools=("go",),
        version=("{go}", "version"),
        sysroot=("{go}", "env", "GOROOT"),
        see=("/usr/share/go-*",),
        package="Go (Debian, Ubuntu: apt-get install golang-go; or https://go.dev/dl)",
        compile=("{go}", "build", "-p=1", "-ldflags=-s -w", "-o", "{artifact}", "{source}"),
        chance=("sandbox_chance.go",),
        compile_runtime=Runtime(threads=64),
        run=("{artifact}",),
        runtime=Runtime(threads=16),
        environment=(
            ("GO111MODULE", "off"),
            ("CGO_ENABLED", "0"),
            ("GOFLAGS", ""),
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
            ("GOMAXPROCS", "1"),
            ("GOMEMLIMIT", "{heap_mib}MiB"),
            ("GOTRACEBACK", "single"),
        ),
        harness={
            "assert": LanguageHarness(
                _MAIN,
                after="\nfunc SANDBOX_TOKEN_begin() {}\n{test}\n",
                files=("token.go",),
                compile=("token.go",),
                rename_main="SANDBOX_TOKEN_main",
            )
        },
        refused=r"^fatal error: (runtime: )?(out of memory|cannot allocate memory)",
        said=r"^(?P<said>(?:panic|fatal error): .*)",
    ),
)
LANGUAGES: Final[dict[str, Language]] = {language.name: language for language in _TABLE}


def find_language(name: str) -> Language:
    """The language called `name`. Raises InvalidProgram for an unknown one."""
    wanted = name.lower()
    for language in LANGUAGES.values():
        if wanted == language.name or wanted in language.aliases:
            return language
    raise InvalidProgram(f"language={name!r} is unknown; use one of {', '.join(LANGUAGES)}")


def by_suffix(suffix: str) -> Language | None:
    """The language of files called so (".py")."""
    return next((language for language in LANGUAGES.values() if suffix in language.suffixes), None)
