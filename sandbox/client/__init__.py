"""A pool on other machines: the methods of `Pool`, over HTTP to servers that `sandbox serve` started.

    judge ──▶ the least busy machine that answers ──▶ Judgement
        └─▶ our fault, or a full queue ──▶ asked again, later or of another machine

Needs aiohttp, the extra ``client``.
"""
