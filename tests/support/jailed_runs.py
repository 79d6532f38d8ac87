"""Runs for a jail itself: of shell scripts, and of Python programs as the harness is given them."""

from __future__ import annotations

import marshal
from typing import Any

from sandbox.core.nouns import Limits
from sandbox.jail.run import JailedRun

LIMITS = Limits(cpu_s=5, wall_s=30)


def shell(script: str, limits: Limits = LIMITS, **how: Any) -> JailedRun:
    return JailedRun(limits, argv=("/bin/sh", "-c", script), **how)


def python(source: str, limits: Limits = LIMITS, **how: Any) -> JailedRun:
    job = marshal.dumps({"kind": "stdio", "source": source, "preamble": ""}) + bytes(32)
    return JailedRun(limits, job=job, **how)
