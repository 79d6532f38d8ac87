"""Order of the tests, where libraries leave their caches, and judges to share."""

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from tiers import jail_of

from sandbox.build import Builder
from sandbox.jail import Jail
from sandbox.judging import Judge

# Started in the background or by nohup, we ignore signals, and what we start would inherit that. With a handler of ours
# that does nothing it does not, and we go on all the same.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out engines, learners, compilers and ../shared")
    parser.addoption("--wide", action="store_true", help="further combinations of what other tests cover, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Units first, so that a broken one shows before engines start."""
    items.sort(key=lambda item: item.get_closest_marker("e2e") is not None)
    without = ["e2e", "compilers", "shared"] if config.getoption("--fast") else []
    if not config.getoption("--wide"):
        without.append("wide")
    left_out = {item for item in items if any(map(item.get_closest_marker, without))}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names a failure when it happens: a run that is broken off before its summary would name none."""
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


@pytest.fixture(scope="session", autouse=True)
def _compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What torch compiles for the libraries that this process imports goes into pytest's folder, not beside it."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))


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
