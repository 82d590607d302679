"""The stages in order, with the seconds that each may take."""
from bench import profile, smoke, speed, tiers
from checks import sanitizer, shape, tests
from service import server, transformers

ALL = {
    "smoke": (smoke, 120),
    "tests": (tests, 400),
    "shape": (shape, 240),
    "speed": (speed, 300),
    "tiers": (tiers, 300),
    "profile": (profile, 240),
    "sanitizer": (sanitizer, 400),
    "server": (server, 240),
    "transformers": (transformers, 200),
}
