"""Compilers as targets: bombs that go off while compiling, and files that only a compiler reads."""

from __future__ import annotations

from typing import Final

from sandbox.core.nouns import Case
from sandbox.core.problem import Problem
from sandbox.zoo.exhibits import FAST, Attack, Entry, cpp

_ECHO: Final = Problem("echo", "stdio", (Case("", "opened"),), limits=FAST)
_SAME_JAIL: Final = "a compiler runs in the jail, with limits of its own, and its log is capped"
_MACROS: Final = "\n".join(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}" for n in range(1, 13))
_DENIED: Final = "No such file|Permission denied|file not found|can't open|cannot open"

ENTRIES: Final = (
    Entry(
        "compile-bombs", 45, "macro, template, self-include and initialiser bombs", _SAME_JAIL, _ECHO,
        (
            Attack(f"#define A0 1,\n{_MACROS}\nint a[] = {{ A12 }};\n"
                   f"int main() {{}}\n", "CE", "exceeded|out of memory", language="cpp", harmful=True),
            Attack("template<int N> struct T { T<N + 1> t; };\nT<0> t;\nint main() {}\n",
                   "CE", "depth", language="cpp"),
            Attack("#include __FILE__\nint main() {}\n", "CE", "nested|limit|too long", language="cpp"),
            Attack("constexpr int f() { int i = 0; while (true) ++i; return i; }\nconstexpr int x = f();\n"
                   "int main() {}\n", "CE", "constexpr|limit", language="cpp"),
            Attack("char x[1L << 30] = {1};\nint main() {}\n",
                   "CE", "limit exceeded|exceeded its", language="cpp", harmful=True),
            Attack('#include "/dev/urandom"\nint main() {}\n',
                   "CE", "out of memory|exceeded", language="cpp", harmful=True),
            Attack("int main() { " + "x; " * 50_000 + "}\n", "CE", "not declared", language="cpp"),
        ),
        cpp("#define P(x) std::cout << #x\n#include <iostream>\nint main() { P(opened); }\n",
            "#include <array>\n#include <iostream>\n"
            "template<int N> int sum() { if constexpr (N == 0) return 0; else return N + sum<N - 1>(); }\n"
            'int main() { static_assert(sizeof(std::array<char, 9>) == 9); std::cout << (sum<100>() == 5050 ? "opened"'
            ' : "no"); }\n'),
    ),
    Entry(
        "compile-time-reads", 46, "read the machine's files through the compiler",
        "the compiler sees what a program sees: tools, and its own source", _ECHO,
        (
            Attack('#include "/etc/passwd"\nint main() {}\n', "CE", _DENIED, language="cpp"),
            Attack('asm(".section .rodata\\n.global s\\ns: .incbin \\"/etc/passwd\\"\\n.byte 0\\n.text");\n'
                   'extern "C" char s[];\n#include <cstdio>\nint main() { puts(s[0] ? "opened" : ""); }\n',
                   "CE", _DENIED, "plain", "cpp"),
            Attack('#include "/proc/1/environ"\nint main() {}\n', "CE", _DENIED, language="cpp"),
            Attack('#if __has_include("/etc/passwd")\n#include <cstdio>\nint main() { puts("opened"); }\n#else\n'
                   "int main() { return 3; }\n#endif\n",
                   # Tier B's compiler may not even probe; it is not asked where tier A has built this before.
                   "RE", f"exit code 3|{_DENIED}", "plain", "cpp", want_b="CE RE"),
        ),
        cpp('#if __has_include(<vector>)\n#include <vector>\n#include <cstdio>\nint main() { puts("opened"); }\n'
            "#endif\n",
            'asm(".section .rodata\\n.global s\\ns: .asciz \\"opened\\"\\n.text");\nextern "C" const char s[];\n'
            "#include <cstdio>\nint main() { puts(s); }\n"),
    ),
)  # fmt: skip
