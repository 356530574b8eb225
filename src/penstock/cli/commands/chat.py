"""`penstock chat`: a conversation in the terminal."""

from typing import Annotated

import typer

from penstock.chat.messages import Conversation, parse_thinking
from penstock.cli import options
from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError


@options.with_flags
def chat_command(
    sampling: Sampling,
    chosen: EngineOptions,
    model: options.Model = None,
    system: Annotated[str, typer.Option(help="System text placed before the conversation.")] = "",
    think: options.Think = "off",
    max_tokens: options.MaxTokens = None,
    load: Annotated[
        str | None, typer.Option(help="Go on with a saved conversation, by name or path.", metavar="NAME")
    ] = None,
    stats: options.Stats = False,
) -> None:
    """Talk with a model.

    /help lists what can be typed besides messages.  Ctrl-C stops an answer and keeps it; Ctrl-D leaves.

    Example: penstock chat -m model.gguf --think high
    """
    thinking = parse_thinking(think)
    options.check_max_tokens(max_tokens)
    if load == "":
        raise OptionError("--load is empty, expected the name of a conversation")
    # What computes is loaded when there is something to compute.
    from penstock.chat.chat_session import ChatSession
    from penstock.cli.chat_settings import ChatSettings
    from penstock.cli.opening import open_engine
    from penstock.cli.repl import Repl

    conversation = Conversation((), thinking=thinking)
    with open_engine(model, chosen) as engine:
        session = ChatSession(engine, conversation)
        session.set_system(system)
        repl = Repl(session, ChatSettings(session, sampling, max_tokens, stats))
        if load is not None:
            repl.load(load)
        raise typer.Exit(repl.run())
