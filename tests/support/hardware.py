"""Nodes of so many cores or GPUs, and configurations that ask for a part of them."""

from __future__ import annotations

from typing import Any

from overlap.config.fields import Config, RunConfig
from overlap.config.learn import LearnConfig
from overlap.config.rollout import RolloutConfig
from overlap.placement.devices import Devices, NodeDevices

GIB = 2**30


def cpus(*cores: int, host: int = 0) -> list[NodeDevices]:
    """Nodes with so many cores; the first is the driver's."""
    return _nodes([Devices(cores=tuple(range(count))) for count in cores], host)


def gpus(*counts: int, size: int = 0) -> list[NodeDevices]:
    """Nodes with so many GPUs of ``size`` bytes; the first is the driver's."""
    return _nodes([Devices.gpus(count, size) if count else Devices() for count in counts])


def _nodes(devices: list[Devices], host: int = 0) -> list[NodeDevices]:
    return [NodeDevices(f"n{i}", f"10.0.0.{i}", each, host, here=i == 0) for i, each in enumerate(devices)]


def config(parallel: int = 1, replicas: int = 1, ranks: int = 1, **rollout: Any) -> Config:
    """A run with seed 7."""
    return Config(
        rollout=RolloutConfig(tensor_parallel=parallel, replicas=replicas, **rollout),
        learn=LearnConfig(ranks=ranks),
        run=RunConfig(seed=7),
    )
