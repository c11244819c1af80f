"""Names of the generated encyclopedia, composed of a few known parts, so that a small word-level vocabulary spells every one.

The set of all names is halved by a hash: one half for generated worlds, the other for the text that the tiny base model is
pre-trained on. So no world, whatever its seed, shares an entity with the base model's training text.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from typing import Literal

Kind = Literal["person", "film", "company", "band", "album", "city", "country"]
Half = Literal["world", "pretraining"]


def _join(firsts: str, lasts: str) -> tuple[str, ...]:
    return tuple(a + b for a in firsts.split() for b in lasts.split())


GIVEN = _join("Al Bel Cor Dar El Fen Gar Hel Is Jor Kal Len Mar Nor Os Per Rol Sel Tam Vel", "ric ina wen o mund issa eth ian ora ek")
FAMILY = _join(
    "Ash Bran Crow Dun Ell Fair Gold Hart Kes Lang Mor Nash Pem Rad Stan Thorn Ul Ver Wick Yar",
    "by croft dale ford gate ham ley mere shaw ton well worth",
)
STEM = _join("Ar Bol Cas Dor Es Fal Gren Hol Il Jas Kor Lum Mel Nar Or Pal Quen Ros Sil Tor", "ana dell ento ika mora nys ova stad una vik")
LAND = _join("Bra Cal Dro Esk Fra Gal Hes Ista Jura Kar", "donia land mark nesia ria stan vania zan")
ADJECTIVE = (
    "Amber Ancient Autumn Bitter Blue Bright Broken Burning Calm Cold Crimson Dark Deep Distant Divided Empty Endless Eternal Faded Fallen "
    "Final Forgotten Frozen Gentle Gilded Golden Gray Green Hidden Hollow Humble Idle Iron Ivory Last Lonely Lost Lucky Mad Marble Midnight "
    "Modern Narrow Noble Old Open Pale Paper Perfect Plain Proud Quiet Rapid Red Restless Royal Rusty Sacred Scarlet Second Secret Shallow "
    "Silent Silver Simple Sleeping Small Soft Solemn Stolen Strange Sudden Summer Sweet Tall Tender Third Twisted Velvet Violet Wandering "
    "Warm Weary White Wicked Wild Winter Wooden Yellow Young"
).split()
NOUN = (
    "Anchor Arrow Bell Bridge Candle Canyon Castle Chain Circle Clock Cloud Coast Compass Corner Courage Crown Curtain Daughter Desert Dream "
    "Drum Echo Ember Engine Feather Field Flame Forest Fortune Fountain Garden Gate Ghost Glass Hammer Harbor Heart Highway Horizon Hour House "
    "Island Journey Kingdom Ladder Lantern Letter Light Mask Meadow Memory Mirror Moon Morning Mountain Needle Night Ocean Orchard Palace "
    "Passage Pearl Pilot Portrait Promise Rain Ribbon River Road Rose Sail Season Secretary Shadow Shore Signal Sister Snow Song Spring Star "
    "Station Stone Storm Stranger Street Sword Table Theater Tide Tower Train Valley Village Voyage Wall Window Witness Wolf"
).split()
SEQUEL = "Again Afterwards Beyond Forever Reborn Returns Revisited Tonight".split()
GERUND = (
    "Asking Becoming Breathing Building Calling Carrying Chasing Counting Crossing Dancing Dreaming Drifting Drinking Driving Facing Falling "
    "Finding Flying Following Giving Growing Hearing Holding Hunting Keeping Leaving Lifting Living Losing Making Meeting Missing Moving Naming "
    "Opening Painting Passing Playing Reading Riding Rising Running Sailing Saving Seeing Selling Sending Shaking Sharing Singing Speaking "
    "Spinning Standing Turning Waking Walking Watching Wearing Winning Writing"
).split()
THINGS = (
    "Angels Ashes Bones Books Bricks Butterflies Cards Cities Coins Colors Comets Days Diamonds Doors Engines Eyes Faces Fires Flags Flowers "
    "Gardens Giants Hands Heroes Hills Horses Islands Kings Lamps Leaves Letters Lights Lions Maps Miles Mirrors Mountains Nights Numbers "
    "Oceans Pictures Planets Poems Promises Queens Questions Radios Rivers Roads Roses Secrets Shadows Ships Stars Stones Storms Strings "
    "Towers Trains Trees Voices Walls Waves Wheels Windows Wings Winters Wires Words Years"
).split()
ANIMALS = (
    "Badgers Bears Beavers Bees Crows Deer Dogs Dolphins Doves Eagles Falcons Ferrets Finches Foxes Frogs Geese Goats Hares Hawks Herons "
    "Hounds Jackals Jays Larks Lemurs Lynxes Magpies Moles Moths Mules Newts Orcas Otters Owls Oxen Pandas Panthers Parrots Pigeons Rabbits "
    "Rams Ravens Robins Seals Sharks Sheep Sparrows Spiders Squirrels Storks Swans Tigers Toads Turtles Vipers Wasps Weasels Whales Wrens"
).split()
BUSINESS = "Airlines Brewing Chemicals Electric Foods Instruments Motors Pictures Publishing Railways Shipping Textiles".split()
TOWN = "Bay Beach Bridge Cross Falls Green Harbour Heights Hill Point Springs Vale".split()
QUARTER = "Central East Greater Inner Lower New North Outer South Upper West".split()

_PARTS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "person": (GIVEN, FAMILY),
    "film": (tuple(ADJECTIVE), tuple(NOUN)),
    "company": (STEM, tuple(BUSINESS)),
    "band": (tuple(ADJECTIVE), tuple(ANIMALS)),
    "album": (tuple(GERUND), tuple(THINGS)),
    "city": (STEM, tuple(TOWN)),
    "country": (tuple(QUARTER), LAND),
}
KINDS: tuple[Kind, ...] = tuple(_PARTS)


def words() -> list[str]:
    """Every part of a name, sorted."""
    parts = {word for lists in _PARTS.values() for words_ in lists for word in words_}
    return sorted(parts | set(SEQUEL))


def half_of(name: str) -> Half:
    """Which half a name belongs to; a film's sequel goes with the film."""
    stem = " ".join(word for word in name.split() if word not in SEQUEL)
    return "world" if zlib.crc32(stem.encode()) & 1 else "pretraining"


def draw(kind: Kind, rng: random.Random, half: Half) -> str:
    """One random name of `half`; names repeat."""
    firsts, lasts = _PARTS[kind]
    while True:
        name = f"{rng.choice(firsts)} {rng.choice(lasts)}"
        if half_of(name) == half:
            return f"{name} {rng.choice(SEQUEL)}" if kind == "film" and rng.random() < 0.15 else name


def distinct(kind: Kind, rng: random.Random, half: Half) -> Iterator[str]:
    """All names of `half` once, in random order. About one film in seven has a sequel, whose name begins with the film's."""
    firsts, lasts = _PARTS[kind]
    names = [name for a in firsts for b in lasts if half_of(name := f"{a} {b}") == half]
    rng.shuffle(names)
    for name in names:
        yield name
        if kind == "film" and rng.random() < 0.15:
            yield f"{name} {rng.choice(SEQUEL)}"
