"""How a run could tell how many runs of its program were before it, beside the ways of the zoo."""

from __future__ import annotations

import os

import pytest
from toolchains import need

from sandbox.build.builder import Builder
from sandbox.core.nouns import Case, Judgement, Limits, Program, Verdict
from sandbox.core.problem import Problem
from sandbox.errors import IsolationUnavailable
from sandbox.jail.jail import Jail
from sandbox.jail.run import RunResult
from sandbox.judging.judge import Judge

LIMITS = Limits(cpu_s=2, wall_s=20)


def judged(judge: Judge, source: str, answers: list[str], language: str = "python") -> Judgement:
    cases = tuple(Case("same\n", answer) for answer in answers)
    return judge.judge(Problem("counting", "stdio", cases, limits=LIMITS), Program(source, language))


def printed(
    judge: Judge, source: str, monkeypatch: pytest.MonkeyPatch, *, runs: int = 6, language: str = "python"
) -> list[str]:
    """By each of the program's runs."""
    finish, outputs = judge.jail.finish, list[str]()

    def finish_and_note(*, cancel_fd: int | None = None) -> RunResult:
        done = finish(cancel_fd=cancel_fd)
        outputs.append(done.stdout.decode())
        return done

    monkeypatch.setattr(judge.jail, "finish", finish_and_note)
    every = Judge(judge.jail, judge.builder, stop_at_first_failure=False)
    assert judged(every, source, ["another"] * runs, language).verdict is Verdict.WA
    return outputs[-runs:]  # before them, a compiler's


def jail_of_its_own() -> Jail:
    """One of tier A that has run nothing yet."""
    try:
        jail = Jail("A")
    except IsolationUnavailable as error:
        pytest.skip(str(error))
    if "scattered pids" not in jail.mechanisms:
        jail.close()
        pytest.skip("the kernel lets nobody choose pids")
    return jail


def test_no_pid_of_a_child_tells_which_run_it_is(builder: Builder) -> None:
    """Its own tells nothing either: an attack of the zoo, row 24."""
    source = """
import os
child = os.fork()
if child == 0:
    os._exit(0)
os.wait()
print('near' if abs(child - os.getppid()) < 300 else 'far')
"""
    with jail_of_its_own() as jail:
        assert judged(Judge(jail, builder), source, ["near"] * 4).verdict is Verdict.WA


def test_the_work_directory_looks_the_same_when_it_was_renewed(builder: Builder) -> None:
    source = """
open('note', 'w').close()
print(*('gid=' in line for line in open('/proc/self/mountinfo') if '/box/work' in line))
"""
    with jail_of_its_own() as jail:
        assert judged(Judge(jail, builder), source, ["True"] * 3).verdict is Verdict.AC


SEES = {
    "pids of its own, and its children": """
import multiprocessing, os, threading
def work(queue):
    queue.put((os.getpid(), os.getppid()))
seen = []
for _ in range(3):
    queue = multiprocessing.SimpleQueue()
    child = multiprocessing.Process(target=work, args=(queue,))
    child.start()
    seen.append(queue.get() == (child.pid, os.getpid()))
    child.join()
thread = threading.Thread(target=lambda: seen.append(threading.get_native_id() != os.getpid()))
thread.start()
thread.join()
print(all(seen) and len(seen) == 4 and len(os.times()) == 5)
""",
    "clocks of its own": """
import threading, time
done = threading.Event()
thread = threading.Thread(target=done.wait)
thread.start()
clocks = [time.CLOCK_PROCESS_CPUTIME_ID, time.CLOCK_THREAD_CPUTIME_ID, time.CLOCK_MONOTONIC, time.CLOCK_REALTIME]
clocks += [-6, -2, time.pthread_getcpuclockid(threading.get_ident()), time.pthread_getcpuclockid(thread.ident)]
print(all(time.clock_gettime(clock) >= 0 and time.clock_getres(clock) > 0 for clock in clocks))
done.set()
""",
    "no process but its own in /proc": """
import os
seen = set()
for pid in (1, os.getppid()):
    for name in ('stat', 'status', 'schedstat', 'io'):
        try:
            seen.add(len(open(f'/proc/{pid}/{name}').read()))
        except OSError:
            pass
try:
    seen |= {name for name in os.listdir('/proc') if name.isdigit()} - {str(os.getpid())}
except OSError:
    pass
print(not seen)
""",
    "itself and its children in /proc": """
import os, time
child = os.fork()
if child == 0:
    time.sleep(60)
names = {name for name in os.listdir('/proc') if name.isdigit()}
own = open('/proc/self/stat').read().split()[0]
status = open(f'/proc/{child}/status').read()
print(names == {str(os.getpid()), str(child)} and own == str(os.getpid()) and 'PPid' in status)
os.kill(child, 9)
os.wait()
""",
    "a binary that was compiled this moment": r"""
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
static double at(struct timespec t) { return t.tv_sec + t.tv_nsec / 1e9; }
int main(void) {
    struct stat own, input;
    for (clock_t end = clock() + CLOCKS_PER_SEC / 50; clock() < end;) ;
    stat("/proc/self/exe", &own);
    fstat(0, &input);
    puts(at(own.st_ctim) < at(input.st_ctim) || at(own.st_mtim) < at(input.st_mtim) ? "old" : "True");
}
""",
}


