"""A finished file's draft block as the training model has it, and back.  All else of the file stays, to the byte."""

from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from penstock.weights.checkpoint import Checkpoint
from penstock.weights.quants import quantize
from pocket.config import PocketConfig
from pocket.experts import round_mxfp4
from pocket.model import Draft

# The training model's names, and those of the file.
NAMES: Final = {
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "norm.weight": "norm.weight",
    **{
        f"layer.hc_{part}_{leaf}": f"hc_{part}_{leaf}.weight"
        for part in ("attn", "ffn")
        for leaf in ("fn", "base", "scale")
    },
    "layer.attn_norm.weight": "attn_norm.weight",
    "layer.ffn_norm.weight": "ffn_norm.weight",
    "layer.attn.wq_a.weight": "attn_q_a.weight",
    "layer.attn.q_norm.weight": "attn_q_a_norm.weight",
    "layer.attn.wq_b.weight": "attn_q_b.weight",
    "layer.attn.wkv.weight": "attn_kv.weight",
    "layer.attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "layer.attn.attn_sink": "attn_sinks.weight",
    "layer.attn.wo_a.weight": "attn_output_a.weight",
    "layer.attn.wo_b.weight": "attn_output_b.weight",
    "layer.ffn.gate.weight": "ffn_gate_inp.weight",
    "layer.ffn.gate.bias": "exp_probs_b.bias",
    "layer.ffn.down": "ffn_down_exps.weight",
    "layer.ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "layer.ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
    "layer.ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
}


def decoded(checkpoint: Checkpoint, name: str) -> Tensor:
    return torch.from_numpy(checkpoint.weight(name).decode().copy())


def read_block(checkpoint: Checkpoint, config: PocketConfig) -> Draft:
    draft = Draft(config, seed=0)
    state = {own: decoded(checkpoint, f"mtp.0.{name}") for own, name in NAMES.items()}
    state["e_proj.weight"], state["h_proj.weight"] = decoded(checkpoint, "mtp.0.eh_proj.weight").chunk(2, 1)
    halves = (decoded(checkpoint, f"mtp.0.ffn_{part}_exps.weight") for part in ("gate", "up"))
    state["layer.ffn.gate_up"] = torch.cat(tuple(halves), dim=1)
    draft.load_state_dict(state)
    draft.layer.ffn.quantise = True
    return draft


def write_block(draft: Draft, checkpoint: Checkpoint, out: Path) -> None:
    """The checkpoint's file with this draft block in place of its own."""
    state = draft.state_dict()
    tensors = {name: state[own] for own, name in NAMES.items()}
    tensors["eh_proj.weight"] = torch.cat((state["e_proj.weight"], state["h_proj.weight"]), dim=1)
    gate, up = round_mxfp4(state["layer.ffn.gate_up"]).chunk(2, dim=1)
    tensors |= {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    tensors["ffn_down_exps.weight"] = round_mxfp4(state["layer.ffn.down"])
    whole = bytearray(checkpoint.path.read_bytes())
    for name, tensor in tensors.items():
        info = checkpoint.index[f"mtp.0.{name}"]
        rows = np.ascontiguousarray(tensor.numpy(), np.float32).reshape(-1, info.shape[-1])
        raw = quantize(rows, info.kind).tobytes()
        assert len(raw) == info.nbytes, name
        whole[info.offset : info.offset + info.nbytes] = raw
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(whole)
