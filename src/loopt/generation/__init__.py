"""Generation: cached decoding with any number of loops, in batches, with exits or drafts."""

from loopt.generation.cache import CachePolicy, KeyValueCache, cache_bytes
from loopt.generation.decoder import Decoder
from loopt.generation.engine import Engine, generate, stream
from loopt.generation.exits import Divergence, Entropy, ExitRule, Gate, StateChange, parse_exit
from loopt.generation.row import Completion, Piece
from loopt.generation.settings import Settings

__all__ = [
    "CachePolicy",
    "Completion",
    "Decoder",
    "Divergence",
    "Engine",
    "Entropy",
    "ExitRule",
    "Gate",
    "KeyValueCache",
    "Piece",
    "Settings",
    "StateChange",
    "cache_bytes",
    "generate",
    "parse_exit",
    "stream",
]
