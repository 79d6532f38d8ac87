"""The parity check: what it lets pass and what it stops."""

from __future__ import annotations

import math

import pytest

from overlap.config.load import load_config
from overlap.core.errors import ParityError
from overlap.pipeline.parity import check_parity

SURE, UNSURE = -0.01, -3.0


def check(engine: list[float], learner: list[float], *, exact: bool, bound: float = 0.05) -> float:
    return check_parity(engine, learner, bound=bound, version=7, exact=exact)


@pytest.mark.promise("parity")
def test_in_float32_every_token_counts() -> None:
    assert check([SURE, UNSURE], [SURE, UNSURE + 5e-5], exact=True, bound=1e-4) == pytest.approx(5e-5)
    with pytest.raises(ParityError, match="version 7"):
        check([SURE, UNSURE], [SURE, UNSURE + 2e-4], exact=True, bound=1e-4)


def test_in_bfloat16_improbable_tokens_and_one_confident_token_of_a_short_response_may_move() -> None:
    engine = [SURE] * 9 + [UNSURE]
    assert check(engine, [SURE] * 9 + [UNSURE + 0.4], exact=False) == 0.0
    assert check(engine, [SURE - 0.08] + [SURE] * 8 + [UNSURE], exact=False) == pytest.approx(0.08)
    with pytest.raises(ParityError, match=r"0\.08 nats over all but one of 9"):
        check(engine, [SURE - 0.08] * 2 + [SURE] * 7 + [UNSURE], exact=False)
    with pytest.raises(ParityError, match=r"differ by up to 0\.08"):
        check([SURE, UNSURE], [SURE - 0.08, UNSURE], exact=False)


def test_in_bfloat16_a_hundredth_of_a_long_response_may_and_the_largest_difference_is_told() -> None:
    engine = [SURE] * 2000
    learner = [SURE - 0.3] * 20 + [SURE] * 1980
    assert check(engine, learner, exact=False) == pytest.approx(0.3)
    with pytest.raises(ParityError, match=r"0\.3 nats over 99% of 2000 probe tokens"):
        check(engine, [SURE - 0.3, *learner[:-1]], exact=False)


@pytest.mark.promise("parity")
def test_in_bfloat16_stale_weights_show_in_the_mean() -> None:
    told = r"by 0\.16 on average over all 10 \(at most 0\.1 is allowed\)"
    with pytest.raises(ParityError, match=told):
        check([UNSURE] * 10, [UNSURE + 0.16] * 10, exact=False)


def test_the_engines_options_are_named_where_they_may_be_the_reason() -> None:
    options = load_config(None, ["rollout.engine.kv_cache_dtype=fp8"]).rollout.engine_options
    with pytest.raises(ParityError, match=r"with rollout\.engine \(kv_cache_dtype=fp8\).*leave out the option"):
        check_parity([SURE], [SURE - 1], bound=0.05, version=7, exact=True, options=options)
    with pytest.raises(ParityError, match=r": the engine does not serve the learner's weights$"):
        check([SURE], [SURE - 1], exact=True)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_never_passes(exact: bool, bad: float) -> None:
    with pytest.raises(ParityError):
        check([SURE, bad], [SURE, SURE], exact=exact)


@pytest.mark.parametrize("engine", [[], [SURE]])
def test_different_tokens_or_none_are_refused(engine: list[float]) -> None:
    with pytest.raises(ParityError, match=f"engine gave {len(engine)} log-probs for the probe"):
        check(engine, engine * 2, exact=True)
