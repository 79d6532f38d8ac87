"""Figures of a step's episodes of several turns: what they took, and what of it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap.record.metrics import NAN, Row, mean

if TYPE_CHECKING:
    from overlap.pipeline import StepResult


def episode_row(result: StepResult, moved: int) -> Row:
    """``episode/``: turns, branches, tokens sampled and trained, cache hits, and ``moved`` episodes; nothing where
    rollouts have one turn.
    """
    known = [(s.trajectory, s.trajectory.used) for s in result.batch.all_samples]
    episodes = [(trajectory, used) for trajectory, used in known if used is not None]
    if not episodes:
        return {}
    sampled = sum(used.sampled for _, used in episodes)
    prompted = sum(used.prompted for _, used in episodes)
    later = sum(max(0, used.turns - 1) for _, used in episodes)
    forks = sum(len(trajectory.forks) for trajectory, _ in episodes)
    return {
        "episode/turns_mean": mean(used.turns for _, used in episodes),
        "episode/turns_max": max(used.turns for _, used in episodes),
        "episode/branches_mean": mean(len(trajectory.branches) for trajectory, _ in episodes),
        "episode/fork_rate": forks / later if later else 0.0,
        "episode/tokens_sampled": sampled,
        "episode/trained_share": sum(t.sampled for t, _ in episodes) / sampled if sampled else NAN,
        "episode/cached_share": sum(used.cached for _, used in episodes) / prompted if prompted else NAN,
        "episode/replayed": sum(used.replayed for _, used in episodes),
        "episode/moved": moved,
        "episode/unread": sum(used.unread for _, used in episodes),
    }
