"""How to generate: how many tokens, how each is chosen, with how many loops, and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass

from loopt.errors import InputError, require
from loopt.generation.cache import CachePolicy, PolicyName
from loopt.generation.exits import ExitRule
from loopt.generation.sampling import Sampling
from loopt.limits import INT64, LARGEST
from loopt.model import LoopedTransformer


@dataclass(frozen=True)
class Settings(Sampling):
    """How to generate."""

    max_new_tokens: int = 64
    """The most tokens to add to a prompt; fewer where the model's max_len is reached."""
    stop: tuple[str, ...] = ()
    """Texts to stop before."""
    stop_ids: tuple[int, ...] = ()
    """Tokens to stop at, besides the one that ends a text."""
    samples: int = 1
    """Completions of each prompt."""
    seed: int = 0
    """A row's random numbers depend on this, its prompt, and which of the prompt's samples it is."""
    loops: int | None = None
    """How often to run the loopable block; as often as in training unless given."""
    exit_rule: ExitRule | None = None
    """When a row has looped enough for a token; unless given, all loops run."""
    draft_loops: int | None = None
    """Self-speculation: draft tokens with so few loops, and verify them together with all. The text stays the same."""
    draft_tokens: int = 4
    """Tokens to draft before they are verified."""
    cache: PolicyName = "all"
    """What is kept of the loops: all, last or first+window; only all says what the model says."""
    window: int = 256
    """Of first+window: how many tokens a token sees in every loop but the first."""
    batch_size: int = 64
    """Rows at a time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_new_tokens", "samples", "batch_size", "draft_tokens"):
            require(1 <= getattr(self, name) <= LARGEST, name, getattr(self, name), f"1 to {LARGEST}", InputError)
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_ids", tuple(self.stop_ids))
        require(all(self.stop), "stop", self.stop, "texts that are not empty", InputError)
        require(self.seed in INT64, "seed", self.seed, "-2^63 to 2^63 - 1", InputError)
        if self.draft_loops is not None:
            greedy = self.temperature == 0 and self.repetition_penalty == 1
            require(greedy, "draft_loops", self.draft_loops, "none unless decoding is greedy", InputError)
            require(self.exit_rule is None, "draft_loops", self.draft_loops, "none with an exit rule", InputError)
            require(self.cache == "all", "draft_loops", self.draft_loops, "none unless cache=all", InputError)

    @property
    def policy(self) -> CachePolicy:
        return CachePolicy(self.cache, self.window)

    def check(self, model: LoopedTransformer) -> None:
        """Raises an InputError where the model cannot be run so."""
        plan, vocabulary = model.plan_with(self.loops), model.config.vocab_size
        for token in self.stop_ids:
            require(0 <= token < vocabulary, "stop_ids", token, f"0 to {vocabulary - 1}", InputError)
        if self.draft_loops is not None:
            _, looped, _ = plan.around_loop()
            fits = 1 <= self.draft_loops < len(looped)
            allowed = f"1 to {len(looped) - 1}, fewer than the {len(looped)} loops that verify"
            require(fits, "draft_loops", self.draft_loops, allowed, InputError)
