"""Count who decides about references: the judge, a second jail, or the run beside the program.

    bash scripts/bench.sh second_jail FILE... [--packages numpy pandas]

Each test case is judged alone. "weak" is the share that a completion token guards.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

from _shared import argument_parser

from recipes.code_rl.cases import Judging
from recipes.code_rl.data import load_problems
from sandbox.build.builder import Builder
from sandbox.core.nouns import Program
from sandbox.core.problem import Problem
from sandbox.jail.jail import Jail, find_packages
from sandbox.judging import apart
from sandbox.judging.judge import Judge


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("sources", nargs="+", help="files or folders of rows with references")
    parser.add_argument("--packages", nargs="*", default=(), help="installed packages that programs may import")
    options = parser.parse_args()
    decide, decided = apart.decide, []

    def counted(*given):
        found = decide(*given)
        decided.append(found is not None)
        return found

    apart.decide = counted
    with Jail(packages=find_packages(tuple(options.packages))) as jail:
        judge = Judge(jail, Builder(f"{jail.directory}/build"))
        for source in options.sources:
            counts: Counter[str] = Counter()
            for problem in load_problems(source, Judging(packages=tuple(options.packages))).problems:
                for case in problem.problem.cases if problem.references else ():
                    decided.clear()
                    counts[_who(judge, replace(problem.problem, cases=(case,)), problem.references[0], decided)] += 1
            total = max(1, sum(counts.values()))
            shares = ", ".join(f"{name} {count} ({count / total:.1%})" for name, count in counts.most_common())
            print(f"{source}: {total} cases: {shares}", flush=True)


def _who(judge: Judge, problem: Problem, reference: str, decided: list[bool]) -> str:
    done = judge.judge(problem, Program(reference, problem.language))
    if any(decided):
        return "second jail"
    if done.weak:
        return "weak"
    return "judge" if done.verdict == "AC" else f"reference {done.verdict}"


if __name__ == "__main__":
    sys.exit(main())
