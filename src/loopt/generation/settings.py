"""How to generate: how many tokens, how each is chosen, with how many loops, and what is kept of them."""

from __future__ import annotations

from dataclasses import dataclass

from loopt.errors import InputError, require
from loopt.generation.cache import CachePolicy, PolicyName
from loopt.generation.exits import ExitRule, check_exit, parse_exit
from loopt.generation.sampling import Sampling
from loopt.limits import INT64, LARGEST
from loopt.model import LoopedTransformer
from loopt.plan import LoopPlan


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
    exit: str | ExitRule | None = None
    """When a row has looped enough for a token: change:T, kl:T, entropy:T or gate:T, with a threshold T; unless given,
    all loops run."""
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

    @property
    def policy(self) -> CachePolicy:
        return CachePolicy(self.cache, self.window)

    @property
    def exit_rule(self) -> ExitRule | None:
        return parse_exit(self.exit) if isinstance(self.exit, str) else self.exit

    def check(self, model: LoopedTransformer) -> None:
        """Raises an InputError for settings that make no sense, or not with this model."""
        self.check_values()
        for name in ("max_new_tokens", "samples", "batch_size", "draft_tokens"):
            require(1 <= getattr(self, name) <= LARGEST, name, getattr(self, name), f"1 to {LARGEST}", InputError)
        require(all(self.stop), "stop", self.stop, "texts that are not empty", InputError)
        require(self.seed in INT64, "seed", self.seed, "-2^63 to 2^63 - 1", InputError)
        words = model.config.vocab_size
        for token in self.stop_ids:
            require(0 <= token < words, "stop_ids", token, f"0 to {words - 1}", InputError)
        plan, rule, policy = model.plan_with(self.loops), self.exit_rule, self.policy
        if rule is not None:
            check_exit(rule, model)
            plan.around_loop()
            require(
                policy.name == "all", "cache", policy.name, "all with an exit rule, whose rows copy places", InputError
            )
        if self.draft_loops is not None:
            self._check_drafts(plan)

    def _check_drafts(self, plan: LoopPlan) -> None:
        _, looped, _ = plan.around_loop()
        most = len(looped) - 1
        for holds, allowed in (
            (1 <= (self.draft_loops or 0) <= most, f"1 to {most}, fewer than the {len(looped)} loops that verify"),
            (self.temperature == 0 and self.repetition_penalty == 1, "none unless decoding is greedy"),
            (self.exit is None, "none with an exit rule"),
            (self.cache == "all", "none unless cache=all"),
        ):
            require(holds, "draft_loops", self.draft_loops, allowed, InputError)
