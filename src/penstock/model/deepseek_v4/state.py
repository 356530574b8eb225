"""What a DeepSeek-V4 sequence keeps between steps: windows of key/value rows, and what compressors need."""

from collections.abc import Iterator, Sequence

from penstock.backend.deepseek_v4 import AttentionState
from penstock.backend.state import Series
from penstock.weights.config import AttentionKind, LayerConfig, ModelConfig

DRAFT = "mtp.0"


def layer_series(
    config: ModelConfig, layer: LayerConfig, block: str, kv_dtype: str, lag: int = 0
) -> list[Series]:
    """The series of one layer, in the order of AttentionState's fields."""
    found = [Series(f"{block}.window", config.head_dim, kv_dtype, reach=config.window, lag=lag)]
    dims = {"compressor": config.head_dim, "indexer": config.index_dim}
    if layer.attention is AttentionKind.SLIDING:
        dims = {}
    elif layer.attention is AttentionKind.HEAVY:
        del dims["indexer"]
    # Overlapping windows look back one full window beyond the current one.
    reach = layer.ratio * (2 if layer.attention is AttentionKind.SPARSE else 1)
    for name, dim in dims.items():
        width = 2 * config.compressed_width(layer, dim)  # value | score
        found.append(Series(f"{block}.{name}.frontier", width, "f32", reach=reach))
        found.append(Series(f"{block}.{name}.rows", dim, kv_dtype, ratio=layer.ratio))
    return found


def draft_series(config: ModelConfig, kv_dtype: str) -> list[Series]:
    """The draft block's window, whose pair i needs token i + 1, and the trunk streams that its next pair needs."""
    streams = Series(f"{DRAFT}.streams", config.streams * config.hidden, "f32", reach=1)
    return [*layer_series(config, config.mtp_layer, DRAFT, kv_dtype, lag=1), streams]


def all_series(
    config: ModelConfig, kv_dtype: str, layers: Sequence[int], draft: bool, stages: int = 0
) -> Iterator[Series]:
    """draft: with an MTP block; stages: of a DSpark module"""
    if layers and not 0 <= layers[0] <= layers[-1] < config.layer_count:
        raise ValueError(f"layers [{layers[0]}, {layers[-1] + 1}) of a model with {config.layer_count}")
    for number in layers:
        yield from layer_series(config, config.layers[number], f"blk.{number}", kv_dtype)
    if draft:
        yield from draft_series(config, kv_dtype)
    for number in range(stages):
        yield from layer_series(config, config.mtp_layer, f"mtp.{number}", kv_dtype)


def attention_state(series: tuple[Series, ...], block: str) -> AttentionState:
    """Where a block's series are in a layout."""
    names = {each.name: number for number, each in enumerate(series)}
    return AttentionState(
        names[f"{block}.window"],
        *(names.get(f"{block}.{part}") for part in ("compressor.frontier", "compressor.rows")),
        *(names.get(f"{block}.{part}") for part in ("indexer.frontier", "indexer.rows")),
    )
