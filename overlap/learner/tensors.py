"""A micro-batch as tensors: the sequences that the policy reads, and its T counted response tokens.

Under sequence parallelism the ranks of a group hold a part each of the tokens of one micro-batch. Around each layer's
attention the backend (``share_sequences``) exchanges parts of the sequence for parts of the heads, so that attention
sees all of the sequence and its layout. Everything else is done token by token. The log-probs of the parts are joined
in the end: each rank computes the loss of all tokens, and sends back the gradient of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from overlap.learner.attention import Layout
from overlap.learner.correction import Sampled
from overlap.learner.micro_batch import MicroBatch, PromptGroup, Response, fits_mask
from overlap.learner.spans import RowSpan, Spans, make_spans


@dataclass(frozen=True, slots=True)
class MicroTensors:
    """``ids`` and ``positions`` are [1, N] if packed (then there is a ``layout``), else [B, L] and plain causal.

    ``at`` [T] says where in the flat hidden states each counted token is predicted, ``targets`` [T] which one it is.
    ``behind`` [R] is the place behind the last counted token of each response that bootstraps, -1 for the others.
    """

    ids: Tensor
    positions: Tensor
    layout: Layout | Spans | None
    at: Tensor
    targets: Tensor
    behind: Tensor
    sampled: Sampled

    def within(self, vocabulary: int) -> MicroTensors:
        """The same for a model with fewer tokens: a smaller one may lack the padding behind the tokens, which a larger
        one of the family has. Such a token is taken for the last one that it has.
        """
        most = vocabulary - 1
        return replace(self, ids=self.ids.clamp(max=most), targets=self.targets.clamp(max=most))


def to_tensors(micro: MicroBatch, device: torch.device | str = "cpu", parts: int = 1) -> MicroTensors:
    """Padding is marked by length, never by an id: padding and the end of a response may have the same id.

    With several ``parts`` all rows are one sequence, filled up to a multiple of them behind its end.
    """
    if micro.packed or (parts > 1 and len(micro.rows) > 1):
        *starts, end = accumulate((row.length for row in micro.rows), initial=0)
        filler = -end % parts
        ids = torch.cat([*[_ids(row) for row in micro.rows], torch.zeros(filler, dtype=torch.long)])[None]
        positions = torch.cat([*[_positions(row) for row in micro.rows], torch.arange(filler)])[None]
        layout = _layout(micro.rows, starts, filler, device)
    else:
        length = max(row.length for row in micro.rows)
        starts = [number * length for number in range(len(micro.rows))]
        ids = pad_sequence([_ids(row) for row in micro.rows], batch_first=True)
        positions, layout = torch.arange(length).expand(len(micro.rows), -1), None
    responses = [response for row in micro.rows for response in row.responses]
    at = [places for row, start in zip(micro.rows, starts, strict=True) for places in _predictors(row, start)]
    behind = [places[-1] if r.bootstraps else torch.tensor(-1) for r, places in zip(responses, at, strict=True)]
    return MicroTensors(
        ids=ids.to(device),
        positions=positions.to(device),
        layout=layout,
        at=torch.cat([places[counted_places(r)] for r, places in zip(responses, at, strict=True)]).to(device),
        targets=torch.cat([_tensor(r.tokens)[counted_places(r)].long() for r in responses]).to(device),
        behind=torch.stack(behind).to(device),
        sampled=_sampled(responses, device),
    )


def _sampled(responses: Sequence[Response], device: torch.device | str) -> Sampled:
    """Responses are never split, so what is summed over one is found in its micro-batch."""
    lengths = torch.tensor([r.counted for r in responses])
    advantages = torch.tensor([r.advantage for r in responses], dtype=torch.float32)
    return Sampled(
        engine=torch.cat([_tensor(r.logprobs)[counted_places(r)] for r in responses]).to(device),
        advantages=advantages.repeat_interleave(lengths).to(device),
        owners=torch.arange(len(responses)).repeat_interleave(lengths).to(device),
        landed=torch.cat([_landed(r) for r in responses]).to(device),
        responses=len(responses),
    )


def counted_places(response: Response) -> slice | Tensor:
    """Which of its tokens are in the loss."""
    if not response.mask:
        return slice(response.counted)
    return torch.frombuffer(bytearray(response.mask), dtype=torch.uint8).nonzero()[: response.counted, 0]


def _landed(response: Response) -> Tensor:
    places = torch.arange(len(response.tokens))[counted_places(response)]
    return (places >= response.fresh) & (response.fresh > 0)


def _tensor(numbers: array[Any]) -> Tensor:
    """The memory of an int32 or float32 array (not empty) as a tensor."""
    return torch.frombuffer(numbers, dtype=torch.float32 if numbers.typecode == "f" else torch.int32)


def _ids(row: PromptGroup) -> Tensor:
    return torch.cat([_tensor(row.prompt), *[_tensor(r.tokens)[:-1] for r in row.responses]]).long()


def _positions(row: PromptGroup) -> Tensor:
    prompt = len(row.prompt)
    return torch.cat([torch.arange(prompt), *[torch.arange(prompt, prompt + len(r.tokens) - 1) for r in row.responses]])


def _predictors(row: PromptGroup, start: int) -> list[Tensor]:
    """Places that predict the tokens of each response: a first token is predicted by the prompt's last one."""
    places: list[Tensor] = []
    prompt = response = start + len(row.prompt)
    for r in row.responses:
        read = len(r.tokens) - 1
        places.append(torch.cat((torch.tensor([prompt - 1]), torch.arange(response, response + read))))
        response += read
    return places


