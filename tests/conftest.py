"""Order of the tests, where libraries leave their caches, and judges to share."""

import asyncio
import inspect
import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from changed import files_within, packages_changed_since
from deadline import Deadline
from places import ROOT
from tiers import jail_of
from virtual_clock import run_virtual

from sandbox.build.builder import Builder
from sandbox.jail.jail import Jail
from sandbox.judging.judge import Judge

# Started in the background or by nohup, we ignore signals, and what we start would inherit that. With a handler of ours
# that does nothing it does not, and we go on all the same.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)


DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of each test file, ``{"default": {file: s}, "wide": {file: s}}``, as ``--record`` measured them."""
_spent: dict[str, Counter[str]] = {"default": Counter(), "wide": Counter()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out engines, learners, compilers and ../shared")
    parser.addoption("--wide", action="store_true", help="further combinations of what other tests cover, too")
    parser.addoption(
        "--changed", metavar="REV", help="wide tests alone, of packages changed since then, within --budget"
    )
    parser.addoption("--budget", type=float, default=600.0, metavar="S", help="seconds of all workers for --changed")
    parser.addoption("--record", action="store_true", help="write the seconds of each file into tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    """All workers share what torch compiles for the libraries that they import; it is removed at the end. Each process
    has a deadline.
    """
    config.pluginmanager.register(Deadline())
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, so that the last worker does not begin one when the others have ended."""
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    config.option.wide = config.getoption("--wide") or config.getoption("--changed")
    kinds = ("default", "wide") if config.option.wide else ("default",)
    seconds = sum((Counter(known.get(kind, {})) for kind in kinds), Counter())
    items.sort(key=lambda item: -seconds[_file_of(item.nodeid)])
    without = ["e2e", "compilers", "shared"] if config.getoption("--fast") else []
    if not config.getoption("--wide"):
        without.append("wide")
    left_out = {item for item in items if any(map(item.get_closest_marker, without))}
    if revision := config.getoption("--changed"):
        wide = [item for item in items if item.get_closest_marker("wide")]
        files = sorted({item.path for item in wide})
        changed = packages_changed_since(revision, ROOT)
        chosen = files_within(config.getoption("--budget"), files, changed, known.get("wide", {}), revision, ROOT)
        left_out = {item for item in items if item not in wide or _file_of(item.nodeid) not in chosen}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--record") and "PYTEST_XDIST_WORKER" not in os.environ:
        known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
        found = {
            kind: {
                file: s
                for file, s in (
                    known.get(kind, {}) | {file: round(s, 1) for file, s in spent.items() if s >= 1}
                ).items()
                if (ROOT / file).exists()
            }
            for kind, spent in _spent.items()
        }
        DURATIONS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, on a virtual clock where it has the mark ``virtual``.

    On a real one those of its fixtures that a coroutine closes are closed in the same loop.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def closing() -> None:
        async with AsyncExitStack() as stack:
            for fixture in given.values():
                if inspect.iscoroutinefunction(getattr(fixture, "close", None)):
                    stack.push_async_callback(fixture.close)
            await pyfuncitem.obj(**given)

    if pyfuncitem.get_closest_marker("virtual"):
        run_virtual(pyfuncitem.obj(**given))
    else:
        asyncio.run(closing())
    return True


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a failure when it happens: a run that is broken off before its summary would name none."""
    _spent["wide" if "wide" in report.keywords else "default"][_file_of(report.nodeid)] += report.duration
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid} failed ({report.when}, {report.duration:.0f} s)\n{report.longreprtext}", flush=True)


@pytest.fixture(scope="session", autouse=True)
def _no_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --fast, a test is skipped where it would compile; those that do so in other processes have the mark."""
    if not request.config.getoption("--fast"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "build", lambda *args, **options: pytest.skip("it compiles, and --fast was asked for"))
        yield


@pytest.fixture(scope="session")
def builder() -> Iterator[Builder]:
    """One for all, so that headers and the programs of several tests are compiled once."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)  # as root, tier B's programs are another user's
        yield Builder(os.path.join(place, "build"))


@pytest.fixture(scope="module")
def judge(builder: Builder) -> Iterator[Judge]:
    """In the best tier of this machine; runs every case."""
    with Jail(shared=builder.shared) as jail:
        yield Judge(jail, builder, stop_at_first_failure=False)


tiered_jail = jail_of("A", "B")


@pytest.fixture(scope="module")
def tiered_judge(tiered_jail: Jail, builder: Builder) -> Judge:
    """Stops after a case that failed."""
    return Judge(tiered_jail, builder)
