"""Short stories from plots: a hero, a place, something that goes wrong, attempts, a helper, an end."""

import re
from random import Random

from pocket.data import plots, words
from pocket.data.core import Answer, Check, Dialogue, Exchange, Request, dialogue
from pocket.data.grammar import capital, expand, pick, with_articles

_SENTENCE_END = re.compile(r'[.!?]"?(?=\s|$)')


def build(rng: Random, request: Request) -> Dialogue:
    return dialogue([exchange(rng)], request)


def exchange(rng: Random) -> Exchange:
    style = rng.random()
    if style < 0.68:
        return _whole(rng)
    if style < 0.84:
        return _three_sentences(rng)
    return _continuation(rng)


def tell(rng: Random, plot: plots.Plot, cast: dict[str, str], ending: str = "") -> list[str]:
    """A story as paragraphs."""
    known = cast | {"lesson": rng.choice(plot.lessons)}
    return [" ".join(pick(beat, rng, known) for beat in beats) for beats in plot.paragraphs(ending)]


def new_cast(rng: Random) -> dict[str, str]:
    """Values for every slot that must stay the same throughout one story."""
    girl, helper_girl = rng.random() < 0.5, rng.random() < 0.5
    hero = rng.choice(words.GIRLS if girl else words.BOYS)
    helper = rng.choice([name for name in (words.GIRLS if helper_girl else words.BOYS)[:60] if name != hero])
    kind = rng.choice(words.ANIMALS if rng.random() < 0.65 else words.JOBS)
    helper_kind = rng.choice([animal for animal in words.ANIMALS[:90] if animal != kind])
    cast = {"hero": hero, "kind": kind, "helper": helper, "helperkind": helper_kind}
    cast |= _pronouns(girl, "") | _pronouns(helper_girl, "2")
    for slot, source in _FIXED.items():
        cast[slot] = rng.choice(words.LISTS[source])
    cast["spot2"] = rng.choice([spot for spot in words.SPOTS if spot != cast["spot"]])
    cast["when"] = expand(rng.choice(words.TIMES), rng, cast)
    return cast


def sentences(text: str) -> int:
    return len(_SENTENCE_END.findall(text))


_FIXED = {
    "thing": "thing",
    "adj": "adj",
    "place": "place",
    "trait": "trait",
    "trait2": "trait",
    "season": "season",
    "weather": "weather",
    "spot": "spot",
    "fear": "fear",
    "skill": "skill",
    "trap": "trap",
    "craft": "craft",
    "food": "food",
    "plant": "plant",
    "sound": "sound",
    "tree": "tree",
    "hobby": "hobby",
}


def _pronouns(girl: bool, suffix: str) -> dict[str, str]:
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    return {
        f"he{suffix}": he,
        f"him{suffix}": him,
        f"his{suffix}": his,
        f"He{suffix}": capital(he),
        f"His{suffix}": capital(his),
    }


def _about(rng: Random, cast: dict[str, str]) -> tuple[str, list[str]]:
    """What the story is asked to be about, and the words that must then occur in it."""
    choices = (
        ("a {kind} and a {thing}", ["kind", "thing"]),
        ("a {kind} and a {thing}", ["kind", "thing"]),
        ("a {trait} {kind}", ["kind"]),
        ("{hero} the {kind}", ["hero", "kind"]),
        ("a {kind} named {hero}", ["hero", "kind"]),
        ("a {kind} in a {place}", ["kind", "place"]),
        ("a {thing}", ["thing"]),
        ("a {kind}", ["kind"]),
        ("a {adj} {thing}", ["adj", "thing"]),
        ("a {kind}, a {helperkind} and a {thing}", ["kind", "helperkind", "thing"]),
        ("{hero} and a {thing}", ["hero", "thing"]),
        ("{hero} and {helper}", ["hero", "helper"]),
    )
    template, slots = choices[int(rng.random() * len(choices))]
    return expand(template, rng, cast), [cast[slot] for slot in slots]


def _whole(rng: Random) -> Exchange:
    cast = new_cast(rng)
    about, required = _about(rng, cast)
    ending = rng.choice(("", "", "", "", "happy", "happy", "sad"))
    asked = {"about": about, "end": f" with a {ending} end" if ending else ""}
    question = pick(
        (
            "Tell me a [short |]story about {about}{end}.",
            "Write a [short |little |]story about {about}{end}.",
            "Can you tell [me |]a story about {about}{end}?",
            "I want a [short |]story about {about}{end}.",
            "Please tell me a story about {about}{end}.",
            "A story about {about}{end}, please.",
            "[Make up|Invent] a story about {about}{end}.",
            "Tell a [bedtime |]story about {about}{end}.",
        ),
        rng,
        asked,
    )
    plot = rng.choice(plots.PLOTS)
    text = "\n\n".join(tell(rng, plot, cast, ending))
    plan = expand("A story about {about}. Hero: {hero} the {kind}. ", rng, cast | asked) + expand(
        plot.plan, rng, cast
    )
    plan += f" The end is {ending}." if ending else ""
    return Exchange(question, text, plan, _mentions(required))


def _three_sentences(rng: Random) -> Exchange:
    cast = new_cast(rng)
    about, required = _about(rng, cast)
    question = pick(
        (
            "Tell me a story about {about} in three sentences.",
            "Write a story in three sentences about {about}.",
            "In three sentences, tell a story about {about}.",
            "A story about {about} in exactly three sentences[, please|].",
        ),
        rng,
        {"about": about},
    )
    text = " ".join(pick(beat, rng, cast) for beat in rng.choice(plots.THREE))
    plan = expand("Three sentences. One: the {kind} {hero}. Two: the {thing}. Three: the end.", rng, cast)
    mentions = _mentions(required, shortest=15)
    return Exchange(question, text, plan, lambda answer: mentions(answer) and sentences(answer.content) == 3)


def _continuation(rng: Random) -> Exchange:
    cast = new_cast(rng)
    start, *rest = tell(rng, rng.choice(plots.PLOTS), cast)
    if rng.random() < 0.3:  # cut inside a sentence
        at = rng.randrange(len(start) // 3, len(start))
        at = start.find(" ", at)
        at = at if at > 0 else len(start)
        start, tail = start[:at], start[at:].strip()
        rest = [tail, *rest] if tail else rest
    question = pick(
        (
            "Continue: {start}",
            "Continue [this|the] story: {start}",
            "How does [this|the] story go on? {start}",
            "Finish [this|the] story: {start}",
        ),
        rng,
        {"start": start},
    )
    plan = expand("The story is about {hero} the {kind} and the {thing}. I go on from there.", rng, cast)
    return Exchange(question, with_articles("\n\n".join(rest)), plan, _mentions([cast["hero"]], shortest=20))


def _mentions(required: list[str], shortest: int = 40) -> Check:
    wanted = [word.lower() for word in required]

    def check(answer: Answer) -> bool:
        text = answer.content.lower()
        return answer.finished and len(text.split()) >= shortest and all(word in text for word in wanted)

    return check
