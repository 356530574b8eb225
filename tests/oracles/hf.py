"""The Hugging Face oracle: tiny random DeepSeek-V4 models in float32.

Everything is random, norm weights, sinks, position biases, router bias, hash table and hyper-connection
parameters included, because a tensor left at its neutral value can be ignored without any test noticing.

Expert and indexer choices are discrete: two correct implementations differ by 1e-5, and where the k-th and
the (k+1)-th score are closer than that they choose differently and one row of logits jumps by up to 5.  Sharp
comparisons therefore use a seed from `pick_seed`.

    config = tiny_config()
    seed = pick_seed(config, length=300)
    model, ids = random_model(config, seed), random_ids(config, 300, seed)
    expected = logits(model, ids)                       # [300, vocab]
    again = logits(model, ids, chunks=[100, 1, 199])    # the same through the cache, to about 4e-5
"""

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as hf

SAFE_GAP = 1e-4  # ten times the float32 noise of router and indexer scores


def tiny_config(**overrides: Any) -> DeepseekV4Config:
    """Sliding, CSA and HCA layers, each once hash-routed and once score-routed, that llama.cpp accepts too.

    The indexer drops rows from position 4·(index_topk + 1) − 1 on, HCA emits its first row at 127, YaRN
    blends rotary pairs 1 to 6 of 16, and the SwiGLU clamp is active.  Rows of matrices have at least 64
    values; for formats with blocks of 256 override `hidden_size`, `moe_intermediate_size`, `q_lora_rank` and
    `o_lora_rank`.
    """
    compress_ratios: Sequence[int] = overrides.pop("compress_ratios", (0, 4, 128, 4, 128, 0))
    yarn = {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 32.0,  # the only betas llama.cpp uses, whatever the file says
        "beta_slow": 1.0,
    }
    settings: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 128,
        "num_hidden_layers": len(compress_ratios),
        "compress_ratios": list(compress_ratios),
        "num_hash_layers": 3,
        "num_attention_heads": 4,
        "head_dim": 128,  # equal to index_head_dim it kills llama.cpp
        "qk_rope_head_dim": 32,
        "q_lora_rank": 64,
        "o_groups": 2,
        "o_lora_rank": 32,
        "sliding_window": 16,
        "index_n_heads": 12,  # few heads make exact ties at ReLU zero
        "index_head_dim": 64,
        "index_topk": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 1.5,
        "max_position_embeddings": 8192,
        "rope_parameters": yarn,
    }
    return DeepseekV4Config(**{**settings, **overrides})


def random_ids(config: DeepseekV4Config, length: int, seed: int) -> list[int]:
    """Uniform token ids."""
    rng = np.random.default_rng(seed)
    return [int(i) for i in rng.integers(0, config.vocab_size, length)]


def random_model(config: DeepseekV4Config, seed: int) -> DeepseekV4ForCausalLM:
    """A float32 model, the same for the same seed; its logits have a standard deviation of about 3."""
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = DeepseekV4ForCausalLM(config).float().eval()
    randomise(model, seed)
    return model


@torch.no_grad()
def randomise(module: nn.Module, seed: int) -> None:
    """Fill every parameter and every stored buffer of `module` (a model or a part of one) in place."""
    generator = torch.Generator().manual_seed(seed)
    stored = module.state_dict(keep_vars=True)
    for name in sorted(stored):
        tensor = stored[name]
        if name.endswith("tid2eid"):
            experts = next(m.num_experts for m in module.modules() if isinstance(m, hf.DeepseekV4HashRouter))
            order = torch.rand(len(tensor), experts, generator=generator).argsort(dim=1)
            tensor.copy_(order[:, : tensor.shape[1]])  # distinct experts per token
        else:
            mean, std = _distribution(name, tensor)
            tensor.copy_(mean + std * torch.randn(tensor.shape, generator=generator))


def _distribution(name: str, tensor: Tensor) -> tuple[float, float]:
    """Mean and standard deviation by the tensor's role."""
    leaf = name.rpartition(".")[2]
    if leaf.endswith("scale"):  # hyper-connections
        return 1.0, 0.3
    if leaf == "e_score_correction_bias":
        return 0.0, 0.2
    if leaf.endswith("base") or leaf == "sinks" or leaf == "position_bias":
        return 0.0, 0.7
    if tensor.ndim == 1:  # norms
        return 1.0, 0.2
    if "embed_tokens" in name:
        return 0.0, 1.0
    # Larger router weights would test less: llama.cpp's softplus, log(1 + exp(x)), is coarse far below zero.
    gain = 3.0 if "lm_head" in name or "weights_proj" in name else 1.0
    return 0.0, gain * float(tensor.shape[-1]) ** -0.5


