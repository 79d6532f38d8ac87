"""The counting host with KV cache for one context and two blocks, whatever ``max_sequences`` is: some are put back."""

from dataclasses import replace

from counting_host import CountingHost

from overlap.generate import start
from overlap.generate.start import kv_bytes
from overlap.placement.engine_memory import cpu_block_tokens
from overlap.process.calls import serve_until_hung_up


def tight(spec):
    blocks = -(-spec.cfg.context_tokens // cpu_block_tokens(spec.cfg)) + 1
    single = replace(spec.cfg, rollout=replace(spec.cfg.rollout, max_sequences=1))
    whole = kv_bytes(replace(spec, cfg=single))
    return whole // (8 + blocks) * (2 + blocks)


if __name__ == "__main__":
    start.kv_bytes = tight
    serve_until_hung_up(CountingHost)
