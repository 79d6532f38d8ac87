"""Where the rows of a run go beside ``metrics.jsonl``: TensorBoard, and services such as W&B.

Consumes  rows, samples and the end of a run; produces the same at each tracker
Waits for nobody: what a tracker has not taken waits in a bounded queue, and a tracker that fails costs no step
Woken by  the run, once per row
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlap.trackers.feed import TrackerFeed
    from overlap.trackers.kinds import KINDS, TrackerKind, check_trackers
    from overlap.trackers.metric_names import NAMES, renamed
    from overlap.trackers.run_trackers import Trackers
    from overlap.trackers.tracker import TrackedRun, Tracker, TrackerFault, TrackerRefused
else:
    from sandbox.lazy import names

    __getattr__ = names(__name__)

__all__ = [
    "KINDS",
    "NAMES",
    "TrackedRun",
    "Tracker",
    "TrackerFault",
    "TrackerFeed",
    "TrackerKind",
    "TrackerRefused",
    "Trackers",
    "check_trackers",
    "renamed",
]