def _layout(
    rows: Sequence[PromptGroup], starts: Sequence[int], filler: int, device: torch.device | str
) -> Layout | Spans:
    """Under one mask what is small, on a CPU; a GPU has a kernel that takes all rows at once as they are. The filler is
    a prompt without responses.
    """
    spans = [_span(row, start) for row, start in zip(rows, starts, strict=True)]
    if filler:
        end = spans[-1].shared.stop
        spans.append(RowSpan(range(end, end + filler)))
    lengths = [len(own) for span in spans for own in span.responses]
    if torch.device(device).type == "cpu" and fits_mask([len(span.prompt) for span in spans], lengths):
        return _masked(spans, device)
    return make_spans([span.joined() for span in spans], device)


def _span(row: PromptGroup, start: int) -> RowSpan:
    prompt = range(start, start + len(row.prompt))
    ends = accumulate((len(r.tokens) - 1 for r in row.responses), initial=prompt.stop)
    return RowSpan(prompt, tuple(range(a, b) for a, b in pairwise(ends)))


def _masked(spans: Sequence[RowSpan], device: torch.device | str) -> Layout:
    prompts = [span.prompt for span in spans]
    responses = [own for span in spans for own in span.responses]
    owners = [number for number, span in enumerate(spans) for _ in span.responses]
    longest_p, longest_r = max(map(len, prompts)), max(map(len, responses))
    back = torch.empty(sum(map(len, (*prompts, *responses))), dtype=torch.long)
    for width, base, pieces in ((longest_p, 0, prompts), (longest_r, len(prompts) * longest_p, responses)):
        for number, piece in enumerate(pieces):
            first = base + number * width
            back[piece.start : piece.stop] = torch.arange(first, first + len(piece))
    seen = torch.tensor([len(prompts[owner]) for owner in owners])
    visible = torch.ones(len(responses), 1, longest_r, longest_p + longest_r, dtype=torch.bool)
    visible[..., :longest_p] = torch.arange(longest_p) < seen[:, None, None, None]
    visible[..., longest_p:].tril_()
    tensors = _padded(prompts), _padded(responses), torch.tensor(owners), visible, back
    return Layout(*(tensor.to(device) for tensor in tensors))


def _padded(spans: Iterable[range]) -> Tensor:
    """Places of each span, padded with place 0."""
    return pad_sequence([torch.arange(span.start, span.stop) for span in spans], batch_first=True)


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """``size`` ranks that share each sequence, of which this one is ``rank``; ``group`` is torch's."""

    group: Any
    rank: int
    size: int


def part(micro: MicroTensors, own: SequenceGroup) -> tuple[MicroTensors, Tensor]:
    """Part of the sequence [1, N] of this rank, and the places [t] of its predicted tokens among the counted ones.

    A sequence with a layout has been filled up to a multiple of ``size``; a plain one is here.
    """
    missing = -micro.ids.shape[1] % own.size
    assert not (missing and micro.layout), "a layout has a place for each token"
    ids, positions = pad(micro.ids, (0, missing)), pad(micro.positions, (0, missing))
    each = ids.shape[1] // own.size
    first = own.rank * each
    mine = ((micro.at >= first) & (micro.at < first + each)).nonzero()[:, 0]
    at = slice(first, first + each)
    local = replace(
        micro, ids=ids[:, at], positions=positions[:, at], at=micro.at[mine] - first, targets=micro.targets[mine]
    )
    return local, mine


class _Join(torch.autograd.Function):
    """Values [t, ...] at places [t] of each rank to all of them [T, ...] on every rank."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, count: int, group: Any) -> Tensor:
        ctx.save_for_backward(places)
        joined = values.new_zeros((count, *values.shape[1:]))
        joined[places] = values
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return grads[0][places], None, None, None


def join(values: Tensor, places: Tensor, count: int, own: SequenceGroup) -> Tensor:
    """Join what the ranks have computed for their own tokens, for all ``count``. All must make the same loss of it."""
    joined: Tensor = _Join.apply(values, places, count, own.group)
    return joined
