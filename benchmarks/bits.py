"""Do two versions compute the same bits?  Hashes of logits of the pocket model and of tiny models of every kind.

    python -m benchmarks.bits record FOLDER    # makes the models, runs them, notes hashes and saves sessions
    python -m benchmarks.bits check FOLDER     # runs the same models again, continues the saved sessions, compares
    python -m benchmarks.bits check            # makes the models anew and compares with the hashes in bits.json

Only the public interface is used, so `record` with one version and `check` with another tell whether anything that
a user could see has changed.  Hashes in bits.json are those of processors with fused multiply-add.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

import penstock
from penstock.pocket import pocket_path
from penstock.weights import synth as synthetic
from penstock.weights.layout import Role
from penstock.weights.types import IQ3_S, IQ4_NL, IQ4_XS, Q3_K, Q4_0, Q5_0, Q5_K, Q6_K
from tests.model.test_against_transformers import VARIANTS
from tests.oracles import hf
from tests.weights.official import official_checkpoint, official_config

KNOWN: Final = Path(__file__).with_name("bits.json")
SEED: Final = 7

# Types that no kernel multiplies as they are, one in every place of the model.
synthetic.MIXES["decoded"] = {
    **dict.fromkeys((Role.ATTENTION, Role.SHARED), Q5_0),
    **dict.fromkeys((Role.EMBEDDING, Role.INDEXER, "indexer.attn_q_b"), Q4_0),
    Role.COMPRESSOR: Q5_K,
    **dict.fromkeys(("attn_compressor_ape", "indexer_compressor_ape"), Q4_0),
    Role.ROUTER: Q6_K,
    Role.HEAD: Q6_K,
    Role.MIXING: IQ4_NL,
    "indexer.proj": Q3_K,
    "ffn_gate_exps": IQ4_XS,
    "ffn_up_exps": IQ3_S,
    "ffn_down_exps": Q6_K,
}


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of every model; those that are not there yet are made."""
    yield "pocket", pocket_path()
    for mix in synthetic.MIXES:
        path = folder / f"{mix}.gguf"
        if not path.exists():
            synthetic.synth(path, mix=mix, seed=SEED)
        yield f"synthetic {mix}", path
    for number, (name, (_, overrides)) in enumerate({"plain": (0, {}), **VARIANTS}.items()):
        path = folder / f"transformers-{number}"
        if not path.exists():
            hf.save(hf.random_model(hf.tiny_config(**overrides), SEED), path)
        yield f"transformers, {name}", path
    path = folder / "official"
    if not path.exists():
        official_checkpoint(path, official_config(), SEED, mtp=True)
    yield "official FP8 and FP4 with a draft block", path


VARIATIONS: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "f32, chunks of 50": {"kv_dtype": "f32", "prefill_chunk": 50},
    "bf16, simulated": {"kv_dtype": "bf16", "simulate_low_precision": True},
    "direct": {"streaming": "direct", "memory": "2GiB"},
}


class Hasher:
    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, logits: Any) -> None:
        self._digest.update(np.ascontiguousarray(logits, np.float32).tobytes())

    def result(self) -> str:
        return self._digest.hexdigest()[:16]


def run(engine: penstock.Engine, saved: Path) -> str:
    """Prompts, decoding, batches, rewinding, forks, drafts: everything a session does, in one hash."""
    hashed, vocab = Hasher(), engine.config.vocab_size
    ids = [(7 * number * number + 3 * number + 1) % vocab for number in range(420)]
    first, second = engine.session(), engine.session()
    hashed.add(first.feed(ids[:300], logits="all"))
    hashed.add(second.feed(ids[20:33], logits="all"))
    for token in ids[300:340]:
        hashed.add(first.feed([token]))
    for number in range(8):
        for part in engine.feed(
            [(first, [ids[340 + number]]), (second, ids[40 + number : 43 + number])], "all"
        ):
            hashed.add(part)
    branch = first.fork()
    first.rewind(9)
    for session in (first, branch):
        hashed.add(session.feed(ids[350:360]))
    if engine.checkpoint.has_mtp:
        hashed.add(engine.mtp_logits(first, ids[360]))
    first.save(saved)
    return hashed.result()


def continued(engine: penstock.Engine, saved: Path) -> str:
    """What follows a session that was saved."""
    hashed, session = Hasher(), engine.load_session(saved)
    for token in range(5):
        hashed.add(session.feed([token + 1]))
    session.rewind(3)
    hashed.add(session.feed([4, 2]))
    return hashed.result()


def results(folder: Path, sessions: Path, tell: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    sessions.mkdir(exist_ok=True)
    for name, path in models(folder):
        for variation, options in VARIATIONS.items():
            case = f"{name}: {variation}"
            if name.endswith("odd sizes") and "simulate_low_precision" in options:
                continue  # its indexer's width is no power of two
            tell(case)
            file = sessions / f"{case.replace(' ', '_')}.session"
            with penstock.Engine(path, context=512, max_rewind=16, **options) as engine:
                fresh = not file.exists()
                yield case, run(engine, file if fresh else file.with_suffix(".again"))
                yield f"{case}, continued", continued(engine, file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("folder", type=Path, nargs="?")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = parsed.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        noted = folder / "bits.json" if parsed.folder else KNOWN
        found = dict(results(folder, folder / "sessions", lambda case: print(case, file=sys.stderr)))
    if parsed.action == "record":
        noted.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} results noted in {noted}")
        return
    expected = json.loads(noted.read_text())
    different = [case for case in expected if found.get(case) != expected[case]]
    for case in different:
        print(f"differs: {case}: {expected[case]} before, {found.get(case)} now")
    print(f"{len(expected) - len(different)} of {len(expected)} results are the same bits")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
