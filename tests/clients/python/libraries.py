"""Libraries from PyPI against a server: `python libraries.py LIBRARY URL KEY MODEL` prints what came back as JSON.

Each does what it can of the same four things: a whole answer, one in pieces, a tool that is called and answered, an
object of a given form.  Runs in an environment of its own (`make test-clients`), so it imports nothing of ours.
"""

import asyncio
import json
import sys
from typing import Any

from pydantic import BaseModel

SUM = "What is 17 + 25?"
CITY = "Please get the weather for Paris."
LIBRARY, URL, KEY, MODEL = sys.argv[1:5]
calls: list[list[Any]] = []  # of the tool, as they came


class Sum(BaseModel):
    """A sum."""

    total: int
    right: bool


def get_weather(city: str) -> dict[str, Any]:
    """Get the weather for a city.

    Args:
        city: Name of the city.
    """
    calls.append(["get_weather", {"city": city}])
    return {"city": city, "temperature": 21, "sky": "sunny"}


async def pydantic_ai() -> dict[str, Any]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))
    settings: Any = {"temperature": 0, "max_tokens": 400}
    plain = Agent(model, model_settings=settings)
    async with plain.run_stream(SUM) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True)]
    told = await Agent(model, tools=[get_weather], model_settings=settings).run(CITY)
    made = await Agent(model, output_type=Sum, model_settings=settings, retries=3).run(SUM)
    return {
        "whole": (await plain.run(SUM)).output,
        "pieces": pieces,
        "told": told.output,
        "object": made.output.model_dump(),
    }


async def openai_agents() -> dict[str, Any]:
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    found: dict[str, Any] = {}
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        calls.clear()
        how = {"model": kind(MODEL, client), "model_settings": ModelSettings(temperature=0, max_tokens=400)}
        plain = Agent(name="a", **how)
        stream = Runner.run_streamed(plain, SUM)
        pieces = [
            event.data.delta
            async for event in stream.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        told = await Runner.run(Agent(name="a", tools=[function_tool(get_weather)], **how), CITY)
        made = await Runner.run(Agent(name="a", output_type=Sum, **how), SUM)
        found = {
            "whole": (await Runner.run(plain, SUM)).final_output,
            "pieces": pieces,
            "told": told.final_output,
            "object": made.final_output.model_dump(),
        }
        assert calls == [["get_weather", {"city": "Paris"}]], (kind, calls)
    return found


def instructor() -> dict[str, Any]:
    import instructor
    from openai import OpenAI

    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": SUM}], "temperature": 0}
    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        made = instructor.from_openai(client, mode=mode).create(response_model=Sum, max_retries=0, **asked)
    return {"object": made.model_dump()}


def llama_index() -> dict[str, Any]:
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        MODEL,
        api_base=f"{URL}/v1",
        api_key=KEY,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        temperature=0,
        max_tokens=400,
        context_window=8192,
    )
    asked = [ChatMessage(role="user", content=SUM)]
    tool = FunctionTool.from_defaults(get_weather)
    told = model.predict_and_call([tool], CITY)
    return {
        "whole": model.chat(asked).message.content,
        "pieces": [piece.delta for piece in model.stream_chat(asked)],
        "tool_result": str(told),
        "object": model.as_structured_llm(Sum).chat(asked).raw.model_dump(),
    }


def haystack() -> dict[str, Any]:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    def model(**how: Any) -> Any:
        settings = {"temperature": 0, "max_completion_tokens": 400, **how.pop("more", {})}
        key = Secret.from_token(KEY)
        return OpenAIChatGenerator(
            api_key=key, model=MODEL, api_base_url=f"{URL}/v1", generation_kwargs=settings, **how
        )

    pieces: list[str] = []
    asked = [ChatMessage.from_user(SUM)]
    model(streaming_callback=lambda chunk: pieces.append(chunk.content)).run(asked)
    agent = Agent(chat_generator=model(), tools=[create_tool_from_function(get_weather)])
    made = model(more={"response_format": Sum}).run(asked)["replies"][0].text
    return {
        "whole": model().run(asked)["replies"][0].text,
        "pieces": pieces,
        "told": agent.run([ChatMessage.from_user(CITY)])["last_message"].text,
        "object": json.loads(made),
    }


def dspy() -> dict[str, Any]:
    import dspy

    model = dspy.LM(
        f"openai/{MODEL}", api_base=f"{URL}/v1", api_key=KEY, temperature=0, max_tokens=400, cache=False
    )
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": Sum.model_json_schema()}}
    with dspy.context(lm=model.copy(response_format=form), adapter=dspy.JSONAdapter()):
        made = dspy.Predict("question -> total: int, right: bool")(question=SUM)
    return {"whole": model(SUM)[0], "object": {"total": made.total, "right": made.right}}


def smolagents() -> dict[str, Any]:
    from smolagents import ChatMessageStreamDelta, OpenAIServerModel, Tool, ToolCallingAgent

    class Weather(Tool):  # type: ignore[misc]
        name = "get_weather"
        description = "Get the weather for a city."
        inputs = {"city": {"type": "string", "description": "Name of the city."}}  # noqa: RUF012
        output_type = "object"

        def forward(self, city: str) -> dict[str, Any]:
            return get_weather(city)

    model = OpenAIServerModel(MODEL, api_base=f"{URL}/v1", api_key=KEY, temperature=0, max_tokens=400)
    asked: Any = [{"role": "user", "content": SUM}]
    deltas = [delta for delta in model.generate_stream(asked) if isinstance(delta, ChatMessageStreamDelta)]
    called = model.generate([{"role": "user", "content": CITY}], tools_to_call_from=[Weather()])
    (call,) = called.tool_calls
    get_weather(**json.loads(call.function.arguments))
    ToolCallingAgent(tools=[Weather()], model=model, max_steps=2, verbosity_level=0).run(
        CITY
    )  # says what it likes
    del calls[1:]
    return {"whole": model.generate(asked).content, "pieces": [delta.content or "" for delta in deltas]}


def langgraph() -> dict[str, Any]:
    from langchain.agents import create_agent  # LangGraph's own agent
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, temperature=0, max_retries=0)

    def asked(question: str) -> Any:
        return {"messages": [{"role": "user", "content": question}]}

    plain, armed = create_agent(model, []), create_agent(model, [get_weather])
    shaped = create_agent(model, [], response_format=Sum)
    pieces = [chunk.text for chunk, _ in plain.stream(asked(SUM), stream_mode="messages")]
    return {
        "whole": plain.invoke(asked(SUM))["messages"][-1].text,
        "pieces": pieces,
        "told": armed.invoke(asked(CITY))["messages"][-1].text,
        "object": shaped.invoke(asked(SUM))["structured_response"].model_dump(),
    }


def llm() -> dict[str, Any]:
    from llm.default_plugins.openai_models import Chat

    model = Chat(
        MODEL, model_name=MODEL, api_base=f"{URL}/v1", key=KEY, supports_tools=True, supports_schema=True
    )
    told = model.chain(CITY, tools=[get_weather], options={"temperature": 0}, key=KEY)
    return {
        "whole": model.prompt(SUM, temperature=0, stream=False, key=KEY).text(),
        "pieces": list(model.prompt(SUM, temperature=0, key=KEY)),
        "told": told.text(),
        "object": json.loads(model.prompt(SUM, schema=Sum, temperature=0, key=KEY).text()),
    }


if __name__ == "__main__":
    run = globals()[LIBRARY]
    found = asyncio.run(run()) if asyncio.iscoroutinefunction(run) else run()
    print(json.dumps({**found, "calls": calls}))
