"""Do Penstock and llama.cpp give the same greedy answers with the pocket model?

    python -m benchmarks.pocket_agreement [--count 6] [--seed 1]

llama.cpp rounds activations to eight bits, so where a story may go on in many ways, two nearly equal choices can
swap.  Where they differ for the first time, the gap between Penstock's two best choices is printed.
"""

import argparse
from random import Random

import penstock
from penstock.chat.deepseek_v4.render import render
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path
from pocket.data import MIXTURE, problem
from tests.oracles import llamacpp


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pocket_agreement")
    parser.add_argument("--count", type=int, default=6, help="problems per skill")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    engine = penstock.Engine(pocket_path())
    for skill in MIXTURE:
        rng = Random(f"agreement/{skill}/{options.seed}")
        same, gaps = 0, []
        for _ in range(options.count):
            prompt = render(problem(skill, rng, length=400).conversation).ids(engine.tokenizer)
            steps = list(engine.generate(prompt, 80, Sampling(temperature=0, top_logprobs=2)))
            ours = [step.token for step in steps]
            theirs = llamacpp.generate(pocket_path(), prompt, len(ours))
            if ours == theirs:
                same += 1
                continue
            at = next(n for n in range(len(ours)) if ours[n] != theirs[n])
            (_, best), (_, second) = steps[at].top_logprobs[:2]
            gaps.append(f"{best - second:.3f}")
        differing = f"   log-probability gaps where they part: {', '.join(gaps)}" if gaps else ""
        print(f"{skill:12} {same}/{options.count} the same{differing}", flush=True)


if __name__ == "__main__":
    main()
