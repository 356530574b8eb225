"""Invented tools: names, parameters, and how a request mentions a parameter's value."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from pocket.data import words
from pocket.data.grammar import expand


@dataclass(frozen=True, slots=True)
class Parameter:
    """`phrases` are how a request says the value; `{v}` stands for it.  For a boolean: yes, then no."""

    name: str
    kind: str
    description: str
    phrases: tuple[str, ...]
    values: Callable[[Random], Any]
    options: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": self.kind, "description": self.description}
        return schema | {"enum": list(self.options)} if self.options else schema


@dataclass(frozen=True, slots=True)
class Tool:
    verb: str
    noun: str
    name: str
    parameters: tuple[Parameter, ...]
    required: int  # the first so many parameters

    def schema(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": f"{self.verb.capitalize()} the {self.noun}.",
            "parameters": {
                "type": "object",
                "properties": {parameter.name: parameter.schema() for parameter in self.parameters},
                "required": [parameter.name for parameter in self.parameters[: self.required]],
            },
        }

    def held_out(self) -> bool:
        """One in eight combinations of name and parameters never occurs in training."""
        key = " ".join([self.name, *sorted(parameter.name for parameter in self.parameters)])
        return zlib.crc32(key.encode()) % 8 == 0


def new_tool(rng: Random) -> Tool:
    invented = rng.random() < 0.12
    verb = _syllables(rng) if invented else rng.choice(VERBS)
    noun = _syllables(rng) if invented else rng.choice(NOUNS)
    parameters = tuple(rng.sample(PARAMETERS, rng.choice((0, 1, 1, 1, 2, 2, 2, 3))))
    if rng.random() < 0.12 and parameters:
        parameters = (_invented_parameter(rng), *parameters[1:])
    style = rng.random()
    words_of_name = [verb, *noun.split()]
    if style < 0.85:
        name = "_".join(words_of_name)
    elif style < 0.93:
        name = verb + "".join(word.capitalize() for word in noun.split())
    else:
        name = "-".join(words_of_name)
    required = len(parameters) if rng.random() < 0.6 else min(len(parameters), 1)
    return Tool(verb, noun, name, parameters, required)


VERBS = words.split("""
get set find lock unlock open close start stop send book order play show check update delete create add remove
list read write move copy save load print share rename cancel confirm schedule measure test clean paint build
repair fill empty turn count search fetch sell buy rent pay track call scan sort enable disable reset activate
inspect register
""")
NOUNS = words.phrases("""weather|door|light|alarm|table|ticket|room|train|flight|hotel|song|movie|note|message|email
calendar|meeting|timer|lamp|heater|window|garage|oven|car|taxi|pizza|parcel|invoice|account
contact|photo|document|file|folder|book|recipe|garden|pump|camera|robot|printer|playlist
route|map|score|game|price|stock|news report|shopping list|reminder|blinds|fan|fridge
washing machine|bike|boat|ferry|bus|museum visit|table lamp|gate|sensor|battery|server
backup|password|profile|order|delivery|appointment|doctor visit|class|lesson|translation
dictionary|currency rate|exchange rate|speed limit|water level|air quality|tide|sunrise
moon phase|forecast|traffic|parking spot|charging station|coffee machine|speaker|volume
channel|screen|projector|curtain|elevator""")


def _words(slot: str) -> Callable[[Random], str]:
    return lambda rng: expand(slot, rng)


def _numbers(low: int, high: int) -> Callable[[Random], int]:
    return lambda rng: rng.randrange(low, high)


def _flag(rng: Random) -> bool:
    return rng.random() < 0.6


def _enum(name: str, description: str, phrases: tuple[str, ...], *options: str) -> Parameter:
    return Parameter(name, "string", description, phrases, lambda rng: rng.choice(options), options)


def _syllables(rng: Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randrange(2, 4)))


def _invented_parameter(rng: Random) -> Parameter:
    name = _syllables(rng) if rng.random() < 0.5 else rng.choice(words.THINGS)
    phrases = (f"with {name} {{v}}", f"with {name} set to {{v}}", f"and {name} = {{v}}")
    if rng.random() < 0.5:
        return Parameter(name, "integer", f"The {name}.", phrases, _numbers(0, 1000))
    return Parameter(name, "string", f"The {name}.", phrases, _words("{animal}"))


PARAMETERS = [
    Parameter("city", "string", "Name of the city.", ("in {v}", "for {v}", "in the city of {v}"), _words("{town}")),
    Parameter("location", "string", "Where.", ("in {v}", "at the location {v}"), _words("{town}")),
    Parameter("person", "string", "Name of the person.", ("for {v}", "for my friend {v}"), _words("{name}")),
    Parameter("name", "string", "The name.", ("named {v}", "with the name {v}", "called {v}"), _words("{name}")),
    Parameter("user", "string", "The user.", ("for the user {v}", "as {v}"), _words("{name}")),
    Parameter("day", "string", "Day of the week.", ("on {v}", "for {v}"), _words("{day}")),
    Parameter("month", "string", "The month.", ("in {v}", "for {v}"), _words("{month}")),
    Parameter("time", "string", "Time of day, as HH:MM.", ("at {v}", "for {v}"),
              lambda rng: f"{rng.randrange(24):02}:{rng.choice((0, 15, 30, 45)):02}"),
    Parameter("date", "string", "Date, as YYYY-MM-DD.", ("on {v}", "for the date {v}"),
              lambda rng: f"20{rng.randrange(20, 40)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"),
    Parameter("room", "string", "Which room.", ("in the {v}", "for the {v}"), _words("{room}")),
    Parameter("colour", "string", "The colour.", ("in {v}", "with the colour {v}"), _words("{colour}")),
    Parameter("title", "string", "The title.", ('with the title "{v}"', 'titled "{v}"'), _words("The {adj} {thing}")),
    Parameter("text", "string", "The text.", ('with the text "{v}"', 'saying "{v}"'), _words("{name} likes {food}")),
    Parameter("query", "string", "What to look for.", ('for "{v}"', 'with the query "{v}"'), _words("{adj} {thing}")),
    Parameter("item", "string", "The item.", ("for the item {v}", "with the item {v}"), _words("{thing}")),
    Parameter("animal", "string", "The animal.", ("for the {v}", "with the {v}"), _words("{animal}")),
    Parameter("email", "string", "E-mail address.", ("to {v}", "using the address {v}"),
              lambda rng: f"{rng.choice(words.NAMES).lower()}@{rng.choice(words.PLACES)}.org"),
    Parameter("count", "integer", "How many times.", ("{v} times",), _numbers(2, 100)),
    Parameter("amount", "integer", "The amount.", ("with the amount {v}", "for an amount of {v}"), _numbers(1, 1000)),
    Parameter("level", "integer", "The level, from 0 to 10.", ("at level {v}", "with level {v}"), _numbers(0, 11)),
    Parameter("code", "integer", "A four-digit code.",
              ("with the code {v}", "using code {v}"), _numbers(1000, 10000)),
    Parameter("minutes", "integer", "Minutes.", ("for {v} minutes", "in {v} minutes"), _numbers(1, 121)),
    Parameter("people", "integer", "Number of people.", ("for {v} people",), _numbers(2, 20)),
    Parameter("id", "integer", "The number of the entry.", ("with id {v}", "number {v}"), _numbers(1, 100000)),
    Parameter("temperature", "number", "Degrees.", ("at {v} degrees", "with a temperature of {v}"),
              lambda rng: rng.randrange(20, 500) / 10),
    Parameter("price", "number", "The price.", ("for a price of {v}", "at a price of {v}"),
              lambda rng: rng.randrange(100, 10000) / 100),
    Parameter("urgent", "boolean", "Whether it is urgent.",
              ("and mark it as urgent", "and mark it as not urgent"), _flag),
    Parameter("silent", "boolean", "Whether to do it silently.", ("silently", "with sound"), _flag),
    Parameter("repeat", "boolean", "Whether to repeat it.", ("with repeat", "without repeat"), _flag),
    Parameter("public", "boolean", "Whether everyone can see it.", ("publicly", "privately"), _flag),
    _enum("unit", "The unit.", ("in {v}", "with the unit {v}"), "celsius", "fahrenheit", "kelvin"),
    _enum("size", "The size.", ("in size {v}", "with size {v}"), "small", "medium", "large"),
    _enum("priority", "The priority.", ("with {v} priority", "with priority {v}"), "low", "normal", "high"),
    _enum("language", "The language.", ("in {v}",), "English", "German", "French", "Spanish", "Chinese"),
    _enum("format", "The format.", ("as {v}", "in the format {v}"), "pdf", "text", "json", "html"),
    _enum("mode", "The mode.", ("in {v} mode", "with mode {v}"), "fast", "quiet", "eco", "turbo"),
]  # fmt: skip
