"""The reasons of a run's end, which several packages read by their first words."""

from __future__ import annotations

from overlap.run.restarts import INTERRUPTED
from overlap.run.session import ENDS
from overlap.trackers.services import IN_ORDER


def test_trackers_take_each_end_in_order_for_one_and_no_other() -> None:
    assert all(reason.startswith(IN_ORDER) for reason in (*ENDS, "stopped"))
    assert not any(reason.startswith(IN_ORDER) for reason in (INTERRUPTED, "error: x", "the run did not begin"))
