"""The strings of DeepSeek-V4's markers.  Ids always come from the model's own vocabulary."""

from typing import Final

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
USER: Final = "<｜User｜>"
ASSISTANT: Final = "<｜Assistant｜>"
REMINDER: Final = "<｜latest_reminder｜>"
THINK: Final = "<think>"
END_THINK: Final = "</think>"
ACTION: Final = "<｜action｜>"
TASKS: Final = (
    "action",
    "query",
    "authority",
    "domain",
    "title",
    "read_url",
)  # each has a marker of its name
DSML: Final = "｜DSML｜"  # one token; the `<` or `</` before it and the name after it are ordinary text
