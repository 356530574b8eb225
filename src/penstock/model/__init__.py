"""Models, described: which weights, which shapes, which ops in which order.

An architecture is a folder here and an entry in `ARCHITECTURES`; nothing above or below knows one by name.
"""

from penstock.model.base import Architecture
from penstock.weights.config import ModelConfig


def architecture(config: ModelConfig) -> type[Architecture]:
    """The architecture of a model by its configuration."""
    del config  # DeepSeek-V4 is the only one yet
    from penstock.model.deepseek_v4.model import DeepSeekV4

    return DeepSeekV4
