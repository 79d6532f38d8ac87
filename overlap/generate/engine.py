"""All that we call of vLLM; what vLLM calls of ours, inside its workers, is in ``receive`` and ``worker_patches``.

Runs in the host, where ``start.open_engine`` makes it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from overlap.core import Finish, Part, Spoken, VersionSpan
from overlap.core.errors import ConfigError, EngineError, one_line
from overlap.generate.service import ADAPTER_ID, EngineSample, EngineSpec, Sampling

_TAIL_TOKENS, _END_TOKENS = 4, 64
_ADAPTER = "adapter"
_FIRST = -(2**31)  # before all groups: a probe's caller waits for the answer

TAGS: Mapping[Part, str] = {"weights": "weights", "cache": "kv_cache"}
"""Parts that wake separately, by vLLM's names. It wakes whatever else sleeps with the first of them."""


class VllmEngine:
    """A running ``AsyncLLM``. Its public coroutines are the calls that ``EngineClient`` makes to the engine's process;
    they raise what vLLM raises, and belong to the event loop that awaits the first of them. Arguments and results are
    pickled.
    """

    def __init__(self, llm: Any, vllm: Any, spec: EngineSpec, on_cpu: bool) -> None:
        self._llm, self._vllm, self._spec, self._on_cpu = llm, vllm, spec, on_cpu
        self._tokenizer, episode = llm.get_tokenizer(), spec.cfg.episode
        given = spec.cfg.model.chat_template_kwargs
        self._reader = AnswerReader(self._tokenizer, episode.tool_parser, episode.reasoning_parser, given)
        self._asks = {"lora_request": vllm.LoRARequest(_ADAPTER, ADAPTER_ID, _ADAPTER)} if spec.takes_adapter else {}

    async def prepare(self) -> None:
        """Have probes give log-probs at the sampling temperature, and call the policy's own weights version 0."""
        await self._llm.collective_rpc("overlap_probe_at", args=(self._spec.cfg.rollout.temperature,))
        if self._spec.takes_adapter:
            await self._llm.collective_rpc("overlap_keep_adapter")
        if self._spec.load_weights:
            await self._llm.update_weight_version("0")

    async def sample(self, prompt: Sequence[int], id: str, sampling: Sampling) -> EngineSample:
        """Sample one response to a prompt of token ids; cancelling aborts it."""
        # Behind a prompt that ends inside a character vLLM would find stop strings in the prompt, too.
        inside = bool(sampling.stop) and self._decode(prompt[-_END_TOKENS:]).endswith("\ufffd")
        stop = () if inside else sampling.stop
        params = self._vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=None if self._on_cpu else sampling.seed,  # a seed per request kills the CPU engine
            stop=list(stop),
            include_stop_str_in_output=True,
            detokenize=bool(stop),  # token by token only where stop strings need it
            logprobs=0,
            flat_logprobs=True,
            output_kind=self._vllm.RequestOutputKind.FINAL_ONLY,
        )
        final = await self._final(prompt, id, params, sampling.priority)
        output = final.outputs[0]
        token_ids, logprobs = tuple(output.token_ids), tuple(output.logprobs.logprobs)
        if len(token_ids) != len(logprobs):
            raise EngineError(f"request {id}: {len(token_ids)} tokens but {len(logprobs)} log-probs")
        text = self._text(prompt[-_TAIL_TOKENS:], token_ids)
        cached = getattr(final, "num_cached_tokens", None) or 0
        said = EngineSample(token_ids, logprobs, text, _finish(id, output.finish_reason), _spans(id, output), cached)
        if (end := _stop_end(text, sampling.stop)) is None:
            return said
        return self._cut(prompt, said, sampling.stop) if inside else replace(said, text=text[:end])

    def _cut(self, prompt: Sequence[int], said: EngineSample, stop: Sequence[str]) -> EngineSample:
        """An answer that went on behind a stop string, as it would have ended: with the token that completes it."""

        def stopped(count: int) -> int | None:
            return _stop_end(self._text(prompt[-_TAIL_TOKENS:], said.token_ids[:count]), stop)

        count = bisect_left(range(len(said.token_ids)), True, key=lambda n: stopped(n) is not None)
        spans = tuple(replace(span, end=min(span.end, count)) for span in said.spans if span.start < count)
        text = said.text[: _stop_end(said.text, stop)]
        ids, logprobs = said.token_ids[:count], said.logprobs[:count]
        return replace(said, token_ids=ids, logprobs=logprobs, text=text, finish="stop", spans=spans)

    def _text(self, tail: Sequence[int], token_ids: Sequence[int]) -> str:
        # Some tokenizers strip the first blank of a text, so the response is decoded behind the prompt's last tokens.
        head, whole = self._decode(tail), self._decode((*tail, *token_ids))
        return whole[len(head) :] if whole.startswith(head) else self._decode(token_ids)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    async def parse(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """Read an answer by the engine's parsers; ``tools`` are those of the request, a JSON list."""
        return self._reader.read(text, token_ids, tools)

    async def prompt_logprobs(self, token_ids: Sequence[int], id: str) -> list[float]:
        """Log-probs [T-1] of tokens 1..T-1 at the temperature of the rollouts; vLLM reads no prefix cache for these."""
        params = self._vllm.SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=self._vllm.RequestOutputKind.FINAL_ONLY
        )
        rows = (await self._final(token_ids, id, params, _FIRST)).prompt_logprobs
        return [row[token].logprob for row, token in zip(rows[1:], token_ids[1:], strict=True)]

    async def _final(self, prompt: Sequence[int], id: str, params: Any, priority: int) -> Any:
        tokens = self._vllm.TokensPrompt(prompt_token_ids=list(prompt))
        async for output in self._llm.generate(tokens, params, id, priority=priority, **self._asks):
            if output.finished:
                return output
        raise EngineError(f"request {id} ended without an output")

    async def connect(self, init_info: Mapping[str, Any]) -> None:
        """Join the weight transfer; with a collective backend this waits for the learner."""
        request = self._vllm.WeightTransferInitRequest(init_info=dict(init_info))
        await self._llm.init_weight_transfer_engine(request)

    async def pause(self) -> None:
        """Freeze requests that are running, with their KV cache; new requests wait for ``resume``."""
        await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def resume(self) -> None:
        await self._llm.resume_generation()

    async def begin_weights(self) -> None:
        """Expect a full set of weights, in one part or more, each of which is copied by the end of ``receive_weights``.
        The engine must be paused.
        """
        await self._llm.start_weight_update()

    async def receive_weights(self, update_info: Mapping[str, Any]) -> None:
        await self._llm.update_weights(self._vllm.WeightTransferUpdateRequest(update_info=dict(update_info)))

    async def commit_weights(self, version: int) -> None:
        """Use the received weights as ``version``. What was computed under other weights is computed anew when it is
        needed; with ``rollout.in_flight=keep`` this holds only for requests that wait, and requests that run keep their
        KV cache. An engine that shares GPUs drops its cache when it wakes.
        """
        await self._llm.finish_weight_update(str(version))
        if not self._spec.sleeps and not await self._forget():
            raise EngineError(f"version {version}: vLLM did not forget what other weights had computed")

    async def _forget(self) -> bool:
        """Drop what other weights computed (``keep``: but for running requests); False where vLLM has not."""
        keeps = self._spec.cfg.rollout.in_flight == "keep"
        return bool(await self._llm.reset_prefix_cache(reset_running_requests=not keeps))

    async def abandon_weights(self) -> None:
        """Drop what was received of a load that failed, so that the next load begins as the first one did."""
        await self._llm.collective_rpc("overlap_abandon_weights")

    async def sleep(self) -> None:
        """Give up the memory. Running requests go on after ``wake`` with a KV cache that is computed anew."""
        # Weights are dropped (level 2) where a learner sends all of them before they are used. Level 1 keeps weights
        # that have an adapter in pinned memory of the host.
        await self._llm.sleep(level=1 if self._spec.takes_adapter else 2, mode="keep")

    async def wake(self, part: Part) -> None:
        """Take memory for a part. With the last part the engine resumes by itself."""
        # First, for vLLM goes on with the requests that it has kept as soon as its cache is awake.
        if part == "cache" and not await self._forget():
            raise EngineError("vLLM did not forget what its KV cache held before it slept")
        await self._llm.wake_up(tags=[TAGS[part]])

    def exit_codes(self) -> dict[int, int]:
        """Exit codes by pid of those direct children that have ended (negative: killed by that signal)."""
        resources = getattr(getattr(self._llm, "engine_core", None), "resources", None)
        manager = getattr(resources, "engine_manager", None)
        ended = ((p.pid, p.exitcode) for p in getattr(manager, "processes", ()))
        return {pid: code for pid, code in ended if code is not None}


