"""The one way from a conversation to an answer: conversation → prompt, sampled tokens → events, events → turn.

Nothing here generates.  Whoever has an engine, a scheduler or several sessions generates from `reply.prompt.ids` with
`reply.sampling` and pushes every step, until the reply is `finished`:

>>> reply = ChatDriver(engine).reply(conversation)                               # doctest: +SKIP
>>> for step in engine.generate(reply.prompt.ids, 500, reply.sampling):          # doctest: +SKIP
...     for event in reply.push(step).events:
...         print(event)
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from penstock.chat.deepseek_v4 import DeepSeekV4Format, encoding_of
from penstock.chat.deepseek_v4.render import Encoding
from penstock.chat.events import Event, ReasoningDelta, TextDelta, ToolCallStarted, Turn
from penstock.chat.format import ChatFormat
from penstock.chat.messages import Conversation
from penstock.chat.prompt import Prompt
from penstock.engine.constraint import KEPT_TEXT, Constraint, Constraints
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.steps import Step
from penstock.weights.checkpoint import DSPARK

if TYPE_CHECKING:  # the database is for those who have one
    from penstock.chat.replay import Replay


def format_of(engine: Engine) -> ChatFormat:
    """The format that a model was trained with: the release that `chat_format` names, or that the file tells of."""
    if engine.options.chat_format != "auto":
        return DeepSeekV4Format(Encoding.named(engine.options.chat_format))
    checkpoint = engine.checkpoint
    names = [checkpoint.path.name, checkpoint.path.resolve().name]
    names += [
        part for part in checkpoint.path.resolve().parts if part.startswith("models--")
    ]  # a hub's cache
    names += [str(value) for key, value in checkpoint.metadata.items() if key.startswith("general.")]
    has_dspark = DSPARK in checkpoint.index or DSPARK in checkpoint.unused
    template = str(checkpoint.metadata.get("tokenizer.chat_template", ""))
    return DeepSeekV4Format(encoding_of(names, template, has_dspark))


class ChatDriver:
    """Makes replies for one engine.  `replay`: what the model has said before, for conversations that come back as
    text.  `kept`: characters of grammars that stay compiled."""

    def __init__(
        self,
        engine: Engine,
        replay: "Replay | None" = None,
        format: ChatFormat | None = None,
        kept: int = KEPT_TEXT,
    ):
        self.engine, self.replay, self._kept = engine, replay, kept
        self.format = format or format_of(engine)

    @cached_property
    def constraints(self) -> Constraints:
        """Compiles grammars for this vocabulary."""
        tokenizer = self.engine.tokenizer
        return Constraints(tokenizer, {*self.engine.config.eos_ids, *tokenizer.eos_ids}, self._kept)

    def reply(
        self,
        conversation: Conversation,
        sampling: Sampling | None = None,
        *,
        continues: bool = False,
        forced: bool = False,
        most: int | None = None,
    ) -> "Reply":
        """The assistant's next turn.  continues, forced: see `Prompt`.  Raises ContextLengthError as soon as it is
        certain that the prompt has more than `most` tokens."""
        return Reply(self, conversation, sampling or Sampling(), continues, forced, most)

    def render(self, conversation: Conversation, continues: bool = False, forced: bool = False) -> Prompt:
        """What the model would read."""
        said = self.replay.with_calls(conversation) if self.replay else conversation
        return self.format.render(said, continues, forced)

    def count(self, conversation: Conversation, **rendering: bool) -> int:
        """Tokens of that, also where no context has room for them."""
        recall = self.replay.recall if self.replay else None
        return self.render(conversation, **rendering).count(self.engine.tokenizer, recall)


@dataclass(slots=True)
class Token:
    """One sampled token and what it means for the conversation.

    reasoning  it is part of the model's reasoning, or what ends it
    marker     it only ends the reasoning or the turn
    """

    step: Step
    events: list[Event]
    reasoning: bool = False
    marker: bool = False


class Reply:
    """One turn of the assistant.  Made by `ChatDriver.reply`.

    text      the prompt as people read it
    prompt    the same in tokens, and places in it
    sampling  for the engine: without stop strings, which end an answer but neither reasoning nor tool calls
    tokens    as sampled, without what ended the turn
    finished  the turn is over; the last token's events end with `Done`
    """

    def __init__(
        self,
        driver: ChatDriver,
        conversation: Conversation,
        sampling: Sampling,
        continues: bool,
        forced: bool,
        most: int | None = None,
    ):
        self._driver = driver
        format, tokenizer, replay = driver.format, driver.engine.tokenizer, driver.replay
        self._conversation = replay.with_calls(conversation) if replay else conversation
        self._rendered = format.render(self._conversation, continues, forced)
        self._parser = format.parser(conversation, self._rendered, sampling.stop)
        self._tokenizer, self._end_reasoning = tokenizer, tokenizer.token_id(format.end_reasoning)
        self._reasoning = self.thinking
        self._keeps = replay is not None and not continues
        self.prompt = self._rendered.encode(tokenizer, replay.recall if replay else None, most)
        self.sampling = replace(sampling, stop=())
        self.turn = Turn(thinking=self.thinking)
        self.tokens: list[int] = []
        self.finished = False

    @property
    def text(self) -> str:
        return self._rendered.text

    @property
    def thinking(self) -> bool:
        """Whether the turn begins with reasoning."""
        return self._rendered.thinking

    @property
    def constrained(self) -> bool:
        """Whether the turn has a form to be held to."""
        return self._conversation.constrained

    def constraint(self) -> Constraint | None:
        """What holds the turn to its form.  Compiling a grammar may take a while, and the first one a second."""
        constraints = self._driver.constraints
        return self._driver.format.constraint(constraints, self._conversation, self._rendered)

    def push(self, step: Step) -> Token:
        """What the next step of the engine means."""
        ends = step.finish_reason == "stop"
        if not ends:
            self.tokens.append(step.token)
        events = self._parse(step, ends)
        self._reasoning = self._reasoning or any(isinstance(event, ReasoningDelta) for event in events)
        ends_reasoning = self._reasoning and step.token == self._end_reasoning
        marker = ends_reasoning or step.token in self._tokenizer.eos_ids
        token = Token(step, events, self._reasoning, marker)
        answers = any(isinstance(event, TextDelta | ToolCallStarted) for event in events)
        self._reasoning = self._reasoning and not ends_reasoning and not answers
        self.turn.add(events)
        if self._parser.finished or step.finish_reason is not None:
            events += self.finish("stop" if self._parser.finished else step.finish_reason or "stop")
        return token

    def finish(self, reason: str = "length") -> list[Event]:
        """The rest, and `Done`, of a turn that ends or is broken off here; nothing if it is over."""
        if self.finished:
            return []
        self.finished = True
        rest = self._parser.finish(reason)
        self.turn.add(rest)
        if self._keeps and self._driver.replay and self.turn.stop_string is None:
            self._driver.replay.remember(self.prompt, self.turn.message(), self.tokens)
        return rest

    def _parse(self, step: Step, ends: bool) -> list[Event]:
        """A marker's text is told apart from ordinary text that spells it, and from text that was pending before."""
        if ends or not self._tokenizer.is_special(step.token):
            return self._parser.push(step.text)
        marker = self._tokenizer.token_bytes(step.token).decode("utf-8", errors="replace")
        return self._parser.push(step.text.removesuffix(marker)) + self._parser.push(marker, special=True)
