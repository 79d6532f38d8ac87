"""Attention of micro-batches beside plain causal attention: pairs of tokens, and seconds.

One head, eight responses of a prompt: of one length, and of eight lengths up to it. Forward and backward passes take
turns in one process, timed by CPU seconds; the ratio is that of the best rounds, of which long cases have few.
"""

from __future__ import annotations

from _shared import argument_parser
from attention_cost import AttentionCase, attention_seconds

from overlap.placement.devices import bfloat16_is_fast

GROUP = 8
PROMPTS = (512, 4096)
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
ROUNDS, PAIRS = 9, 2_000_000_000  # at most so many rounds, and pairs in all of them unless one round has more


def cases(longest: int, budget: int, dtype: str) -> list[tuple[str, AttentionCase]]:
    """By name: each prompt with each length, all responses alike or spread."""
    found = []
    for prompt in PROMPTS:
        for length in (n for n in LENGTHS if n <= longest):
            spread = tuple(length * n // GROUP for n in range(1, GROUP + 1))
            for kind, lengths in (("alike", (length,) * GROUP), ("spread", spread)):
                name = f"{prompt:>6} {length:>8} {kind:<6}"
                found.append((name, AttentionCase(prompt, lengths, max(budget, prompt + length), dtype=dtype)))
    return found


def time_ratio(case: AttentionCase) -> float:
    """Seconds of our own over plain ones, the least of each."""
    rounds = max(1, min(ROUNDS, PAIRS // case.plain_pairs))
    found = [attention_seconds(case) for _ in range(rounds)]
    return min(own for _, own in found) / min(plain for plain, _ in found)


def main() -> None:
    """Print the table; seconds are of this machine."""
    parser = argument_parser(__doc__)
    parser.add_argument("--pairs", action="store_true", help="count, do not time")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="longest response, tokens")
    parser.add_argument("--budget", type=int, default=36864, help="learn.micro_batch_tokens")
    own = "bfloat16" if bfloat16_is_fast() else "float32"
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default=own, help="of queries, keys and values")
    args = parser.parse_args()
    print("prompt response kind    pairs / plain   seconds / plain", flush=True)
    pairs, seconds = [], []
    for name, case in cases(args.longest, args.budget, args.dtype):
        pairs.append(case.pairs / case.plain_pairs)
        seconds.append(float("nan") if args.pairs else time_ratio(case))
        print(f"{name} {pairs[-1]:>13.3f} {seconds[-1]:>17.3f}", flush=True)
    print(f"worst {max(pairs):>27.3f} {max(seconds):>17.3f}")


if __name__ == "__main__":
    main()
