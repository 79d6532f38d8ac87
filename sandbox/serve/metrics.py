"""The numbers of a server in Prometheus' text format (version 0.0.4). Each is a sum over the server's processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from sandbox.serve.counts import BUCKETS_S
from sandbox.serve.service import Service

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SECONDS: Final = "sandbox_request_seconds"
METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "sandbox_requests_total": ("counter", "Answers, by route and status."),
    _SECONDS: ("histogram", "Seconds from the head of a request to the end of its answer."),
    "sandbox_requests_in_hand": ("gauge", "Requests that are not answered yet."),
    "sandbox_body_bytes_in_hand": ("gauge", "Bytes of their bodies."),
    "sandbox_clients_left_total": ("counter", "Clients that left before their answer; their jobs were cancelled."),
    "sandbox_judgements_total": ("counter", "Judgements given, by verdict."),
    "sandbox_judgements_shared_total": ("counter", "Judgements given that were made for an equal program."),
    "sandbox_runs_total": ("counter", "Runs of programs without a verdict."),
    "sandbox_jobs_queued": ("gauge", "Programs that wait for a worker."),
    "sandbox_jobs_running": ("gauge", "Programs that are being judged."),
    "sandbox_faults_total": ("counter", "Tries that failed by a fault of the sandbox, whether a later one succeeded."),
    "sandbox_recycled_total": ("counter", "Jails and workers replaced because of their age or their memory."),
    "sandbox_run_seconds_total": ("counter", "Seconds spent on judgements."),
    "sandbox_queue_seconds_total": ("counter", "Seconds that judgements waited."),
    "sandbox_workers": ("gauge", "Programs that can be judged at the same time."),
    "sandbox_server_processes": ("gauge", "Processes that serve."),
    "sandbox_server_resident_bytes": ("gauge", "Their resident memory, without the judges'."),
}
"""Kind and meaning by name."""


def numbers(service: Service) -> dict[str, float]:
    """The numbers of this process, by name and labels."""
    stats, counts = service.pool.stats(), service.counts
    found: dict[str, float] = {
        "sandbox_requests_in_hand": service.in_hand,
        "sandbox_body_bytes_in_hand": service.held_bytes,
        "sandbox_clients_left_total": counts.left,
        "sandbox_judgements_shared_total": stats.cache_hits,
        "sandbox_runs_total": stats.runs,
        "sandbox_jobs_queued": stats.queued,
        "sandbox_jobs_running": stats.running,
        "sandbox_faults_total": stats.infrastructure_failures,
        "sandbox_recycled_total": stats.recycled,
        "sandbox_run_seconds_total": stats.busy_s,
        "sandbox_queue_seconds_total": stats.queue_s,
        "sandbox_workers": service.pool.workers,
        "sandbox_server_processes": 1,
        "sandbox_server_resident_bytes": _resident_bytes(),
    }
    found |= {
        f'sandbox_requests_total{{route="{route}",status="{status}"}}': count
        for (route, status), count in counts.answers.items()
    }
    found |= {f'sandbox_judgements_total{{verdict="{name}"}}': count for name, count in stats.verdicts.items()}
    reached = 0
    for most, count in zip((*BUCKETS_S, "+Inf"), counts.buckets, strict=True):
        reached += count
        found[f'{_SECONDS}_bucket{{le="{most}"}}'] = reached
    return found | {f"{_SECONDS}_sum": counts.seconds, f"{_SECONDS}_count": reached}


def metrics_text(service: Service) -> str:
    """What `/metrics` answers."""
    service.shared.write(numbers(service))
    found = service.shared.sum()
    lines = []
    for name, (kind, meaning) in METRICS.items():
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{key} {value:.12g}" for key, value in found.items() if _family(key) == name]
    return "\n".join(lines) + "\n"


def _family(key: str) -> str:
    name = key.partition("{")[0]
    return _SECONDS if name.startswith(_SECONDS) else name


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE
