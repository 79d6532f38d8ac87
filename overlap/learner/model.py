"""The policy as the learner sees it: token ids in, log-probs of the response tokens out."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from overlap.config.fields import Config
from overlap.config.learn import LearnConfig
from overlap.core.errors import ConfigError, one_line
from overlap.learner.attention import NAME, register
from overlap.learner.compiled import compile_parts
from overlap.learner.correction import Sampled
from overlap.learner.head import LogprobHead
from overlap.learner.micro_batch import MicroBatch, PromptGroup, Response
from overlap.learner.tensors import MicroTensors, SequenceGroup, join, part, to_tensors
from overlap.learner.zero.backend import ZeroBackend
from overlap.placement.activations import decoder_shape, recomputes
from overlap.weights.full import whole_shape

_DERIVED = (".inv_freq", ".masked_bias")  # in old checkpoints, and made anew by every model
_PROBE = 64  # tokens of the start-up check
# Mean difference of log-probs, nats. On a 135M model in bfloat16, rounding makes 0.07, wrong positions make 0.3 and a
# leaking mask 0.8; in float32 rounding makes 1e-5.
_AGREES = {torch.bfloat16: 0.15, torch.float32: 1e-3}


class Policy(nn.Module):
    """A Hugging Face causal language model (``policy``) and a head that gives log-probs at the sampling temperature.

    With a ``sequence`` group each of its ranks computes a part of the tokens; all get what all have computed.
    """

    def __init__(self, policy: Any, temperature: float) -> None:
        super().__init__()
        self.policy = policy
        self.head = LogprobHead(policy.get_output_embeddings(), temperature)
        self.sequence: SequenceGroup | None = None

    def forward(self, micro: MicroTensors, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probs [T] of ``micro.targets`` and entropies [T] (zeros unless asked for), float32."""
        if self.sequence is None:
            return self._read(micro, entropy)
        local, places = part(micro, self.sequence)
        found = torch.stack(self._read(local, entropy), -1)
        logprobs, entropies = join(found, places, len(micro.targets), self.sequence).unbind(-1)
        return logprobs, entropies

    def _read(self, micro: MicroTensors, entropy: bool) -> tuple[Tensor, Tensor]:
        logprobs, entropies = self.head(hidden_states(self.policy.base_model, micro, micro.at), micro.targets, entropy)
        return logprobs, entropies


def hidden_states(base: Any, micro: MicroTensors, places: Tensor) -> Tensor:
    """Hidden states [T, h] of a model without its output layer at ``places`` [T] of a micro-batch, flattened."""
    layout = {} if micro.layout is None else {"layout": micro.layout}
    found = base(input_ids=micro.ids, position_ids=micro.positions, use_cache=False, **layout)
    picked: Tensor = found.last_hidden_state.flatten(0, 1).index_select(0, places)
    return picked


def load_policy(
    path: Path, *, dtype: torch.dtype, temperature: float, device: torch.device, backend: ZeroBackend | None = None
) -> Policy:
    """Load a checkpoint for training; dropout is off, as in the engine. Activations are kept (``checkpoint_layers``).
    With a ``backend`` that partitions models it has this rank's part.

    Raises ConfigError for one that transformers cannot load in full (it would go on with random tensors in place of
    missing ones, and without tensors that its layers have no place for), and for a model without an output layer.
    """
    register()
    policy = _load(path, dtype, backend)
    if getattr(policy.get_output_embeddings(), "weight", None) is None:
        raise _unfit(policy, "has no output layer of its own")
    for module in policy.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
    model = Policy(policy.to(device), temperature)
    model.train()
    return model


def checkpoint_layers(model: Policy, learn: LearnConfig) -> bool:
    """Let layers be computed again in the backward pass, if that is called for; returns whether they are.

    Not reentrant, so that ZeRO-3 gathers a layer's parameters for it again. Raises ConfigError where a family cannot
    do what is asked for.
    """
    shape = decoder_shape(model.policy.config.get_text_config().to_dict())
    width = model.head.weight.element_size()
    if not recomputes(learn.recompute, shape, learn.rank_tokens, width=width):
        return False
    if not model.policy.supports_gradient_checkpointing:
        if learn.recompute == "auto":
            return False
        way_out = f"{type(model.policy).__name__} does not support gradient checkpointing: use auto or never"
        raise ConfigError("learn.recompute", learn.recompute, way_out)
    how = {"use_reentrant": False, "preserve_rng_state": False}  # nothing is random without dropout
    model.policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    return True


def _load(path: Path, dtype: torch.dtype, backend: ZeroBackend | None) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    load = partial(
        AutoModelForCausalLM.from_pretrained,
        path,
        dtype=dtype,
        attn_implementation=NAME,
        trust_remote_code=False,
        output_loading_info=True,
    )
    try:
        policy, found = load() if backend is None else backend.load(load, dtype)
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError
    ) as error:  # fmt: skip
        reason = one_line(error, 300)
        if "ignore_mismatched_sizes" in reason:  # it points to a table, which is in the log
            reason = "its files have tensors of other sizes than its config.json means, the log names them"
        raise ConfigError("model.policy", str(path), f"cannot be loaded ({type(error).__name__}: {reason})") from error
    if fault := _fault_of(policy, found):
        raise ConfigError("model.policy", str(path), fault)
    return policy


