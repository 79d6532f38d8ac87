"""An event loop whose clock jumps to the next timer when nothing else is to be done: hours pass in no time."""

import asyncio


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time`` begins at 0."""

    def __init__(self):
        super().__init__()
        self._now = 0.0

    def time(self):
        return self._now

    def _run_once(self):
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()


def run(coroutine):
    """As ``asyncio.run``. What has not ended after a day never will."""

    async def bounded():
        async with asyncio.timeout(86_400):
            return await coroutine

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(bounded())
