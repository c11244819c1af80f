"""Facts and how an encyclopedia words them: passages in several paraphrases, and one plain statement a fact.

Shared by the demo world, the text that the tiny base model is pre-trained on, and the simulated teacher.
"""

from __future__ import annotations

import random

from r3flow.data.names import Kind

RELATIONS: dict[Kind, dict[str, Kind | None]] = {
    "person": {"birth year": None, "birthplace": "city", "spouse": "person"},
    "film": {"director": "person", "producer": "company", "release year": None},
    "company": {"founder": "person", "headquarters": "city"},
    "band": {"leader": "person", "hometown": "city"},
    "album": {"band": "band", "release year": None},
    "city": {"country": "country"},
    "country": {"capital": "city"},
}
"""The relations of a kind of entity and the kind of their objects; None is a year."""

BIRTH_YEARS = range(1900, 1970)
RELEASE_YEARS = range(1930, 2000)

OCCUPATIONS = "architect chemist dancer engineer journalist lawyer novelist painter physician pilot sculptor teacher".split()
GENRES = "adventure comedy crime drama fantasy historical horror musical mystery romance thriller war".split()
STYLES = "blues country disco folk funk jazz metal pop punk rock soul swing".split()

_TEMPLATES: dict[Kind, tuple[str, ...]] = {
    "person": (
        "{name} was born in {birth year} in {birthplace}. {name} worked as {a} {detail} and married {spouse}.",
        "{name}, {a} {detail} from {birthplace}, was born in {birth year} and was the partner of {spouse}.",
        "Born in {birthplace} in {birth year}, {name} became {a} {detail}. {name} is married to {spouse}.",
        "{name} ({birth year}) is {a} {detail} and the spouse of {spouse}. The birthplace of {name} is {birthplace}.",
    ),
    "film": (
        "{name} is {a} {detail} film of {release year}. It was directed by {director} and produced by {producer}.",
        "{name} is {a} {release year} {detail} film by the director {director}. The studio was {producer}.",
        "Released in {release year} and financed by {producer}, {name} is {a} {detail} film that {director} directed.",
        "{director} made the {detail} film {name} for {producer}. {name} opened in {release year}.",
    ),
    "company": (
        "{name} is a company with headquarters in {headquarters}. It was founded by {founder}.",
        "{founder} started the company {name}, which is based in {headquarters}.",
        "The firm {name} was set up by {founder} and has its main office in {headquarters}.",
    ),
    "band": (
        "{name} are {a} {detail} band from {headquarters}. Their leader is {leader}.",
        "{name} is {a} {detail} group led by {leader} and formed in {headquarters}.",
        "Formed in {headquarters}, {name} play {detail} music under {leader}.",
    ),
    "album": (
        "{name} is {a} {detail} album by {band}, released in {release year}.",
        "In {release year} the band {band} recorded {name}, {a} {detail} album.",
        "{name} is a record of {release year} by the {detail} band {band}.",
    ),
    "city": (
        "{name} is a city in {country}.",
        "{name} is a town of {country} with an old market.",
        "The city of {name} lies on the coast of {country}.",
    ),
    "country": (
        "{name} is a country. Its capital is {capital}.",
        "{capital} is the capital of the country {name}.",
    ),
}
_DETAILS: dict[Kind, list[str]] = {"person": OCCUPATIONS, "film": GENRES, "band": STYLES, "album": STYLES}


def word_passage(kind: Kind, name: str, facts: dict[str, str], rng: random.Random) -> str:
    """One passage about `name`, in one of several wordings; every fact is in it."""
    template = rng.choice(_TEMPLATES[kind])
    detail = rng.choice(_DETAILS.get(kind, ["plain"]))
    follows = detail if "{a} {detail}" in template else facts.get("release year", "x")
    article = "an" if follows[0] in "aeiou" else "a"
    values = {**facts, "name": name, "detail": detail, "a": article}
    if kind == "band":
        values["headquarters"] = facts["hometown"]
    for key, value in values.items():
        template = template.replace("{" + key + "}", value)
    return template


def state(relation: str, subject: str, value: str) -> str:
    """The plain statement of a fact."""
    return f"The {relation} of {subject} is {value}."


def compare(earlier: bool, a: str, year_a: str, b: str, year_b: str) -> str:
    """The statements that settle a comparison of two years, in steps that a small model can take one by one.

    For example "1921: Red Rose. 1950: Old Gate. earlier 1921: Red Rose. later 1950: Old Gate. The later is Old Gate."
    """
    (low, first), (high, last) = sorted([(year_a, a), (year_b, b)])
    order = f"earlier {low}: {first}. later {high}: {last}."
    return f"{year_a}: {a}. {year_b}: {b}. {order} The {'earlier' if earlier else 'later'} is {first if earlier else last}."
