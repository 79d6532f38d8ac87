"""Verdicts on references, kept by the content of the problem: one that was judged is not judged again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from overlap.core import Probe
from overlap.policy.resolve import policies_dir
from overlap.process.atomic import write_atomic


def kept_verdicts() -> Path:
    """The file of verdicts."""
    return policies_dir().parent / "checked.json"


def known_verdicts(path: Path) -> dict[str, str]:
    """Verdicts by ``digest_of`` what was judged. A cache: a file that is missing or broken holds none."""
    with suppress(OSError, ValueError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def keep_verdicts(path: Path, verdicts: Mapping[str, str]) -> None:
    """Write them, complete or not at all. A cache: what cannot be written is judged again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(verdicts))


def digest_of(probe: Probe, packages: Sequence[str]) -> str:
    """Return a digest of what was judged: tests, limits and all that is put around a program, and the programs."""
    p, text = probe.problem, hashlib.sha256()
    parts = [*map(str, (p.kind, p.fn_name, p.preamble, p.compare, repr(p.limits), repr(p.checker))), *packages]
    parts += [part for case in p.cases for part in (case.input, case.expected or "")]
    parts += [part for program in probe.programs for part in (program.language, program.source)]
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        text.update(len(data).to_bytes(8, "little") + data)
    return text.hexdigest()[:24]
