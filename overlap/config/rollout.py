"""Sampling of the policy: the sections ``rollout`` and ``episode``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from overlap.config.rules import Number, Text, Whole, config_section, named_values, require, resumable

_NO_DRAFT_MODEL = ("ngram", "ngram_gpu", "suffix", "custom_class")


@config_section
class RolloutConfig:
    """Sampling by the engine."""

    groups_per_step: Whole = Field(8, ge=1)
    """P: prompt groups in a step."""
    samples_per_group: Whole = Field(8, ge=1)
    """G: samples per prompt."""
    temperature: Number = Field(1.0, gt=0, le=2)
    """Sampling temperature; log-probs of engine and learner are taken at this temperature."""
    stop: tuple[Text, ...] = ()
    """Strings that end a response (kept in its text)."""
    max_staleness: Whole = Field(0, ge=0)
    """Oldest sample that the learner may see, in policy versions; 0 is on-policy. Where engine and learner share GPUs
    the engine sleeps while that learns, and responses of later steps wait in it (``in_flight``): with 1, the last ones
    of a step do not decode alone."""
    in_flight: Literal["keep", "recompute", "drain"] = "recompute"
    """Effect of new weights on responses in the engine. "recompute": the responses go on under the new weights, which
    read all of their tokens anew; "keep": they go on with what the old ones made of their tokens, which is faster and
    leaves an error (``learn/landing_gap_mean``); "drain": the weights wait for their end, for five minutes at most, and
    new requests for the weights. An engine that shares GPUs with the learner sleeps before, and its KV cache goes: it
    waits for the end likewise with "drain", and "keep" is refused where ``max_staleness`` is above 0."""
    refill_groups: Whole = Field(0, ge=0)
    """Largest number of groups of a step that teach nothing and are replaced by further prompts in it (DAPO's dynamic
    sampling); 0: none."""
    max_sequences: Whole = resumable(0, ge=0)
    """Sequences that an engine decodes at once. 0: on GPUs as many as its KV cache holds when each has a third of its
    full length, but at most 512; on a CPU 64."""
    replicas: Whole = resumable(0, ge=0)
    """Engines, each on ``tensor_parallel`` GPUs of its own, or on a CPU on cores of its own (of a cluster several have
    a node each); 0: as many as the GPUs hold, on a CPU 1. A group's samples stay on one of them."""
    gpu_memory: Number = resumable(0.6, gt=0, le=1)
    """Share of a GPU's memory for the engine, 0 to 1. On a CPU the KV cache is derived from ``max_sequences``."""
    tensor_parallel: Whole = Field(1, ge=1)
    """GPUs per engine."""
    engine: dict[str, Any] = named_values()
    """Options for vLLM's ``AsyncEngineArgs``, a mapping: ``{kv_cache_dtype: fp8}``, or ``rollout.engine.NAME=VALUE``.
    vLLM judges names and values when an engine starts. What would change what is sampled, which weights are served or
    who has which device is refused before that, with what to use. The parity check after each load tells whether
    log-probs are still the learner's."""

    @property
    def sequences(self) -> int:
        """Sequences that all engines decode at once; those of one engine until the GPUs are counted."""
        return self.at_once * max(1, self.replicas)

    @property
    def engine_options(self) -> str:
        """``engine``, for a person."""
        return ", ".join(f"{name}={value}" for name, value in self.engine.items())

    @property
    def has_draft_model(self) -> bool:
        """True when tokens are drafted by other weights than the policy's; the policy accepts or replaces them."""
        speculation = self.engine.get("speculative_config")
        if not isinstance(speculation, dict):
            return False
        return (speculation.get("method") or speculation.get("model")) not in _NO_DRAFT_MODEL  # vLLM takes either

    @property
    def at_once(self) -> int:
        """Sequences that an engine decodes at once, where no GPU's memory decides it."""
        return self.max_sequences or 64


@config_section
class EpisodeConfig:
    """Episodes of several turns, rolled out by the task or by an agent program."""

    command: str = resumable("")
    """An agent program that rolls episodes out over an OpenAI-compatible endpoint, as a shell reads it, in the place of
    the task's own rollout. It runs in a directory of its own: files are named by their whole path. "": the task does
    it."""
    jail: dict[str, Any] | None = resumable(None)
    """Confinement of ``command``. null: it runs as you, who start the run. A mapping, ``{}`` or
    ``episode.jail.NAME=VALUE``: in a jail of its own (tier A of the sandbox) that sees the machine's tools, a working
    directory and the endpoint, and nothing else of machine or network. ``readable``: whole paths that it may read,
    beside what its words name (files, and the interpreter or virtual environment of a Python). Limits: ``cpu_s``
    (default: ``timeout_s``), ``memory_bytes`` (2 GiB), ``processes`` (256), ``open_files`` (1024), and ``work_bytes``
    of its working directory (256 MiB)."""
    turns: Whole = Field(16, ge=1)
    """Answers of the policy in an episode at most, those on other branches too."""
    tokens: Whole = Field(0, ge=0)
    """Number of tokens that may follow the prompt in an episode: responses, and what tools and users say. All responses
    of an episode, on all its branches, have no more either. At least ``model.response_tokens``; 0: as many."""
    timeout_s: Number = resumable(600.0, gt=0)
    """Wall time of an episode at most, s, below ``run.stall_s``. Like the bounds on turns and tokens, it truncates the
    episode."""
    tool_parser: str = ""
    """The engine's parser for tool calls, such as "hermes"; "": answers are text."""
    reasoning_parser: str = ""
    """The engine's parser for reasoning, such as "qwen3"; "": answers are text."""

    @property
    def reads(self) -> bool:
        """True when answers have parsers."""
        return bool(self.tool_parser or self.reasoning_parser)


def check_sharing(backend: str, rollout: RolloutConfig) -> None:
    """Raise ConfigError where responses are to keep a KV cache that goes while the engine sleeps."""
    lost = backend == "ipc" and rollout.max_staleness > 0 and rollout.in_flight == "keep"
    way_out = "the engine sleeps while the learner has its GPUs, and its KV cache goes: use recompute or drain, "
    way_out += "rollout.max_staleness=0, or fewer GPUs for each (rollout.replicas, learn.ranks)"
    require(not lost, "rollout.in_flight", "keep", way_out)
