"""What is said to the model about how hard to think: a text right after BOS."""

from penstock.chat.messages import Encoding, Thinking

_THOROUGH = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
_RELENTLESS = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)

# The release of 0731 moved every effort down one level: its "high" says what "max" said in April.
_PREFIXES = {
    (Encoding.APRIL, Thinking.MAX): _THOROUGH,
    (Encoding.V0731, Thinking.HIGH): _THOROUGH,
    (Encoding.V0731, Thinking.MAX): _RELENTLESS,
}


def effort_prefix(encoding: Encoding, thinking: Thinking) -> str:
    """The text for this effort; empty where the release has none."""
    return _PREFIXES.get((encoding, thinking), "")
