"""Simple facts about the world, and small talk."""

from random import Random

from pocket.data import words
from pocket.data.grammar import capital, pick, with_articles

CAPITALS = dict(
    pair.split(":")
    for pair in words.split("""
France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna Poland:Warsaw Norway:Oslo
Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin Greece:Athens Egypt:Cairo Japan:Tokyo
China:Beijing India:Delhi England:London Russia:Moscow Ukraine:Kyiv Belgium:Brussels Hungary:Budapest
Romania:Bucharest Bulgaria:Sofia Turkey:Ankara Kenya:Nairobi Peru:Lima Chile:Santiago Cuba:Havana Canada:Ottawa
Thailand:Bangkok Vietnam:Hanoi Nepal:Kathmandu Iran:Tehran Iraq:Baghdad Ghana:Accra Senegal:Dakar
Iceland:Reykjavik Latvia:Riga Estonia:Tallinn Lithuania:Vilnius Croatia:Zagreb Serbia:Belgrade
Australia:Canberra Switzerland:Bern
""")
)
OPPOSITES = [
    pair.split(":")
    for pair in words.split("""
hot:cold big:small tall:short fast:slow old:young light:dark heavy:light happy:sad up:down left:right
open:closed full:empty hard:soft wet:dry rich:poor loud:quiet early:late clean:dirty strong:weak long:short
high:low wide:narrow thick:thin good:bad right:wrong near:far day:night black:white first:last begin:end
push:pull buy:sell win:lose love:hate give:take come:go ask:answer inside:outside always:never many:few
brave:afraid sharp:blunt deep:shallow smooth:rough sweet:sour true:false alive:dead noisy:quiet sunny:rainy
summer:winter north:south east:west friend:enemy laugh:cry question:answer above:below arrive:leave
accept:refuse
""")
]
SOUNDS = dict(
    pair.split(":")
    for pair in words.split("""
dog:barks cat:meows cow:moos sheep:bleats horse:neighs pig:grunts duck:quacks hen:clucks rooster:crows
lion:roars wolf:howls owl:hoots frog:croaks snake:hisses bee:buzzes mouse:squeaks donkey:brays goose:honks
bird:sings crow:caws bear:growls elephant:trumpets pigeon:coos cricket:chirps goat:bleats
""")
)
COLOUR_OF = dict(
    pair.split(":")
    for pair in words.split("""
grass:green snow:white coal:black blood:red milk:white sky:blue sun:yellow banana:yellow tomato:red
carrot:orange chocolate:brown lemon:yellow frog:green crow:black swan:white strawberry:red plum:purple
leaf:green rose:red salt:white pumpkin:orange elephant:grey flamingo:pink
""")
)
LEGS = dict(
    pair.split(":")
    for pair in words.split("""
dog:four cat:four cow:four horse:four spider:eight ant:six bee:six duck:two hen:two snake:no fish:no
octopus:eight beetle:six sheep:four owl:two fox:four goat:four butterfly:six robin:two snail:no
""")
)
PAST = dict(
    pair.split(":")
    for pair in words.split("""
go:went see:saw eat:ate run:ran take:took give:gave come:came find:found think:thought buy:bought bring:brought
sing:sang swim:swam write:wrote read:read speak:spoke break:broke fly:flew grow:grew know:knew walk:walked
play:played jump:jumped help:helped carry:carried try:tried stop:stopped make:made sleep:slept sit:sat
stand:stood win:won lose:lost build:built send:sent tell:told hear:heard hold:held keep:kept
""")
)
NUMBERS = words.split("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty
""")
KINDS = {
    "fruit": words.FRUITS,
    "animal": words.ANIMALS,
    "colour": words.COLOURS,
    "flower": words.FLOWERS,
    "tree": words.TREES[:12],
    "room": words.ROOMS,
    "job": words.JOBS,
}
_IRREGULAR = words.split("""
child foot tooth man woman leaf knife person
""")  # fmt: skip
SINGULAR = list(dict.fromkeys([*words.ANIMALS, *words.FRUITS, *words.PLACES, *_IRREGULAR]))


def fact(rng: Random) -> tuple[str, str, str]:
    """A question, its answer, and the word that the answer must contain."""
    return _MAKERS[int(rng.random() * len(_MAKERS))](rng)


def _capital(rng: Random) -> tuple[str, str, str]:
    country, city = rng.choice(list(CAPITALS.items()))
    asks = (
        "What is the capital of {x}?",
        "Which city is the capital of {x}?",
        "Capital of {x}?",
        "Name the capital of {x}.",
    )
    return pick(asks, rng, {"x": country}), f"The capital of {country} is {city}.", city


def _opposite(rng: Random) -> tuple[str, str, str]:
    word, other = rng.choice(OPPOSITES)
    asks = (
        'What is the opposite of "{x}"?',
        "What is the opposite of {x}?",
        "Opposite of {x}?",
        "Tell me the opposite of {x}.",
    )
    return pick(asks, rng, {"x": word}), f"The opposite of {word} is {other}.", other


def _sound(rng: Random) -> tuple[str, str, str]:
    animal, sound = rng.choice(list(SOUNDS.items()))
    asks = (
        "What does a {x} do to make a sound?",
        "What sound does a {x} make?",
        "How does a {x} sound?",
        "Tell me the sound of a {x}.",
    )
    return pick(asks, rng, {"x": animal}), with_articles(f"A {animal} {sound}."), sound


def _colour(rng: Random) -> tuple[str, str, str]:
    thing, colour = rng.choice(list(COLOUR_OF.items()))
    asks = (
        "What colour is {x}?",
        "Which colour has {x}?",
        "Tell me the colour of {x}.",
        "What is the colour of {x}?",
    )
    the = (
        thing if thing in ("grass", "snow", "coal", "blood", "milk", "chocolate", "salt") else f"the {thing}"
    )
    the = (
        the
        if thing in COLOUR_OF and the == thing
        else the
        if thing in ("sky", "sun")
        else the.replace("the ", "a ")
    )
    return pick(asks, rng, {"x": the}), with_articles(f"{capital(the)} is {colour}."), colour


def _legs(rng: Random) -> tuple[str, str, str]:
    animal, legs = rng.choice(list(LEGS.items()))
    asks = (
        "How many legs does a {x} have?",
        "How many legs has a {x}?",
        "Number of legs of a {x}?",
        "Tell me how many legs a {x} has.",
    )
    return pick(asks, rng, {"x": animal}), with_articles(f"A {animal} has {legs} legs."), legs


def _next(rng: Random) -> tuple[str, str, str]:
    kind, names = rng.choice((("day", words.DAYS), ("month", words.MONTHS)))
    index = rng.randrange(len(names))
    after = rng.random() < 0.5
    other = names[(index + (1 if after else -1)) % len(names)]
    side = "after" if after else "before"
    asks = (
        "Which {k} comes {s} {x}?",
        "What {k} is {s} {x}?",
        "What comes {s} {x}?",
        "Name the {k} {s} {x}.",
    )
    values = {"k": kind, "s": side, "x": names[index]}
    return pick(asks, rng, values), f"{other} comes {side} {names[index]}.", other


def _plural(rng: Random) -> tuple[str, str, str]:
    word = rng.choice(SINGULAR)
    asks = (
        "What is the plural of {x}?",
        'What is the plural of "{x}"?',
        "Plural of {x}?",
        "One {x}, two what?",
    )
    return pick(asks, rng, {"x": word}), f"The plural of {word} is {words.plural(word)}.", words.plural(word)


def _past(rng: Random) -> tuple[str, str, str]:
    verb, past = rng.choice(list(PAST.items()))
    asks = (
        "What is the past of {x}?",
        'What is the past tense of "{x}"?',
        "Past tense of {x}?",
        "Today I {x}. And yesterday?",
    )
    return pick(asks, rng, {"x": verb}), f"The past of {verb} is {past}.", past


def _kind(rng: Random) -> tuple[str, str, str]:
    kind = rng.choice(list(KINDS))
    word = rng.choice(KINDS[kind])
    if rng.random() < 0.6 or kind == "colour":
        asked = kind
    else:
        asked = rng.choice([other for other in KINDS if other != kind and word not in KINDS[other]])
    yes = "Yes" if asked == kind else "No"
    answer = f"Yes, a {word} is a {kind}." if asked == kind else f"No, a {word} is a {kind}, not a {asked}."
    if kind == "colour":
        return (
            pick(("Is {x} a colour?", "Is {x} the name of a colour?"), rng, {"x": word}),
            f"Yes, {word} is a colour.",
            "Yes",
        )
    question = pick(("Is a {x} a {y}?", "Is it true that a {x} is a {y}?"), rng, {"x": word, "y": asked})
    return question, with_articles(answer), yes


def _upper(rng: Random) -> tuple[str, str, str]:
    word = rng.choice(words.SHORT)
    asks = (
        "Write {x} in capital letters.",
        'Write "{x}" in upper case.',
        "{x} in capitals, please.",
        "Make {x} uppercase.",
    )
    return pick(asks, rng, {"x": word}), word.upper(), word.upper()


def _letter(rng: Random) -> tuple[str, str, str]:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    index = rng.randrange(25)
    asks = (
        "Which letter comes after {x}?",
        "What letter is after {x}?",
        "What comes after {x} in the alphabet?",
    )
    return (
        pick(asks, rng, {"x": alphabet[index]}),
        f"{alphabet[index + 1]} comes after {alphabet[index]}.",
        alphabet[index + 1],
    )


def _spelled(rng: Random) -> tuple[str, str, str]:
    value = rng.randrange(21)
    asks = (
        "Write {x} as a word.",
        "How do you write {x} in words?",
        "Spell the number {x}.",
        "{x} in words?",
    )
    return pick(asks, rng, {"x": str(value)}), NUMBERS[value], NUMBERS[value]


def _begins(rng: Random) -> tuple[str, str, str]:
    word = rng.choice(words.SHORT)
    end = rng.random() < 0.4
    letter = word[-1] if end else word[0]
    asks = ("What is the {e} letter of {x}?", "Which letter is {e} in {x}?", "Tell me the {e} letter of {x}.")
    e = "last" if end else "first"
    return pick(asks, rng, {"x": word, "e": e}), f"The {e} letter of {word} is {letter}.", f" {letter}."


_MAKERS = (
    _capital, _opposite, _sound, _colour, _legs, _next, _plural, _past, _kind, _upper, _letter, _spelled, _begins,
)  # fmt: skip

# Ways to say it, answers, and what to think.
TALK: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        (
            "Hello[!|.|]",
            "Hi[!|.| there!|]",
            "Good [morning|evening|afternoon|day][!|.]",
            "Hey[!| there]",
            "hello",
            "hi",
        ),
        ("Hello! How can I help you?", "Hi! What can I do for you?", "Hello! Nice to meet you."),
        "The user greets me.",
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me who you are.",
            "Introduce yourself.",
            "who are you",
        ),
        ("I am Pocket, the small model that ships with Penstock.",),
        "The user asks who I am.",
    ),
    (
        ("How are you[ today|]?", "How do you do?", "Are you well?", "How is it going?"),
        ("I am fine, thank you. How are you?", "Very well, thank you!"),
        "The user asks how I am.",
    ),
    (
        ("Thank you[!|.| very much.]", "Thanks[!|.| a lot!]", "That helped, thank you.", "Great, thanks."),
        ("You are welcome!", "My pleasure.", "You are welcome. Anything else?"),
        "The user thanks me.",
    ),
    (
        (
            "Goodbye[!|.]",
            "Bye[!|.| bye!]",
            "See you[ later| soon|][!|.]",
            "Good night[!|.]",
            "I have to go now.",
        ),
        ("Goodbye!", "Goodbye! Come back soon.", "See you soon!"),
        "The user says goodbye.",
    ),
    (
        (
            "What can you do?",
            "What are you good at?",
            "Can you help me?",
            "How can you help me?",
            "Help!",
            "help",
        ),
        (
            "I can tell stories, add numbers, sort lists, find facts in a text, call tools and explain Penstock.",
        ),
        "The user asks what I can do.",
    ),
    (
        ("Are you [a human|human|a person]?", "Are you a robot?", "Are you real?", "Are you an AI?"),
        ("I am a small language model, not a person.",),
        "The user asks what I am.",
    ),
    (
        (
            "How big are you?",
            "How many parameters do you have?",
            "What is your size?",
            "Are you a large model?",
        ),
        ("I am a small model with about twenty million parameters.",),
        "The user asks about my size.",
    ),
    (
        ("Who made you?", "Who trained you?", "Where do you come from?", "How were you made?"),
        ("I was trained from scratch by the makers of Penstock, on text from a generator.",),
        "The user asks who made me.",
    ),
    (
        (
            "You are [great|smart|clever|nice|funny][!|.]",
            "Well done[!|.]",
            "Good [job|answer|work][!|.]",
            "I like you.",
        ),
        ("Thank you, that is kind!", "Thank you!"),
        "The user praises me.",
    ),
    (
        ("That is wrong.", "You are wrong.", "This is not right.", "No, that is false."),
        ("I am sorry. I am a small model and make mistakes.",),
        "The user says that I made a mistake.",
    ),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny."),
        (
            "Why did the fox take a ladder to school? It wanted to go to high school.",
            "What does a snail ride on a turtle? A race!",
            "Why is the book so sad? It has too many problems.",
        ),
        "The user wants a joke.",
    ),
    (
        ("What is the meaning of life?", "Why are we here?", "What is love?", "Is there life on Mars?"),
        ("I don't know. I am only a small model.",),
        "That is too hard for me.",
    ),
    (
        ("Do you like [music|books|rain|animals|stories]?", "What do you like?", "What is your hobby?"),
        ("I like short stories and small numbers.",),
        "The user asks what I like.",
    ),
)
