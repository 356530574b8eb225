"""A DSpark module in plain numpy, in double precision: from features of the trunk to guesses."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import Weight

Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Reference:
    """stages and names as in the file; features: of every token that was read [tokens, layers · hidden]"""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.stages = checkpoint.draft_blocks

    def weight(self, name: str) -> Array:
        return self.checkpoint.weight(name).decode().astype(np.float64)

    def rms(self, x: Array) -> Array:
        normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.rms_eps)
        return normed

    def rope(self, x: Array, positions: Array, sign: int = 1) -> Array:
        """x [rows, …, dim]: its last channels turn, in pairs of neighbours"""
        dim = self.config.rope_dim
        f = self.config.rope_theta ** (-np.arange(0, dim, 2) / dim)
        angle = sign * positions.reshape(-1, *[1] * (x.ndim - 1)) * f
        out, pairs = x.copy(), x[..., -dim:].reshape(*x.shape[:-1], dim // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        turned = np.stack((a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)), -1)
        out[..., -dim:] = turned.reshape(*x.shape[:-1], dim)
        return out

    def keys(self, x: Array, block: str, positions: Array) -> Array:
        kv = self.rms(x @ self.weight(f"{block}.attn_kv.weight").T)
        return self.rope(kv * self.weight(f"{block}.attn_kv_a_norm.weight"), positions)

    def attention(self, x: Array, block: str, before: Array, positions: Array) -> Array:
        c, rows = self.config, len(x)
        low = self.rms(x @ self.weight(f"{block}.attn_q_a.weight").T) * self.weight(
            f"{block}.attn_q_a_norm.weight"
        )
        q = (low @ self.weight(f"{block}.attn_q_b.weight").T).reshape(rows, c.heads, c.head_dim)
        q = self.rope(self.rms(q), positions)
        seen = np.concatenate((before, self.keys(x, block, positions)))
        scores = np.einsum("rhd,kd->rhk", q, seen) / c.head_dim**0.5
        weights = np.exp(scores)
        sinks = np.exp(self.weight(f"{block}.attn_sinks.weight"))
        heads = np.einsum("rhk,kd->rhd", weights, seen) / (weights.sum(-1) + sinks)[..., None]
        grouped = self.rope(heads, positions, -1).reshape(rows, c.o_groups, -1)
        out_a = self.weight(f"{block}.attn_output_a.weight").reshape(c.o_groups, -1, grouped.shape[-1])
        middle = np.einsum("rgi,goi->rgo", grouped, out_a).reshape(rows, -1)
        out: Array = middle @ self.weight(f"{block}.attn_output_b.weight").T
        return out

    def swiglu(self, x: Array, gate: Array, up: Array, down: Array, limit: float) -> Array:
        g, u = np.minimum(x @ gate.T, limit), np.clip(x @ up.T, -limit, limit)
        out: Array = (g * sigmoid(g) * u) @ down.T
        return out

    def experts(self, x: Array, block: str) -> Array:
        c, layer = self.config, self.config.mtp_layer
        scores = np.sqrt(np.log1p(np.exp(x @ self.weight(f"{block}.ffn_gate_inp.weight").T)))
        biased = scores + self.weight(f"{block}.exp_probs_b.bias")
        shared = [self.weight(f"{block}.ffn_{part}_shexp.weight") for part in ("gate", "up", "down")]
        out = self.swiglu(x, shared[0], shared[1], shared[2], layer.shared_swiglu_limit)
        for row in range(len(x)):
            chosen = np.argsort(-biased[row], kind="stable")[: c.experts_used]
            weights = scores[row, chosen] * c.routed_scale / scores[row, chosen].sum()
            for number, weight in zip(chosen.tolist(), weights, strict=True):
                parts = [
                    Weight(self.checkpoint.expert(block, number, part)).decode().astype(np.float64)
                    for part in ("gate", "up", "down")
                ]
                found = self.swiglu(x[row : row + 1], parts[0], parts[1], parts[2], layer.swiglu_limit)
                out[row] += weight * found[0]
        return out

    def mixed(self, streams: Array, name: str, sublayer: Any) -> Array:
        """A sublayer behind its hyper-connection."""
        n, eps = self.config.streams, self.config.hc_eps
        fn, base, scale = (self.weight(f"{name}_{leaf}.weight") for leaf in ("fn", "base", "scale"))
        mix = self.rms(streams.reshape(len(streams), -1)) @ fn.T
        pre = sigmoid(mix[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * sigmoid(mix[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        comb = (mix[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
        comb = np.exp(comb - comb.max(-1, keepdims=True))
        comb = comb / comb.sum(-1, keepdims=True) + eps
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        for _ in range(self.config.sinkhorn_iterations - 1):
            comb = comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        y = sublayer(np.einsum("rn,rnd->rd", pre, streams))
        out: Array = post[..., None] * y[:, None] + np.einsum("rij,rid->rjd", comb, streams)
        return out

    def stage(self, streams: Array, block: str, before: Array, positions: Array) -> Array:
        def attend(x: Array) -> Array:
            normed = self.rms(x) * self.weight(f"{block}.attn_norm.weight")
            return self.attention(normed, block, before, positions)

        def feed(x: Array) -> Array:
            return self.experts(self.rms(x) * self.weight(f"{block}.ffn_norm.weight"), block)

        return self.mixed(self.mixed(streams, f"{block}.hc_attn", attend), f"{block}.hc_ffn", feed)

    def drafts(self, features: Array, token: int, first: int = 0) -> list[tuple[int, float]]:
        """After `token`, which follows all that was read; first: the position from which on windows have rows"""
        c, position = self.config, len(features)
        main = self.rms(features @ self.weight("mtp.0.main_proj.weight").T) * self.weight(
            "mtp.0.main_norm.weight"
        )
        since = max(first, position - c.window)
        placeholder = min(128_799, c.vocab_size - 1)
        embedded = self.weight("token_embd.weight")[[token, *[placeholder] * 4]]
        streams = np.repeat(embedded[:, None], c.streams, axis=1)
        places = np.arange(position, position + 5)
        for block in self.stages:
            before = self.keys(main[since:], block, np.arange(since, position))
            streams = self.stage(streams, block, before, places)
        last = self.stages[-1]
        fn, base, scale = (self.weight(f"{last}.hc_head_{leaf}.weight") for leaf in ("fn", "base", "scale"))
        pre = sigmoid(self.rms(streams.reshape(5, -1)) @ fn.T * scale + base) + c.hc_eps
        hidden = np.einsum("rn,rnd->rd", pre, streams)
        logits = self.rms(hidden) * self.weight(f"{last}.norm.weight") @ self.weight("output.weight").T
        w1, w2 = (self.weight(f"{last}.markov_w{number}.weight") for number in (1, 2))
        confidence, found = self.weight(f"{last}.conf_proj.weight")[0], []
        for row, x in zip(logits, hidden, strict=True):
            said = w1[token]
            token = int((row + w2 @ said).argmax())
            found.append((token, float(sigmoid(confidence @ np.concatenate((x, said))))))
        return found