@torch.no_grad()
def logits(
    model: DeepseekV4ForCausalLM, ids: Sequence[int], chunks: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """[len(ids), vocab].  `chunks` are lengths that sum to len(ids), fed one by one through the cache."""
    tokens = torch.tensor([list(ids)])
    if chunks is None:
        rows = model(tokens, use_cache=False).logits[0]
    else:
        if sum(chunks) != len(ids):
            raise ValueError(f"chunks {list(chunks)} sum to {sum(chunks)}, not to {len(ids)}")
        cache = DynamicCache(config=model.config)
        parts = torch.split(tokens, list(chunks), dim=1)
        rows = torch.cat([model(part, past_key_values=cache, use_cache=True).logits[0] for part in parts])
    return np.asarray(rows.float().numpy())


def save(model: DeepseekV4ForCausalLM, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
    """Write config.json and safetensors as `save_pretrained` does, in names half way to DeepSeek's own.

    As in published checkpoints `dtype` applies to matrices; what the model must keep in float32 stays so.
    """
    stays = DeepseekV4ForCausalLM._keep_in_fp32_modules_strict
    model = copy.deepcopy(model)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_floating_point() and not any(part in name.split(".") for part in stays):
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype
    model.save_pretrained(folder)


@torch.no_grad()
def smallest_gap(model: DeepseekV4ForCausalLM, ids: Sequence[int], mtp: "Mtp | None" = None) -> float:
    """Smallest distance between the last chosen and the first rejected score, of experts and index rows.

    Infinite when nothing is chosen by score: all layers hash-routed, no more rows than `index_topk`.
    """
    gaps = [float("inf")]

    def watch_router(router: Any, _inputs: Any, outputs: tuple[Tensor, ...]) -> None:
        scores = router.score_fn(outputs[0]) + router.e_score_correction_bias
        if router.top_k < scores.shape[-1]:
            gaps.append(_gap(scores, router.top_k))

    def watch_indexer(_scorer: Any, _inputs: Any, scores: Tensor) -> None:
        ratio = model.config.compress_rates["compressed_sparse_attention"]
        top_k = model.config.index_topk
        for position, row in enumerate(scores[0]):
            visible = (position + 1) // ratio
            if visible > top_k:
                gaps.append(_gap(row[:visible], top_k))

    watchers = {hf.DeepseekV4TopKRouter: watch_router, hf.DeepseekV4IndexerScorer: watch_indexer}
    modules = itertools.chain(model.modules(), mtp.modules() if mtp else ())
    hooks = [m.register_forward_hook(watchers[type(m)]) for m in modules if type(m) in watchers]
    try:
        if mtp is None:
            logits(model, ids)
        else:
            mtp_logits(model, mtp, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return min(gaps)


def _gap(scores: Tensor, k: int) -> float:
    best = scores.topk(k + 1, dim=-1).values
    return float((best[..., k - 1] - best[..., k]).min())


def pick_seed(config: DeepseekV4Config, length: int, start: int = 0, gap: float = SAFE_GAP) -> int:
    """The first seed ≥ `start` whose `random_model` runs its `random_ids` without a near-tie.

    Nearly every seed fits at 60 tokens, one in two at 300, one in thirty at 1,100 (0.1 to 1 s each).
    """
    for seed in range(start, start + 100):
        if smallest_gap(random_model(config, seed), random_ids(config, length, seed)) > gap:
            return seed
    raise ValueError(f"no seed in {start}..{start + 99} keeps all gaps above {gap:g} for {length} tokens")


class Mtp(nn.Module):
    """The multi-token-prediction block, which the Hugging Face class leaves out, put together from its parts.

    Streams X_i of the trunk (before its head) and the id of token i + 1 give logits for token i + 2.
    """

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__()
        size = config.hidden_size
        config = copy.deepcopy(config)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        config.layer_types = ["sliding_attention"]
        config.mlp_layer_types = ["moe"]
        self.config = config
        self.e_proj = nn.Linear(size, size, bias=False)
        self.h_proj = nn.Linear(size, size, bias=False)
        self.enorm = hf.DeepseekV4RMSNorm(size, config.rms_norm_eps)
        self.hnorm = hf.DeepseekV4RMSNorm(size, config.rms_norm_eps)
        self.norm = hf.DeepseekV4RMSNorm(size, config.rms_norm_eps)
        self.hc_head = hf.DeepseekV4HyperHead(config)
        self.layer = hf.DeepseekV4DecoderLayer(config, 0)
        self.rotary = hf.DeepseekV4RotaryEmbedding(config)

    def forward(self, streams: Tensor, embedded: Tensor) -> Tensor:
        """streams [1, rows, hc_mult, hidden], embedded next tokens [1, rows, hidden] → [1, rows, hidden]."""
        mixed = self.h_proj(self.hnorm(streams)) + self.e_proj(self.enorm(embedded)).unsqueeze(2)
        position = torch.arange(streams.shape[1])
        distance = position[:, None] - position[None, :]
        hidden = (distance < 0) | (distance >= self.config.sliding_window)
        out = self.layer(
            mixed,
            position_ids=position[None],
            position_embeddings={"main": self.rotary(mixed, position[None], layer_type="main")},
            attention_mask=torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))[None, None],
        )
        return cast(Tensor, self.norm(self.hc_head(out)))


def random_mtp(config: DeepseekV4Config, seed: int) -> Mtp:
    """A float32 block for models of this config, the same for the same seed."""
    mtp = Mtp(config).float().eval()
    randomise(mtp, seed)
    return mtp


@torch.no_grad()
def mtp_logits(model: DeepseekV4ForCausalLM, mtp: Mtp, ids: Sequence[int]) -> NDArray[np.float32]:
    """[len(ids) − 1, vocab]; row i has seen tokens 0…i+1 and predicts token i+2."""
    seen: list[Tensor] = []
    hook = model.model.hc_head.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        logits(model, ids)
    finally:
        hook.remove()
    embedded = model.model.embed_tokens(torch.tensor([list(ids[1:])]))
    rows = model.lm_head(mtp(seen[0][:, :-1], embedded))[0]
    return np.asarray(rows.float().numpy())