class AnswerReader:
    """Raises ConfigError for a parser that vLLM does not know, or that this tokenizer does not suit. ``template`` are
    the variables of the chat template, by which some parsers know whether the policy thinks.
    """

    def __init__(
        self, tokenizer: Any, tool_parser: str, reasoning_parser: str, template: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer, self._how = tokenizer, {"chat_template_kwargs": dict(template)} if template else {}
        self._parser: Any = None
        if tool_parser or reasoning_parser:
            self._parser = _parser(tokenizer, tool_parser, reasoning_parser)
            self._special = set(tokenizer.all_special_ids)

    def read(self, text: str, token_ids: Sequence[int], tools: str) -> Spoken:
        """``tools`` are those of the request, a JSON list; ``text`` is what is read where there is no parser."""
        if self._parser is None:
            return Spoken(text)
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        asked = {"tools": found, "tool_choice": "auto"} if (found := json.loads(tools)) else {}
        said = list(token_ids[:-1] if token_ids and token_ids[-1] in self._special else token_ids)
        words = self._tokenizer.decode(said, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        try:
            request = ChatCompletionRequest(messages=[{"role": "user", "content": ""}], **asked)
            reasoning, content, calls = self._parser(self._tokenizer, request.tools, **self._how).parse(
                words, request, bool(asked), said
            )
        except Exception:  # whatever a parser makes of what a policy says
            return Spoken(text, failed=True)
        return Spoken(content or "", reasoning, tuple((call.name, call.arguments) for call in calls or ()))


def _parser(tokenizer: Any, tool_parser: str, reasoning_parser: str) -> Any:
    from vllm.parser import ParserManager

    names = {"tool_parser_name": tool_parser or None, "reasoning_parser_name": reasoning_parser or None}
    try:
        return ParserManager.get_parser(**names, enable_auto_tools=True, tokenizer=tokenizer)
    except Exception as error:  # TypeError for a name, or what its constructor raises
        field, value = ("tool_parser", tool_parser) if tool_parser else ("reasoning_parser", reasoning_parser)
        reason = one_line(error, 200)
        raise ConfigError(f"episode.{field}", value, f'{reason}; use a parser that suits the policy, or ""') from error


def _stop_end(text: str, stop: Sequence[str]) -> int | None:
    """The end, in a text, of the first of these strings to be complete; None where there is none."""
    return min((at + len(word) for word in stop if (at := text.find(word)) >= 0), default=None)


def _finish(id: str, reason: str | None) -> Finish:
    if reason not in get_args(Finish):
        raise EngineError(f"request {id} ended with {reason!r}")
    return cast(Finish, reason)


def _spans(id: str, output: Any) -> tuple[VersionSpan, ...]:
    if output.token_ids and not output.weight_versions:
        raise EngineError(f"request {id}: vLLM does not say which weights sampled its tokens")
    return tuple(VersionSpan(int(span.version), span.start, span.end) for span in output.weight_versions or ())
