"""``overlap doctor``: whether a training run can start on this machine, what is lacking, and what mends it.

The checks go on side by side, each with a deadline. What a run needs beyond them only its own plan knows:
``overlap train --dry-run``.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict

from overlap.commands.machine_checks import CHECKS, Diagnosis, MachineCheck
from overlap.commands.machine_facts import MachineFacts
from overlap.config.fields import Config
from overlap.config.load import load_config
from overlap.errors import one_line

_MARKS = {"ok": "OK", "note": "NOTE", "lacking": "LACKS"}


def doctor_command(args: argparse.Namespace) -> Generator[str, None, int]:
    """Yield what was found; returns 1 where a run would fail, 0 where all is fine or there are notes alone."""
    cfg = load_config(args.config, args.overrides)
    with closing(MachineFacts()) as facts:
        found = examine_machine(cfg, facts)
    lacking = any(each.state == "lacking" for each in found)
    if args.json:
        yield json.dumps({"ok": not lacking, "checks": [asdict(each) for each in found]}, ensure_ascii=False)
    else:
        yield from diagnosis_lines(found)
    return 1 if lacking else 0


def examine_machine(cfg: Config, facts: MachineFacts, checks: Mapping[str, MachineCheck] = CHECKS) -> list[Diagnosis]:
    """Run all checks side by side; returns what they found, in their order. One that raises or is not done by its
    deadline lacks what it looked for.
    """
    began, results = time.monotonic(), dict[str, list[Diagnosis]]()

    def look(name: str, check: MachineCheck) -> None:
        try:
            results[name] = list(check.look(cfg, facts))
        except Exception as error:  # a check that breaks says so, and takes no other one with it
            told = f"the check failed: {one_line(f'{type(error).__name__}: {error}', 200)}"
            results[name] = [Diagnosis(name, "lacking", told, "see the message")]

    threads = {
        name: threading.Thread(target=look, args=(name, check), name=f"doctor {name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    found = []
    for name, thread in threads.items():
        limit = checks[name].deadline_s
        thread.join(max(0.0, began + limit - time.monotonic()))
        late = [Diagnosis(name, "lacking", f"no answer within {limit:g} s", "see whether a disk or a driver hangs")]
        found += results.get(name, late)
    return found


def diagnosis_lines(found: Sequence[Diagnosis]) -> Iterator[str]:
    """Lines for a person: state, name and detail, and the repair below what is not fine."""
    width = max(len(each.name) for each in found)
    for each in found:
        yield f"{_MARKS[each.state]:<5}  {each.name:<{width}}  {each.detail}"
        if each.repair:
            yield f"{'':<5}  {'':<{width}}  -> {each.repair}"
    lacking, notes = (sum(each.state == state for each in found) for state in ("lacking", "note"))
    if lacking:
        yield f"a run would fail: {lacking} lacking, see the lines with LACKS"
    else:
        yield "a run can start" + (f"; {notes} note{'s' * (notes != 1)}" if notes else "")
