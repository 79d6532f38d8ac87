"""The hack zoo: no hostile program is accepted, every honest twin is, and each attack is a real one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import naive
import pytest
from places import ROOT
from pooling import pooled
from wide import wide

from sandbox import Case, InvalidProblem, Pool, Problem, Program, Verdict
from sandbox.build.builder import Builder
from sandbox.core.nouns import Judgement, Limits
from sandbox.errors import IsolationUnavailable
from sandbox.jail.jail import Jail
from sandbox.jail.run import JailedRun
from sandbox.judging.judge import Judge
from sandbox.rewards.extract import extract_program
from sandbox.zoo import catalogue, exhibits

ENTRIES = {entry.id: entry for entry in catalogue.entries()}
PAID = [
    (entry, number, name)
    for entry in ENTRIES.values()
    for number, attack in enumerate(entry.attacks)
    for name in attack.fools.split()
]


class Judges:
    """A few jails of one tier, each used by one thread at a time; all that this session asks for is queued at once."""

    def __init__(self, tier: str, builds: Path, asked: set[str], size: int = 3) -> None:
        self.tier = tier
        self.free: SimpleQueue[Jail] = SimpleQueue()
        self.jails = [Jail(tier) for _ in range(size)]  # type: ignore[arg-type]
        for jail in self.jails:
            self.free.put(jail)
        self.builder = Builder(builds)
        self.threads = ThreadPoolExecutor(size)
        self.futures: dict[tuple[str, str], Future[Judgement]] = {}
        for entry in (ENTRIES[name] for name in ENTRIES if name in asked):
            hostile = (Program(attack.source, attack.language) for attack in self.attacks(entry))
            for program in (*hostile, *entry.honest):
                key = (entry.id, program.language + program.source)
                self.futures[key] = self.threads.submit(self._judge, entry.problem, program)

    def attacks(self, entry: exhibits.Entry) -> list[exhibits.Attack]:
        """All of them, save compile bombs of seconds a second time: both tiers compile under the same limits."""
        once = self.tier == "B" and entry.id == "compile-bombs"
        return [attack for attack in entry.attacks if not (once and attack.harmful)]

    def verdict(self, entry: exhibits.Entry, program: Program) -> Judgement:
        return self.futures[entry.id, program.language + program.source].result()

    def _judge(self, problem: Problem, program: Program) -> Judgement:
        jail = self.free.get()
        try:
            return Judge(jail, self.builder).judge(problem, program)
        finally:
            self.free.put(jail)

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for jail in self.jails:
            jail.close()


@pytest.fixture(scope="module", params=["A", wide("B")])
def judges(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judges]:
    parameters = [getattr(item, "callspec", None) for item in request.session.items]
    asked = {str(found.params.get("name")) for found in parameters if found is not None}
    try:
        made = Judges(request.param, tmp_path_factory.getbasetemp() / "zoo-builds", asked)
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


# --- the whole zoo through the real judge -----------------------------------------------------------------------------


def cause(done: Judgement) -> str:
    return next((case.message for case in done.cases if case.verdict is not Verdict.AC), done.compile_log)


@pytest.mark.promise("attacks")
@pytest.mark.parametrize("name", ENTRIES)
def test_no_attack_is_accepted_and_the_cause_is_the_mechanism_that_blocks_it(judges: Judges, name: str) -> None:
    entry = ENTRIES[name]
    for number, attack in enumerate(judges.attacks(entry), 1):
        done = judges.verdict(entry, Program(attack.source, attack.language))
        assert done.verdict.value in attack.verdicts(done.tier), (number, done)
        assert re.search(attack.cause, cause(done)), (number, done)


@pytest.mark.promise("honest")
@pytest.mark.parametrize("name", ENTRIES)
def test_honest_twins_are_accepted(judges: Judges, name: str) -> None:
    for number, program in enumerate(ENTRIES[name].honest, 1):
        done = judges.verdict(ENTRIES[name], program)
        assert (done.verdict, done.weak) == (Verdict.AC, False), (number, done)


def test_the_zoo_holds_every_row_of_the_catalogue_with_a_twin_and_a_test_that_exists() -> None:
    assert {entry.row for entry in ENTRIES.values()} == set(range(1, exhibits.ROWS + 1))
    for entry in ENTRIES.values():
        assert entry.honest, entry.id
        assert entry.attacks or entry.own_test, entry.id
        assert not entry.own_test or entry.own_test in globals(), entry.own_test
    assert len(ENTRIES) == len(catalogue.entries())


# --- the attacks are real: a careless grader pays them ----------------------------------------------------------------


def pays(name: str, entry: exhibits.Entry, attack: exhibits.Attack, directory: Path) -> bool:
    """Whether the careless grader pays, asked in a process and a directory of its own."""
    call = {"problem": entry.problem.to_json(), "program": attack.source, "language": attack.language}
    verdict = directory / "verdict"
    inner = directory / "call" / "here"  # what a program writes to ../.. is then still below `directory`
    inner.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "TMPDIR": str(inner)}
    argv = [sys.executable, naive.__file__, name, str(verdict)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=inner, env=env,
        start_new_session=True,
    ) as process:  # fmt: skip
        process.communicate(json.dumps(call).encode(), timeout=60)
    return verdict.exists() and json.loads(verdict.read_text())


@pytest.mark.skipif(
    os.geteuid() != 0 or os.environ.get("SANDBOX_CARELESS") != "1",
    reason="runs the attacks as root and without a jail: set SANDBOX_CARELESS=1, on a machine that may be dirtied",
)
@pytest.mark.parametrize(("entry", "number", "name"), PAID, ids=[f"{e.id}-{n + 1}-{g}" for e, n, g in PAID])
def test_a_careless_grader_pays_the_attack(entry: exhibits.Entry, number: int, name: str, tmp_path: Path) -> None:
    assert pays(name, entry, entry.attacks[number], tmp_path)


@pytest.mark.parametrize("name", ["in_process", "relaxed", "exit_code", "plain", "marker", "framework"])
def test_the_careless_graders_can_tell_right_from_wrong_when_nobody_cheats(name: str, tmp_path: Path) -> None:
    problem = exhibits.SUM if name == "plain" else exhibits.ASSERTS if name == "framework" else exhibits.DOUBLE
    entry = exhibits.Entry("plain", 0, "", "", problem)
    good, bad = (
        (exhibits.HONEST_SUM, "print(0)") if name == "plain" else (exhibits.HONEST_DOUBLE, "def f(x): return 0\n")
    )
    assert pays(name, entry, exhibits.Attack(good), tmp_path)
    (tmp_path / "verdict").unlink()
    assert not pays(name, entry, exhibits.Attack(bad), tmp_path)


# --- attacks on our own process ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jail(tiered_jail: Jail) -> Jail:
    return tiered_jail


@pytest.mark.parametrize(
    "script",
    ["ln -s /etc/passwd out", "mkfifo out", "mkdir out", "ln -s /dev/zero out", "ln -s /proc/self/environ out", ":"],
)
def test_links_pipes_and_devices_are_never_collected(jail: Jail, script: str) -> None:
    done = jail.run(JailedRun(Limits(), argv=("/bin/sh", "-c", script), collect="out"))
    assert (done.exit_code, done.collected) == (0, None)


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "a//b", "", ".", "..", "a\x00b"])
def test_names_that_leave_the_work_directory_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="work directory"):
        JailedRun(Limits(), argv=("/bin/true",), files=((name, b""),))
    with pytest.raises(ValueError, match="work directory"):
        JailedRun(Limits(), argv=("/bin/true",), collect=name)


@pytest.mark.promise("no-tests")
def test_a_problem_without_tests_cannot_be_made() -> None:
    for kind, cases in (("stdio", ()), ("stdio", (Case("", "\n"),)), ("assert", (Case("x = 1"),))):
        with pytest.raises(InvalidProblem):
            Problem("p", kind, cases)  # type: ignore[arg-type]


@pooled(1)
async def test_a_program_that_crashes_is_judged_once_and_never_counts_as_our_failure(pool: Pool) -> None:
    entry = ENTRIES["crashing-the-judge"]
    done = [await pool.judge(entry.problem, Program(attack.source)) for attack in entry.attacks]
    assert [judgement.verdict for judgement in done] == [Verdict.RE] * 3
    assert (pool.stats().infrastructure_failures, pool.stats().done) == (0, 3)


def test_the_rule_of_extraction_takes_one_block_and_never_the_thoughts() -> None:
    right, wrong = "print(1)\n", "print(2)\n"
    fence = "```python\n{}```\n"
    assert extract_program(fence.format(wrong) + fence.format(right)) == right
    assert extract_program("<think>\n" + fence.format(wrong)) == ""
    assert extract_program("<think>\n" + fence.format(wrong) + "</think>\n" + fence.format(right)) == right
    assert extract_program("```text\n" + wrong + "```\n" + fence.format(right)) == right
    assert extract_program("import pytest\n" + fence.format(right)) == right


# --- invariants -------------------------------------------------------------------------------------------------------

SMALL = [
    entry for entry in ENTRIES.values() if entry.id in ("exit-before-asserts", "way-out", "always-equal", "signals")
]


@pytest.mark.promise("honest")
def test_a_right_program_passes_three_times(jail: Jail, tmp_path: Path) -> None:
    judge = Judge(jail, Builder(tmp_path))
    for entry in SMALL:
        for program in entry.honest:
            assert [judge.judge(entry.problem, program).verdict for _ in range(3)] == [Verdict.AC] * 3


def test_verdicts_are_the_same_on_a_machine_with_four_times_the_work(tmp_path: Path) -> None:
    jobs = [(entry.problem, Program(attack.source)) for entry in SMALL for attack in entry.attacks
            if attack.language == "python"]  # fmt: skip
    jobs += [(entry.problem, program) for entry in SMALL for program in entry.honest]
    jobs += [(exhibits.SUM, Program("while True: pass"))]

    async def judge(workers: int) -> list[str]:
        async with Pool(workers=workers) as pool:
            return [done.verdict.value for done in await asyncio.gather(*(pool.judge(*job) for job in jobs))]

    cores = len(os.sched_getaffinity(0))
    calm = asyncio.run(judge(cores))
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        busy = asyncio.run(judge(4 * cores))
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert busy == calm
    assert len(set(calm)) >= 4
