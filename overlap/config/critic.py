"""The critic of PPO: its fields, in a file of their own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from overlap.config.rules import Section, above, at_least, check_section, require, share


@dataclass(frozen=True, slots=True)
class CriticConfig(Section):
    """What a critic is and how its values become advantages; for ``learn.advantage=gae`` alone."""

    section: ClassVar[str] = "critic"

    policy: str = ""
    """Checkpoint that it starts from, named as ``model.policy`` is and with the same tokenizer; "": the policy's."""
    lr: float = above(0, 1e-5)
    """Its peak learning rate, with the warm-up and the schedule of ``learn``."""
    steps_alone: int = at_least(0, 0)
    """So many steps at the beginning train the critic alone: the policy stays, and their samples are not kept. With
    ``lambda_policy`` at 1 an untrained critic is a constant baseline, which biases nothing, so 0 will do; below 1 its
    errors are a bias, and 10 to 50 are published."""
    clip: float = at_least(0, 0.0)
    """How far a value may move from that before the step before the loss gains nothing more by it; 0: no clip."""
    bounded: bool = True
    """Values are held between 0 and 1 (by atan), where rewards of tests lie; a reward beyond is refused."""
    lambda_value: float = share(1.0, zero=True)
    """GAE's lambda of what the critic is taught; 1: the reward itself (Monte Carlo)."""
    lambda_policy: float = share(1.0, zero=True)
    """GAE's lambda of the advantages that the policy is taught by."""
    alpha: float = at_least(0, 0.0)
    """Above 0, ``lambda_policy`` is 1 - 1 / (alpha l) for a response of l tokens (VAPO: 0.05); 0: as it is given."""
    whiten: bool = False
    """Advantages of the tokens of a step, on all ranks, are centred and divided by their deviation."""

    def __post_init__(self) -> None:
        check_section(self.section, self)
        way_out = (
            f"critic.alpha={self.alpha:g} makes it of each response's length: leave it at 1, or use critic.alpha=0"
        )
        require(not self.alpha or self.lambda_policy == 1, "critic.lambda_policy", self.lambda_policy, way_out)

    def refuse_unused(self) -> None:
        """Raise ConfigError where a field was set: there is no critic."""
        for f in fields(self):
            got = getattr(self, f.name)
            require(got == f.default, f"critic.{f.name}", got, "there is a critic with learn.advantage=gae alone")
