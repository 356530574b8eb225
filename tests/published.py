"""The published hyper-parameters, for tests of real sizes."""

from penstock.backend.state import StateLayout
from penstock.model.deepseek_v4.state import all_series
from penstock.weights.config import AttentionKind, LayerConfig, ModelConfig

KINDS = {0: AttentionKind.SLIDING, 4: AttentionKind.SPARSE, 128: AttentionKind.HEAVY}


def _layers(ratios: list[int], width: int) -> tuple[LayerConfig, ...]:
    return tuple(
        LayerConfig(KINDS[ratio], ratio, number < 3, width, 10.0, 10.0) for number, ratio in enumerate(ratios)
    )


FLASH_RATIOS = [0, 0] + [4 if number % 2 == 0 else 128 for number in range(2, 43)]

FLASH = ModelConfig(
    vocab_size=129280,
    hidden=4096,
    heads=64,
    head_dim=512,
    rope_dim=64,
    q_rank=1024,
    o_groups=8,
    o_rank=1024,
    window=128,
    context_length=1048576,
    rms_eps=1e-6,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    yarn_factor=16.0,
    yarn_original_context=65536,
    yarn_beta_fast=32.0,
    yarn_beta_slow=1.0,
    experts=256,
    experts_used=6,
    normalize_weights=True,
    routed_scale=1.5,
    index_heads=64,
    index_dim=128,
    index_topk=512,
    streams=4,
    sinkhorn_iterations=20,
    hc_eps=1e-6,
    bos_id=0,
    eos_ids=(1,),
    layers=_layers(FLASH_RATIOS, 2048),
)


def flash_layout(kv_dtype: str, context: int, max_rewind: int) -> StateLayout:
    """What a sequence of that model keeps, without a draft block."""
    series = tuple(all_series(FLASH, kv_dtype, range(FLASH.layer_count), draft=False))
    return StateLayout(series, context, max_rewind, kv_dtype, FLASH.vocab_size)
