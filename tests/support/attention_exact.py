"""The learner's attention of packed rows against float32 under a mask: output and gradients, on any device."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from overlap.learner.micro_batch import MicroBatch, PromptGroup, Response
from overlap.learner.tensors import to_tensors


@dataclass(frozen=True)
class PackedShape:
    """Prompts with their responses, in tokens."""

    prompts: tuple[int, ...]
    responses: tuple[tuple[int, ...], ...]

    def micro(self) -> MicroBatch:
        """The rows that a rank packs."""

        def response(length: int) -> Response:
            return Response(array("i", range(length)), array("f", bytes(4 * length)), 1.0)

        rows = zip(self.prompts, self.responses, strict=True)
        return MicroBatch(tuple(PromptGroup(array("i", range(p)), tuple(map(response, many))) for p, many in rows))


def attention_errors(shape: PackedShape, heads: tuple[int, int, int], dtype: str, device: str) -> dict[str, float]:
    """Norm of the difference over the norm, for the output and each gradient; ``heads`` are those of queries and of
    keys, and their width.
    """
    import torch

    from overlap.learner.attention import packed_attention

    tensors, kind = to_tensors(shape.micro(), device), getattr(torch, dtype)
    length = tensors.ids.numel()
    torch.manual_seed(0)
    made = [torch.randn(1, length, n, heads[2], device=device).to(kind) for n in (heads[0], heads[1], heads[1])]
    given = [x.transpose(1, 2).requires_grad_() for x in made]
    exact = [x.detach().float().requires_grad_() for x in given]
    upstream = torch.randn(1, length, heads[0], heads[2], device=device).to(kind)
    got = packed_attention(None, *given, None, layout=tensors.layout)[0]
    wanted = _masked(exact, _sees(shape, length, device))
    pairs = [(got, wanted)]
    pairs += zip(
        torch.autograd.grad(got, given, upstream), torch.autograd.grad(wanted, exact, upstream.float()), strict=True
    )
    errors = [float((a.float() - b).norm() / b.norm()) for a, b in pairs]
    return dict(zip(("output", "d_query", "d_key", "d_value"), errors, strict=True))


def _sees(shape: PackedShape, length: int, device: str) -> Any:
    """[N, N]: a token sees its prompt, and what is not behind it in its own piece. The last token of a response is
    predicted only, so it is no part of the sequence.
    """
    import torch

    sees = torch.zeros(length, length, dtype=torch.bool)
    start = 0
    for prompt, responses in zip(shape.prompts, shape.responses, strict=True):
        first, at = start, start + prompt
        sees[start:at, start:at] = torch.ones(prompt, prompt, dtype=torch.bool).tril()
        for own in (length - 1 for length in responses):
            sees[at : at + own, first : first + prompt] = True
            sees[at : at + own, at : at + own] = torch.ones(own, own, dtype=torch.bool).tril()
            at += own
        start = at
    assert start == length
    return sees.to(device)


def _masked(given: list[Any], sees: Any) -> Any:
    query, key, value = given
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = (query @ key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    return (scores.masked_fill(~sees, float("-inf")).softmax(-1) @ value).transpose(1, 2)
