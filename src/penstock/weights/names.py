"""Canonical tensor names, and how each dialect of model file spells them.

The canonical names are GGUF's, because they are the ones people meet:

    token_embd.weight, output_norm.weight, output.weight, output_hc_{fn,base,scale}.weight
    blk.N.LEAF                      a trunk layer
    blk.N.ffn_gate_exps.weight      all experts stacked [experts, out, in]
    blk.N.ffn_gate_exps.E.weight    one expert [out, in], in files that store them one by one
    blk.N.ffn_gate_up_exps.weight   gate and up stacked [experts, 2 × out, in]
    mtp.K.LEAF                      a draft block: a layer plus enorm, hnorm, norm, e_proj, h_proj, hc_head_*; or a
                                    stage of a DSpark module: a layer, the first one plus main_proj and main_norm,
                                    the last one plus norm, hc_head_*, markov_w1, markov_w2 and conf_proj
"""

import re
from typing import Final

ROOT: Final[dict[str, str]] = {
    "embed.weight": "token_embd.weight",
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    "lm_head.weight": "output.weight",
    "hc_head_fn": "output_hc_fn.weight",
    "hc_head_base": "output_hc_base.weight",
    "hc_head_scale": "output_hc_scale.weight",
    "hc_head.hc_fn": "output_hc_fn.weight",
    "hc_head.hc_base": "output_hc_base.weight",
    "hc_head.hc_scale": "output_hc_scale.weight",
}

# Layer tensors of safetensors files after `self_attn` → `attn` and `mlp` → `ffn`.  The official checkpoint and
# the Hugging Face class differ leaf by leaf, and what `save_pretrained` writes is a mixture of both.
_COMPRESSOR: Final[dict[str, str]] = {
    "wkv.weight": "kv.weight",
    "kv_proj.weight": "kv.weight",
    "wgate.weight": "gate.weight",
    "gate_proj.weight": "gate.weight",
    "ape": "ape.weight",
    "position_bias": "ape.weight",
    "norm.weight": "norm.weight",
    "kv_norm.weight": "norm.weight",
}
_SWIGLU: Final[dict[str, str]] = {
    "w1": "gate",
    "w2": "down",
    "w3": "up",
    "gate_proj": "gate",
    "down_proj": "down",
    "up_proj": "up",
}
LAYER: Final[dict[str, str]] = {
    "attn_norm.weight": "attn_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.q_a_proj.weight": "attn_q_a.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.q_a_norm.weight": "attn_q_a_norm.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.q_b_proj.weight": "attn_q_b.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_proj.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.norm.weight": "attn_kv_a_norm.weight",
    "attn.attn_sink": "attn_sinks.weight",
    "attn.sinks": "attn_sinks.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.o_a_proj.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.o_b_proj.weight": "attn_output_b.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.compressor.indexer.q_b_proj.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.compressor.indexer.scorer.weights_proj.weight": "indexer.proj.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.e_score_correction_bias": "exp_probs_b.bias",
    "ffn.gate.bias_vl": "exp_probs_b_vl.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "ffn.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "ffn.experts.down_proj": "ffn_down_exps.weight",
    **{f"attn.compressor.{theirs}": f"attn_compressor_{ours}" for theirs, ours in _COMPRESSOR.items()},
    **{
        f"attn.indexer.compressor.{theirs}": f"indexer_compressor_{ours}"
        for theirs, ours in _COMPRESSOR.items()
    },
    **{
        f"attn.compressor.indexer.{theirs}": f"indexer_compressor_{ours}"
        for theirs, ours in _COMPRESSOR.items()
    },
    **{f"ffn.shared_experts.{theirs}.weight": f"ffn_{ours}_shexp.weight" for theirs, ours in _SWIGLU.items()},
    **{
        f"hc_{part}_{leaf}": f"hc_{part}_{leaf}.weight"
        for part in ("attn", "ffn")
        for leaf in ("fn", "base", "scale")
    },
    **{
        f"{part}_hc.{leaf}": f"hc_{part}_{leaf}.weight"
        for part in ("attn", "ffn")
        for leaf in ("fn", "base", "scale")
    },
}
MTP_EXTRAS: Final[dict[str, str]] = {
    **{f"{leaf}.weight": f"{leaf}.weight" for leaf in ("e_proj", "h_proj", "enorm", "hnorm", "norm")},
    **{f"hc_head_{leaf}": f"hc_head_{leaf}.weight" for leaf in ("fn", "base", "scale")},
    **{f"{leaf}.weight": f"{leaf}.weight" for leaf in ("main_proj", "main_norm")},
    **{f"markov_head.{leaf}.weight": f"{leaf}.weight" for leaf in ("markov_w1", "markov_w2")},
    "confidence_head.proj.weight": "conf_proj.weight",
}

_BLOCK = re.compile(r"(layers|mtp)\.(\d{1,5})\.(.+)")
_EXPERT = re.compile(r"ffn\.experts\.(\d{1,6})\.(w1|w2|w3|gate_proj|down_proj|up_proj)\.weight")

NEXTN: Final[dict[str, str]] = {
    "nextn.eh_proj.weight": "eh_proj.weight",
    "nextn.enorm.weight": "enorm.weight",
    "nextn.hnorm.weight": "hnorm.weight",
    "nextn.shared_head_norm.weight": "norm.weight",
    "nextn.embed_tokens.weight": "embed_tokens.weight",
    "nextn.shared_head_head.weight": "head.weight",
}  # extra tensors of llama.cpp's MTP block → ours

# Tensors of llama.cpp's DSpark files → those of ours in the first stage and in the last; `blk.K` is stage K.
DFLASH_FIRST: Final[dict[str, str]] = {
    "fc.weight": "main_proj.weight",
    "enc.output_norm.weight": "main_norm.weight",
}
DFLASH_LAST: Final[dict[str, str]] = {
    "output_norm.weight": "norm.weight",
    **{f"output_hc_{leaf}.weight": f"hc_head_{leaf}.weight" for leaf in ("fn", "base", "scale")},
    **{f"{leaf}.weight": f"{leaf}.weight" for leaf in ("markov_w1", "markov_w2", "conf_proj")},
}


def from_safetensors(name: str) -> str | None:
    """Canonical name of a tensor of an official or Hugging Face checkpoint; None if it is not one of ours."""
    name = name.removeprefix("model.")
    if name in ROOT:
        return ROOT[name]
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    prefix = ("blk" if match[1] == "layers" else "mtp") + f".{int(match[2])}"
    leaf = re.sub(r"^self_attn\.", "attn.", re.sub(r"^mlp\.", "ffn.", match[3]))
    if expert := _EXPERT.fullmatch(leaf):
        return f"{prefix}.ffn_{_SWIGLU[expert[2]]}_exps.{int(expert[1])}.weight"
    if match[1] == "mtp" and leaf in MTP_EXTRAS:
        return f"{prefix}.{MTP_EXTRAS[leaf]}"
    ours = LAYER.get(leaf)
    return f"{prefix}.{ours}" if ours else None


def scale_of(name: str) -> str:
    """The name under which the official checkpoint keeps the block scales of tensor `name`."""
    return name.removesuffix(".weight") + ".scale"
