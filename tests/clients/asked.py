"""What all clients ask the pocket model, and what it says to that."""

from typing import Any, Final
from uuid import uuid4

SUM: Final = "What is 17 + 25?"
TOTAL: Final = "42"
CITY: Final = "Please get the weather for Paris."
PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
FUNCTION: Final[dict[str, Any]] = {
    "name": "get_weather",
    "description": "Get the weather for a city.",
    "parameters": PARAMETERS,
}
WEATHER: Final = '{"city": "Paris", "temperature": 21, "sky": "sunny"}'
LONG: Final = "word " * 9_000  # more than the server's context holds


def long_question() -> str:
    """Some 6,000 tokens that nobody has asked before: reading them takes seconds."""
    return f"{uuid4()}: " + "word " * 6_000
