"""The engine's host, which also answers ``unfinished``: how many requests are in the engine; and ``sampled``: how many
tokens each of them has.
"""

from typing import Any

from overlap.generate.host import EngineHost
from overlap.process.calls import RemoteCall, serve_until_hung_up


class CountingHost(EngineHost):
    """Looks into vLLM, as no door does."""

    async def do(self, call: RemoteCall) -> Any:
        if call.name == "unfinished":
            return self._engine._llm.get_num_unfinished_requests()
        if call.name == "sampled":
            states = self._engine._llm.output_processor.request_states.values()
            return {s.external_req_id: s.detokenizer.num_output_tokens() for s in states}
        return await super().do(call)


if __name__ == "__main__":
    serve_until_hung_up(CountingHost)
