"""Parts of a sequence: each token is read by one rank, each counted token predicted by one, and all know all."""

from __future__ import annotations

from array import array

import pytest
import torch
from responses import response

from overlap.learner.attention import packed_attention
from overlap.learner.micro_batch import MicroBatch, PromptGroup
from overlap.learner.tensors import SequenceGroup, join, part, to_tensors


def row(prompt, *lengths):
    return PromptGroup(array("i", range(1, prompt + 1)), tuple(response(range(1, n + 1)) for n in lengths))


ROWS = {"shared": (row(4, 3, 5), row(2, 6)), "lone": (row(5, 7),), "several": (row(3, 2), row(2, 9), row(1, 1))}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_parts_together_are_the_whole(rows, size):
    whole = to_tensors(MicroBatch(ROWS[rows]), parts=size)
    length = whole.ids.shape[1]
    parts = [part(whole, SequenceGroup(None, rank, size)) for rank in range(size)]
    assert len({local.ids.shape for local, _ in parts}) == 1
    assert torch.equal(torch.cat([local.ids for local, _ in parts], 1)[:, :length], whole.ids)
    assert torch.equal(torch.cat([local.positions for local, _ in parts], 1)[:, :length], whole.positions)
    assert sorted(torch.cat([places for _, places in parts]).tolist()) == list(range(len(whole.targets)))
    for local, places in parts:
        assert torch.equal(local.targets, whole.targets[places])
        assert torch.equal(local.ids[0, local.at], whole.ids[0, whole.at[places]])


@pytest.mark.parametrize("masked", [True, False])
def test_what_fills_a_sequence_up_changes_no_token_of_it(monkeypatch, masked):
    monkeypatch.setattr("overlap.learner.tensors.fits_mask", lambda *_: masked)
    plainly, filled = (to_tensors(MicroBatch(ROWS["shared"]), parts=parts) for parts in (1, 7))
    count, more = plainly.ids.shape[1], filled.ids.shape[1]
    assert more % 7 == 0
    assert more > count
    query, key, value = (torch.randn(1, 2, more, 8) for _ in range(3))
    expected, _ = packed_attention(
        None, query[:, :, :count], key[:, :, :count], value[:, :, :count], None, layout=plainly.layout
    )
    got, _ = packed_attention(None, query, key, value, None, layout=filled.layout)
    assert torch.allclose(got[:, :count], expected, atol=1e-6)
    assert got.isfinite().all()


def test_each_rank_sends_back_the_gradient_of_its_own_tokens(monkeypatch):
    monkeypatch.setattr("torch.distributed.all_reduce", lambda joined, group: joined.add_(torch.tensor([9.0, 0, 8.0])))
    own = torch.tensor([2.0], requires_grad=True)
    joined = join(own, torch.tensor([1]), 3, SequenceGroup(None, 0, 2))
    assert joined.tolist() == [9.0, 2.0, 8.0]
    (joined * torch.tensor([5.0, 6.0, 7.0])).sum().backward()
    assert own.grad.tolist() == [6.0]
