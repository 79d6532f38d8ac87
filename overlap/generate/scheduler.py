"""vLLM's scheduler for ``rollout.in_flight=keep``; vLLM imports it in the engine core (``scheduler_cls``).

A response that is being made keeps its KV cache over a load. What waits in the engine (new, or put back for want of
memory) must not find prefixes there that the old weights computed: a salt, part of the name of each prefix, counts the
loads.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request

from overlap.generate.bind_to_parent import enter_engine_process

enter_engine_process()


class KeepScheduler(AsyncScheduler):
    """Names prefixes by the number of loads before they were computed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loads = 0

    def add_request(self, request: Request) -> None:
        """Salt a request, which may have been sent before a load and have come after it."""
        self._salt(request)
        super().add_request(request)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """New weights are there: nothing that waits finds what the old ones computed. What runs is left as it is."""
        if reset_running_requests:
            return bool(super().reset_prefix_cache(reset_running_requests, reset_connector))
        self._loads += 1
        for request in self.waiting:
            self._salt(request)
        return True

    def _salt(self, request: Request) -> None:
        request.cache_salt = f"{self._loads}"
        request.block_hashes = []
        request.update_block_hashes()
