"""A real engine with a tiny policy, the loop that it lives in, and a Hugging Face model that plays the learner. With
``learn.lora_rank`` adapters learn and are sent.
"""

import asyncio

from overlap.core import WeightUpdate
from overlap.generate.client import EngineClient
from overlap.learner.lora import adapt, alone
from overlap.pipeline.parity import logprob_gaps
from overlap.process.process_tree import read_proc
from overlap.weights.full import full_tensors
from overlap.weights.shm import open_sender


def core_of(pids):
    """The engine core: the first process that vLLM itself has started."""
    return next(pid for pid in pids if b"EngineCore" in read_proc(pid, "cmdline"))


class Bench:
    """An engine, the loop that it lives in, and a Hugging Face model that plays the learner."""

    def __init__(self, cfg, policy, scratch, host="counting_host"):
        import torch
        from transformers import AutoModelForCausalLM

        self.torch, self.temperature = torch, cfg.rollout.temperature
        self.runner = asyncio.Runner()
        self.generator = self.make(cfg, policy, scratch, host)
        self.model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
        self.adapters, self._alone = adapt(self.model, cfg.learn), cfg.sends_adapter
        self.sender = open_sender("shm", rank=0)
        self.version = -1

    def make(self, cfg, policy, scratch, host):
        return EngineClient(cfg, policy, scratch, host=host)

    def run(self, coroutine):
        async def bounded():
            async with asyncio.timeout(600):
                return await coroutine

        return self.runner.run(bounded())

    def update(self):
        self.version += 1
        return self.update_again()

    def update_again(self):
        tensors = alone(self.adapters, 0) if self._alone else full_tensors(self.model, 0, self.adapters)
        return WeightUpdate(self.version, "shm", self.sender.prepare(tensors))

    def learn(self, size=0.05):
        """Changes every weight that learns."""
        with self.torch.no_grad():
            for p in self.model.parameters():
                if p.requires_grad:
                    p.add_(size * self.torch.randn_like(p))

    def logprobs(self, token_ids, past=None):
        """[T-1] of the Hugging Face model at the sampling temperature, and its key-value cache."""
        torch = self.torch
        with torch.no_grad():
            out = self.model(torch.tensor([token_ids]), past_key_values=past, use_cache=True)
        scores = (out.logits[0] / self.temperature).log_softmax(-1)
        return scores[range(len(token_ids) - 1), token_ids[1:]].tolist(), out.past_key_values

    def gap(self, trajectory):
        """Of a whole response to the model as it stands, over all tokens, nats."""
        return max(self.gaps(trajectory))

    def gaps(self, trajectory):
        """[T] absolute differences to the model as it stands, nats."""
        prompt = trajectory.request.prompt.token_ids
        ours, _ = self.logprobs([*prompt, *trajectory.token_ids])
        return logprob_gaps(trajectory.logprobs, ours[len(prompt) - 1 :])

    def weights(self):
        """A copy, for ``put``."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def put(self, weights):
        self.model.load_state_dict(weights, strict=False)

    def close(self):
        self.runner.run(self.generator.close())
        self.runner.close()
        self.sender.close()