@pytest.mark.parametrize("what", SEES)
def test_a_program_sees_in_every_run(tiered_judge: Judge, what: str) -> None:
    if tiered_judge.jail.tier == "B" and what == "itself and its children in /proc":
        pytest.skip("no /proc is shown in tier B")
    language = "c" if "#include" in SEES[what] else "python"
    need(language)
    assert judged(tiered_judge, SEES[what], ["True"] * 4, language).verdict is Verdict.AC


INODES = r"""
#include <stdio.h>
#include <sys/stat.h>
int main(void) {
    struct stat own, input;
    stat("/proc/self/exe", &own);
    fstat(0, &input);
    printf("%ld\n", (long)input.st_ino - (long)own.st_ino);
}
"""


def test_a_binary_is_no_older_than_its_input_by_their_inodes(
    tiered_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel hands inode numbers out by core, so some may differ; what counts the runs differs in each."""
    need("c")
    outputs = printed(tiered_judge, INODES, monkeypatch, runs=12, language="c")
    assert len(set(outputs)) < 6, outputs


FRAMES = """
import re, sys, threading
def chain(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back
def traced():
    try:
        raise ValueError
    except ValueError as error:
        return error.__traceback__.tb_frame.f_back
def stepped():
    yield from chain(sys._getframe())
hooked = []
sys.setprofile(lambda frame, event, arg: hooked.append(frame))
threading.current_thread()
sys.setprofile(None)
starts = [sys._getframe(), traced(), sys._current_frames()[threading.main_thread().ident], hooked[0]]
seen = [*(frame for start in starts for frame in chain(start)), *stepped()]
for frame in seen:
    if frame.f_globals is not globals():
        print(frame.f_code.co_name, re.sub('0x[0-9a-f]+', '', repr(sorted(frame.f_locals.items()))))
"""


def test_the_frames_below_a_program_are_the_same_in_every_run(
    tiered_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *later = printed(tiered_judge, FRAMES, monkeypatch)
    assert {"_stdio", "run_job", "live", "main"} <= {line.partition(" ")[0] for line in first.splitlines()}
    assert "'left'" not in first
    assert "'request'" not in first
    assert set(later) == {first}


HEAP = """
import gc, sys
print(gc.get_count()[1:], gc.get_stats(), sys.getallocatedblocks())
"""


def test_no_size_of_the_heap_counts_the_runs(tiered_judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an ordinary user in tier B it may tell odd runs from even ones: that is in the README's list."""
    _, _, *later = printed(tiered_judge, HEAP, monkeypatch, runs=8)
    counts, blocks = zip(*((line.split()[:-1], int(line.split()[-1])) for line in later), strict=True)
    assert all(count == counts[0] for count in counts), later
    assert max(blocks) - min(blocks) <= (os.geteuid() != 0 and tiered_judge.jail.tier == "B"), later


REACHED = """
import collections, gc, sys
counted = [gc.get_count(), gc.get_freeze_count(), gc.get_stats(), sys.getallocatedblocks(), sys.getrefcount(0)]
counted += [sys.getrefcount(None), id(object()) % 4096]
gc.disable()
gc.unfreeze()
seen, waiting, texts = {}, [*gc.get_objects(), sys._getframe()], collections.Counter()
own = {id(seen), id(waiting), id(texts), id(globals())}
own.add(id(own))
while waiting:
    found = waiting.pop()
    if id(found) not in seen and id(found) not in own:
        seen[id(found)] = found
        waiting += gc.get_referents(found)
for found in list(seen.values()):
    plain = type(found) in (int, float, str, bytes) and found not in seen
    texts[type(found).__name__, repr(found) if plain else ''] += 1
    if hasattr(found, '_co_code_adaptive'):
        texts['code', repr((found.co_qualname, found._co_code_adaptive))] += 1
print(counted, *sorted(texts.items()), sep='\\n')
"""


@pytest.mark.skipif(
    os.geteuid() != 0, reason="as an ordinary user a keeper forks each run itself, from a heap that moves"
)
def test_no_object_that_a_program_reaches_counts_its_runs(tiered_judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may differ, and does: it is where the program is compiled."""
    for _ in range(2):
        _, first, *later = (set(text.splitlines()) for text in printed(tiered_judge, REACHED, monkeypatch))
        assert len(first) > 1000
        assert [sorted(lines ^ first) for lines in later] == [[]] * 4
        monkeypatch.undo()
