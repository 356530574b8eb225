"""From trained weights to the file in the package.

    python -m pocket.export CHECKPOINT.pt TOKENIZER_FOLDER OUT.gguf [--mix f32]

Writes a checkpoint folder in DeepSeek's own layout and converts it with `penstock quantize`.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from penstock.weights.convert import convert
from pocket.config import PocketConfig
from pocket.model import Pocket

MIX = "mxfp4_q8_0"


def official_tensors(model: Pocket) -> dict[str, Tensor]:
    """The model's weights under the official checkpoint's names."""
    result: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().cpu()
        name = name.replace("draft.layer.", "mtp.0.").replace("draft.", "mtp.0.")
        name = name.replace("hc_head.", "hc_head_")
        if name.endswith(".ffn.gate_up"):
            for expert, both in enumerate(tensor):
                w1, w3 = both.chunk(2)
                stem = name.replace("gate_up", f"experts.{expert}")
                result[f"{stem}.w1.weight"], result[f"{stem}.w3.weight"] = w1, w3
        elif name.endswith(".ffn.down"):
            for expert, down in enumerate(tensor):
                result[f"{name.replace('down', f'experts.{expert}')}.w2.weight"] = down
        else:
            result[name] = tensor
    for leaf in ("fn", "base", "scale"):
        result[f"mtp.0.hc_head_{leaf}"] = result[f"hc_head_{leaf}"]
    return {name: tensor.contiguous().clone() for name, tensor in result.items()}


def config_json(c: PocketConfig) -> dict[str, Any]:
    """config.json of the official layout."""
    return {
        "model_type": "deepseek_v4",
        "architectures": ["DeepseekV4ForCausalLM"],
        "vocab_size": c.vocab,
        "hidden_size": c.hidden,
        "num_hidden_layers": len(c.ratios),
        "num_attention_heads": c.heads,
        "num_key_value_heads": 1,
        "head_dim": c.head_dim,
        "qk_rope_head_dim": c.rope_dim,
        "q_lora_rank": c.q_rank,
        "o_groups": c.o_groups,
        "o_lora_rank": c.o_rank,
        "sliding_window": c.window,
        "compress_ratios": [*c.ratios, 0],
        "rope_theta": c.rope_theta,
        "compress_rope_theta": c.compress_theta,
        "rope_scaling": {
            "type": "yarn",
            "factor": c.yarn_factor,
            "original_max_position_embeddings": c.yarn_context,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "max_position_embeddings": c.context,
        "rms_norm_eps": c.rms_eps,
        "n_routed_experts": c.experts,
        "num_experts_per_tok": c.experts_used,
        "n_shared_experts": 1,
        "moe_intermediate_size": c.expert_width,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "routed_scaling_factor": c.routed_scale,
        "num_hash_layers": c.hash_layers,
        "swiglu_limit": c.swiglu_limit,
        "index_n_heads": c.index_heads,
        "index_head_dim": c.index_dim,
        "index_topk": c.index_topk,
        "hc_mult": c.streams,
        "hc_sinkhorn_iters": c.sinkhorn,
        "hc_eps": c.hc_eps,
        "num_nextn_predict_layers": 1,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def write_folder(model: Pocket, folder: Path, tokenizer: Path | None = None) -> None:
    """A checkpoint folder that Penstock opens as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(official_tensors(model), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_json(model.c), indent=1))
    if tokenizer is not None:
        shutil.copy(tokenizer / "tokenizer.json", folder / "tokenizer.json")


def load(path: Path) -> Pocket:
    """A model from what `pocket.train` saved."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    config = saved["config"]
    model = Pocket(PocketConfig(**{**config, "ratios": tuple(config["ratios"])}))
    model.load_state_dict(
        {name: tensor.to(model.state_dict()[name].dtype) for name, tensor in saved["model"].items()}
    )
    return model.eval()


def save(model: Pocket, path: Path, dtype: torch.dtype = torch.float32) -> None:
    state = {
        name: tensor.detach().cpu().to(dtype) if tensor.is_floating_point() else tensor.detach().cpu()
        for name, tensor in model.state_dict().items()
    }
    torch.save({"config": asdict(model.c), "model": state}, path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pocket.export")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path, help="folder with tokenizer.json")
    parser.add_argument("out", type=Path)
    parser.add_argument("--mix", default=MIX, help=f"as for penstock quantize; the package has {MIX}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "pocket"
        write_folder(load(options.checkpoint), folder, options.tokenizer)
        report = convert(folder, options.out, options.mix, mtp_inside=True, overwrite=True)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes, {report.main.bytes_by_type}")


if __name__ == "__main__":
    main()
