"""DeepSeek-V4's prompt for one question."""

from penstock.chat.messages import Conversation, Message, Role, Thinking
from penstock.chat.render import render
from penstock.tokenizer import Tokenizer


def single_turn(tokenizer: Tokenizer, user: str, system: str = "", thinking: bool = False) -> list[int]:
    """BOS system <｜User｜>user<｜Assistant｜>, then `<think>` to let the model reason or `</think>` to answer."""
    messages = (Message(Role.SYSTEM, system), Message(Role.USER, user))
    effort = Thinking.LOW if thinking else Thinking.OFF  # the one effort that adds no text in any release
    return render(Conversation(messages, thinking=effort)).ids(tokenizer)
