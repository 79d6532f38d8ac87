"""No test outlasts its limit, however it waits: a thread in C prints the stacks of all threads, and exits with 1.

A signal, by which pytest-timeout ends a test, does not reach one that waits in C, or in sigwait. Between tests, and in
the process that spreads them, the deadline is that of the whole run.
"""

from __future__ import annotations

import faulthandler
import os

import pytest

MARGIN_S = 60.0
"""After the limit of pytest-timeout, which tells more."""
WHOLE_S = 4 * 3600.0


class Deadline:
    """A pytest plugin. Made while nothing is captured: it keeps the real stderr."""

    def __init__(self) -> None:
        self._stderr = os.dup(2)
        self._set(WHOLE_S)

    def _set(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, file=self._stderr, exit=True)

    def _begin(self, item: pytest.Item) -> None:
        mark = item.get_closest_marker("timeout")
        self._set(float(mark.args[0] if mark else item.config.getini("timeout")) + MARGIN_S)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._begin(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._begin(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._begin(item)  # again, because pytest drops it where a test fails

    def pytest_runtest_logfinish(self) -> None:
        self._set(WHOLE_S)
