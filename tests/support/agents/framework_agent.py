"""A program of an agent framework: ``python framework_agent.py NAME``. Its agent may call a tool that doubles a number.

Each function below is what the framework's own documentation shows: a model behind an OpenAI-compatible endpoint, one
tool, one run. The answer is what the framework says that the agent answered.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

URL, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]


def twice(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


def langgraph(prompt: str) -> str:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent = create_agent(ChatOpenAI(model="policy"), [twice])
    return str(agent.invoke({"messages": [("user", prompt)]})["messages"][-1].content)


def pydantic_ai(prompt: str) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel

    return str(Agent(OpenAIChatModel("policy"), tools=[twice]).run_sync(prompt).output)


def openai_agents(prompt: str) -> str:
    from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

    set_tracing_disabled(True)
    set_default_openai_api("chat_completions")
    agent = Agent(name="agent", model="policy", tools=[function_tool(twice)])
    return str(Runner.run_sync(agent, prompt).final_output)


def llama_index(prompt: str) -> str:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(model="policy", api_base=URL, api_key=KEY, is_chat_model=True, is_function_calling_model=True)

    async def run() -> Any:
        return await FunctionAgent(tools=[twice], llm=model).run(prompt)

    return str(asyncio.run(run()))


def dspy(prompt: str) -> str:
    import dspy

    dspy.configure(lm=dspy.LM("openai/policy", cache=False))
    return str(dspy.ReAct("question -> answer", tools=[twice], max_iters=3)(question=prompt).answer)


def instructor(prompt: str) -> str:
    import instructor
    from pydantic import BaseModel

    class Answer(BaseModel):
        text: str

    client = instructor.from_provider("openai/policy")
    return str(client.create(response_model=Answer, messages=[{"role": "user", "content": prompt}]).text)


def inspect_ai(prompt: str) -> str:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import Tool, tool

    @tool(name="twice")
    def double() -> Tool:
        async def execute(number: int) -> int:
            """Double a number.

            Args:
                number: The number.
            """
            return 2 * number

        return execute

    asked = Task([Sample(prompt)], solver=[use_tools(double()), generate()])
    (log,) = eval(
        asked,
        model="openai/policy",
        model_args={"responses_api": False},
        display="none",
        log_dir="logs",
        log_samples=True,
    )
    assert log.status == "success", log.error
    return str(log.samples[0].output.completion)


def verifiers(prompt: str) -> str:
    import verifiers as vf
    from datasets import Dataset

    rows = Dataset.from_list([{"question": prompt, "answer": "8"}])
    made = vf.ToolEnv(dataset=rows, tools=[twice], rubric=vf.Rubric(funcs=[lambda **_: 1.0]), max_turns=4)
    found = made.evaluate_sync(
        vf.ClientConfig(api_base_url=URL, api_key_var="OPENAI_API_KEY"), "policy", num_examples=1
    )
    return str(found["outputs"][0]["completion"][-1]["content"])


def autogen(prompt: str) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info: Any = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown",
                 "structured_output": False}  # fmt: skip
    client = OpenAIChatCompletionClient(model="policy", model_info=info)
    agent = AssistantAgent("agent", client, tools=[twice], reflect_on_tool_use=True)
    return str(asyncio.run(agent.run(task=prompt)).messages[-1].content)


def crewai(prompt: str) -> str:
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "HOME": os.getcwd()}
    from crewai import LLM, Agent
    from crewai.tools import tool

    agent = Agent(
        role="r",
        goal="g",
        backstory="b",
        llm=LLM("policy", provider="openai", custom_openai=True, base_url=URL, api_key=KEY),
        tools=[tool(twice)],
    )
    return str(agent.kickoff(prompt).raw)


def haystack(prompt: str) -> str:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function

    agent = Agent(chat_generator=OpenAIChatGenerator(model="policy"), tools=[create_tool_from_function(twice)])
    return str(agent.run(messages=[ChatMessage.from_user(prompt)])["last_message"].text)


def google_adk(prompt: str) -> str:
    from google.adk.agents import LlmAgent
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner

    agent = LlmAgent(name="agent", model=LiteLlm(model="openai/policy"), tools=[twice])

    async def run() -> str:
        events = await InMemoryRunner(agent=agent, app_name="app").run_debug(prompt, quiet=True)
        return str(events[-1].content.parts[0].text)

    return asyncio.run(run())


Path("answer.txt").write_text(globals()[sys.argv[1]](Path("prompt.txt").read_text()))
