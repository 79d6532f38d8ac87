"""How far a node's clock is ahead, by calls whose two ways take as long as they like."""

from __future__ import annotations

import random

import pytest

from overlap.cluster.figures import DRIFT, Offset


@pytest.mark.parametrize("seed", range(20))
def test_the_offset_is_never_further_off_than_it_says_whatever_the_calls_take_and_however_the_clocks_drift(
    seed: int,
) -> None:
    rng = random.Random(seed)
    ahead, rate = rng.uniform(-1e6, 1e6), rng.uniform(-DRIFT, DRIFT)
    offset, at = Offset(), 0.0

    def there(here: float) -> float:
        return here * (1 + rate) + ahead

    for _ in range(200):
        sent = at + rng.uniform(0.0, 20.0)
        asked = sent + rng.expovariate(100.0)
        said = asked + rng.uniform(0.0, 2.0)
        at = said + rng.expovariate(10.0)
        offset.note(sent, there(asked), there(said), at)
        assert abs(offset.ahead_s - (there(at) - at)) <= offset.error_s(at) + 1e-9


def test_a_worse_call_changes_nothing_until_the_better_one_has_become_old() -> None:
    offset = Offset()
    offset.note(0.0, 100.0, 100.0, 0.001)
    offset.note(1.0, 101.5, 101.5, 2.0)
    assert offset.ahead_s == pytest.approx(99.9995)
    late = 2.0 / DRIFT
    offset.note(late, late + 101.5, late + 101.5, late + 2.0)
    assert offset.ahead_s == pytest.approx(100.5)
    assert offset.error_s(late + 2.0) == pytest.approx(1.0 + 2.0 * DRIFT)


def test_nothing_is_known_before_the_first_call() -> None:
    assert Offset().error_s(5.0) == float("inf")