def _fault_of(policy: Any, found: dict[str, Any]) -> str:
    """Say what makes a checkpoint another model than its config.json means, with the way out; empty for nothing."""
    if missing := sorted(found["missing_keys"]):
        return f"{len(missing)} tensors are missing from its files, such as {missing[0]}: save or download it again"
    if strays := _strays(policy, found["unexpected_keys"]):
        belong = f"{len(strays)} tensors of its files belong to no layer, such as {strays[0]}"
        return f"{belong}: its config.json describes another model, download it again"
    head, tied = policy.get_output_embeddings(), getattr(policy.config.get_text_config(), "tie_word_embeddings", False)
    if tied and head is not None and head.weight is not policy.get_input_embeddings().weight:
        differs = "its files have an output layer that differs from its embedding, but its config.json ties the two"
        return f"{differs}, as the engine would do: set tie_word_embeddings to false"
    return ""


def _strays(policy: Any, unexpected: Iterable[str]) -> list[str]:
    """Tensors of a checkpoint that belong to layers of the model, which would do without them: a bias that its
    configuration leaves out, a layer more than it counts, scales of another number type.
    """
    layers = tuple(f"{name}." for name, module in policy.named_modules() if isinstance(module, nn.ModuleList))
    return sorted(name for name in unexpected if name.startswith(layers) and not name.endswith(_DERIVED))


def _unfit(policy: Any, fault: str) -> ConfigError:
    family = type(policy).__name__
    return ConfigError("model.policy", policy.config.name_or_path, f"{family} {fault}; use a family like Llama or Qwen")


def plain(token_ids: list[int], device: torch.device) -> MicroTensors:
    """One sequence [T], whose tokens 1..T-1 are all predicted."""
    length = len(token_ids)
    ids = torch.tensor([token_ids], device=device)
    nothing = torch.zeros(length - 1, device=device)
    sampled = Sampled(nothing, nothing, nothing.long(), nothing.bool(), 1)
    at, ends = torch.arange(length, device=device), torch.full((1,), -1, device=device)
    return MicroTensors(ids, at[None], None, at[:-1], ids[0, 1:], ends, sampled)


class ReadyPolicy(NamedTuple):
    """A policy that can be read: its responses can share their prompt where it ``packs``; which parts are compiled, in
    words; whether layers are computed again in the backward pass.
    """

    policy: Policy
    packs: bool
    compiled: str
    recomputes: bool


def ready_policy(
    path: Path, cfg: Config, device: torch.device, backend: ZeroBackend, *, frozen: bool = False
) -> ReadyPolicy:
    """Load a checkpoint, have its parts compiled where that is worth it, choose its attention, and unless it is
    ``frozen`` let its layers be checkpointed. Raises ConfigError as these do.
    """
    dtype, temperature = getattr(torch, cfg.dtype), cfg.rollout.temperature
    policy = load_policy(path, dtype=dtype, temperature=temperature, device=device, backend=backend)
    if frozen:
        policy.requires_grad_(False)
    with backend.gathered(policy):
        compiled = compile_parts(policy, device)
        packs = choose_attention(policy, device)
    return ReadyPolicy(policy, packs, compiled, not frozen and checkpoint_layers(policy, cfg.learn))


@torch.no_grad()
def choose_attention(model: Policy, device: torch.device) -> bool:
    """Return True when responses can share their prompt, found by trying; where they cannot, the model gets attention
    of its own.

    They can with full attention and positions given by ids. Two copies of the same tokens behind one prompt must
    then get the log-probs of a sequence of their own. Raises ConfigError when these themselves differ from the
    model's own logits (families that scale or cap their logits after the output layer), or when the model is of
    another build than is read here. A partitioned model has to be ``gathered``.
    """
    vocabulary, _ = whole_shape(model.head.weight)
    tokens = [(7 * i * i + 3 * i + 1) % vocabulary for i in range(_PROBE)]
    bound = _AGREES[model.head.weight.dtype]
    try:
        model.policy.set_attn_implementation("sdpa")
        alone = model(plain(tokens, device))[0]
        by_logits = _by_logits(model, tokens, device)
    except (AttributeError, TypeError, ValueError, NotImplementedError) as error:
        raise _unfit(model.policy, f"cannot be read from hidden states ({error})") from error
    if not (alone - by_logits).abs().mean() <= bound:  # nan, too
        raise _unfit(model.policy, "changes its logits after the output layer, which the learner does not")
    if not _attends_fully(model.policy.config.get_text_config()):
        return False
    model.policy.set_attn_implementation(NAME)
    half = _PROBE // 2
    response = Response(array("i", tokens[half:]), array("f", [0.0] * half), 0.0)
    row = PromptGroup(array("i", tokens[:half]), (response, response))
    shared = model(to_tensors(MicroBatch((row,)), device))[0]
    if (shared - alone[half - 1 :].repeat(2)).abs().mean() <= bound:
        return True
    model.policy.set_attn_implementation("sdpa")
    return False


def _by_logits(model: Policy, tokens: list[int], device: torch.device) -> Tensor:
    ids = torch.tensor([tokens], device=device)
    logits = model.policy(input_ids=ids, use_cache=False).logits[0, :-1].float() / model.head.temperature
    return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


def _attends_fully(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return all(kind == "full_attention" for kind in kinds)
    return not getattr(config, "sliding_window", None)
