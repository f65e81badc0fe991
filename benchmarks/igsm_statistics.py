"""The numbers of docs/igsm.md, in the Markdown of that page.

    python benchmarks/igsm_statistics.py              both parts, some minutes of CPU each
    python benchmarks/igsm_statistics.py laws         what comes out of each law: 100,000 test examples
    python benchmarks/igsm_statistics.py templates    templates: 50,000 test examples against 4 million for training
    python benchmarks/igsm_statistics.py --help       how to run it smaller

laws       Every example is read back from its tokens by the task's own solver, which shares no code with the sampler,
           and counted from what that finds. The page's column for the cited generator is counted by the same functions,
           from problems of that generator, which is not in this repository.
templates  A template is hashed to 64 bits on the sampler's tensors, from the first needed statement to the query. The
           tests hold these hashes against templates written out from the text.

Numbers go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from loopt.random_bits import Stream, _mix
from loopt.source import Split
from loopt.tasks import IGSM
from loopt.tasks.igsm_problem import Problem, write
from loopt.tasks.igsm_text import PAD, Reader, names_in, worked_out, written

LAWS = {
    "light": IGSM(),
    "light, any asked": IGSM(query="any"),
    "light, 2 to 4 levels": IGSM(levels=(2, 4)),
    "even": IGSM(law="even"),
}
MODULUS, SEED = 7, 0
BATCH = 4096
SHOWN = {"light": (0, 1), "even": (2,)}
"""Test examples that the page shows in full."""
LIKE_THE_SAMPLE = 400_000
"""Problems with as many operations as the paper's sample."""
FORMS = (
    ("c",),
    ("x",),
    ("c + x", "c * x"),
    ("x + y", "x - y"),
    ("c + x + y", "c + x - y"),
    ("c * (x + y)", "c * (x - y)"),
    ("x + y + z",),
    ("c + x + y + z", "c * (x + y + z)"),
    ("x + y + z + w",),
)
"""Right sides, in the rows of the page's table."""
Counts = dict[str, Counter[Any]]


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    if options.part != "templates":
        laws(options.examples)
    if options.part != "laws":
        templates(LAWS["light"], options.train_examples, options.test_examples)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("all", "laws", "templates"), default="all", help="what to count")
    parser.add_argument("--threads", type=int, default=1, help="of torch; reading text takes one whatever it is")
    parser.add_argument("--examples", type=int, default=100_000, help="test examples of each law")
    parser.add_argument("--train-examples", type=int, default=4_000_000, help="whose templates are known")
    parser.add_argument("--test-examples", type=int, default=50_000, help="whose templates are looked up")
    return parser.parse_args()


def batches(examples: int, what: str) -> Iterator[Tensor]:
    """Indices from 0 on, with a bar that says how far they are."""
    starts = range(0, examples, BATCH)
    for start in track(starts, what, console=Console(stderr=True)):
        yield torch.arange(start, min(start + BATCH, examples))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """The first ``left`` columns are text, the others numbers."""
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    print("\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows]), end="\n\n")


def percent(count: float, of: float, digits: int = 1) -> str:
    return f"{100 * count / of:.{digits}f}%" if of else "-"


# What comes out


@dataclass(frozen=True)
class Reading:
    """A problem as the solver reads it."""

    definitions: dict[str, Any]
    query: str
    values: dict[str, int]
    """Of the needed parameters, each after those that it uses."""

    @classmethod
    def of(cls, symbols: list[str]) -> Reading:
        definitions, query = Reader(symbols).problem()
        return cls(definitions, query, worked_out(definitions, query, MODULUS))

    @property
    def chain(self) -> int:
        depth: dict[str, int] = {}
        for name in self.values:
            depth[name] = 1 + max((depth[used] for used in names_in(self.definitions[name])), default=0)
        return depth[self.query]

    @property
    def distractors(self) -> list[str]:
        return [name for name in self.definitions if name not in self.values]

    def terms(self, name: str) -> int:
        return 1 + len(re.findall(r"[+*-]", written(self.definitions[name])))

    @property
    def operations(self) -> int:
        """As Ye et al. count them: a statement that computes nothing is one too."""
        return sum(max(1, self.terms(name) - 1) for name in self.values)

    def depends_on_needed(self, name: str) -> bool:
        return any(used in self.values or self.depends_on_needed(used) for used in names_in(self.definitions[name]))

    def matters(self, name: str) -> bool:
        """Whether the answer changes with the parameter: it is linear in each, so adding 1 tells."""
        changed = {**self.definitions, name: (self.definitions[name], "+", 1)}
        return worked_out(changed, self.query, MODULUS)[self.query] != self.values[self.query]

    def has_constant(self, name: str) -> bool:
        return any(symbol.isdigit() for symbol in written(self.definitions[name]))

    @property
    def commonest_constant(self) -> int:
        """Of the statements that are a constant, needed or not; the smallest of several."""
        lone = Counter(right for right in self.definitions.values() if isinstance(right, int))
        return min(lone, key=lambda constant: (-lone[constant], constant), default=0)

    @property
    def constant_of_query(self) -> int:
        right = self.definitions[self.query]
        while isinstance(right, tuple) and right[1] != "*":
            right = right[0]
        return right if isinstance(right, int) else 0


def form(right_side: Any) -> str:
    """``c + x - y`` for 3 + E#I - F#K."""
    letters = iter("xyzw")
    return re.sub("[A-P]#[A-P]", lambda _: next(letters), re.sub(r"\d+", "c", written(right_side)))


def laws(examples: int) -> None:
    counted = {name: count_all(task, examples, name) for name, task in LAWS.items()}
    for name, counts in counted.items():
        agree, different = counts["agrees"][True], len(counts["rows"])
        print(f"{name}: solver and sampler agree on {agree:,} of {examples:,} answers; {different:,} are different.\n")
    summaries = {name: summary(counts) for name, counts in counted.items()}
    rows = [[what, *(cells[what] for cells in summaries.values())] for what in summaries["light"]]
    print_table(["", *LAWS], rows)
    for of in ("operations", "needed", "statements"):
        print_histogram(of, counted)
    print_forms(counted)
    print_problems_like_the_sample()
    for name, shown in SHOWN.items():
        for index in shown:
            print(f"{name}, test example {index}:\n\n```")
            task = LAWS[name]
            print(task.render(task.sample(range(index, index + 1), SEED, "test").tokens[0].tolist()), end="\n```\n\n")


def count_all(task: IGSM, examples: int, what: str) -> Counts:
    counts: Counts = defaultdict(Counter)
    for indices in batches(examples, f"reading test examples, {what}"):
        batch = task.sample(indices, SEED, "test")
        drawn = task._law.draw(indices, Stream(task.name, SEED, "test"), MODULUS).statements[:, 0]  # [batch]
        written_out = (batch.tokens == task.vocabulary.index(".")).sum(1)  # [batch]
        counts["left out"].update((written_out < drawn).tolist())
        for tokens, answer in zip(batch.tokens.tolist(), batch.answers[:, -1].tolist(), strict=True):
            counts["rows"][bytes(tokens)] += 1
            problem = Reading.of([task.vocabulary[token] for token in tokens])
            counts["agrees"][problem.values[problem.query] == answer] += 1
            counts["tokens"][len(tokens) - tokens.count(task.vocabulary.index(PAD))] += 1
            count_one(problem, counts)
    return counts


def count_one(problem: Reading, counts: Counts) -> None:
    answer = problem.values[problem.query]
    counts["answer"][answer] += 1
    counts["needed"][len(problem.values)] += 1
    counts["chain"][problem.chain] += 1
    counts["statements"][len(problem.definitions)] += 1
    counts["distractors"][len(problem.distractors)] += 1
    counts["operations"][problem.operations] += 1
    counts["lone constants"][sum(isinstance(problem.definitions[name], int) for name in problem.values)] += 1
    for name, right_side in problem.definitions.items():
        where = "needed" if name in problem.values else "distractors"
        counts[f"forms of {where}"][form(right_side)] += 1
        counts[f"terms of {where}"][problem.terms(name)] += 1
        counts[f"constants of {where}"][problem.has_constant(name)] += 1
    counts["depend on needed"].update(map(problem.depends_on_needed, problem.distractors))
    counts["matters"].update(map(problem.matters, problem.values))
    counts["always 0"][answer == 0] += 1
    counts["commonest constant"][answer == problem.commonest_constant] += 1
    counts["constant of query"][answer == problem.constant_of_query] += 1


def mean(counter: Counter[int]) -> float:
    return sum(value * count for value, count in counter.items()) / counter.total()


def above(counter: Counter[int], limit: int) -> int:
    return sum(count for value, count in counter.items() if value > limit)


def quantile(counter: Counter[int], share: float) -> int:
    """The smallest value that so many are at most."""
    most_above = (1 - share) * counter.total()
    return next(value for value in sorted(counter) if above(counter, value) <= most_above)


def share(counter: Counter[Any], *values: Any) -> str:
    return ", ".join(percent(counter[value], counter.total()) for value in values)


def summary(counts: Counts) -> dict[str, str]:
    """What the page says of a law, line by line."""
    tokens, lone = counts["tokens"], counts["lone constants"]
    return {
        "operations, mean": f"{mean(counts['operations']):.2f}",
        "operations: more than 5, 7, 12": ", ".join(
            percent(above(counts["operations"], limit), counts["operations"].total()) for limit in (5, 7, 12)
        ),
        "needed statements, mean": f"{mean(counts['needed']):.2f}",
        "one after the other, mean": f"{mean(counts['chain']):.2f}",
        "statements, mean (range)": f"{mean(counts['statements']):.2f} ({ranged(counts['statements'])})",
        "distractors, mean (range)": f"{mean(counts['distractors']):.2f} ({ranged(counts['distractors'])})",
        "distractors that depend on a needed parameter": share(counts["depend on needed"], True),
        "1, 2, 3, 4 terms, needed": share(counts["terms of needed"], 1, 2, 3, 4),
        "1, 2, 3, 4 terms, distractors": share(counts["terms of distractors"], 1, 2, 3, 4),
        "with a constant, needed": share(counts["constants of needed"], True),
        "with a constant, distractors": share(counts["constants of distractors"], True),
        "lone constants among the needed: 1, 2, more": f"{share(lone, 1, 2)}, {percent(above(lone, 2), lone.total())}",
        "needed parameters that cancel": share(counts["matters"], False),
        "tokens: mean, 1%, half, 99% at most, most": f"{mean(tokens):.0f}, "
        + ", ".join(f"{quantile(tokens, at)}" for at in (0.01, 0.5, 0.99, 1)),
        "a distractor left out, for want of room": percent(counts["left out"][True], counts["left out"].total(), 2),
        "answers 0 to 6, %": ", ".join(percent(counts["answer"][a], tokens.total())[:-1] for a in range(MODULUS)),
        "guess: always 0": share(counts["always 0"], True),
        "guess: the commonest lone constant": share(counts["commonest constant"], True),
        "guess: the constant of the query's statement, or 0": share(counts["constant of query"], True),
    }


def ranged(counter: Counter[int]) -> str:
    return f"{min(counter)} to {max(counter)}"


def print_histogram(of: str, counted: dict[str, Counts]) -> None:
    values = range(1, 1 + max(max(counts[of]) for counts in counted.values()))
    shown = [value for value in values if any(counts[of][value] for counts in counted.values())]
    rows = [[str(value), *(share(counts[of], value) for counts in counted.values())] for value in shown]
    print_table([of, *counted], rows, left=0)


def print_forms(counted: dict[str, Counts]) -> None:
    columns = [counts[f"forms of {where}"] for counts in counted.values() for where in ("needed", "distractors")]
    rows = [[", ".join(f"`{text}`" for text in row), *(share(forms, *row) for forms in columns)] for row in FORMS]
    print_table(["right side", *(f"{name}, {where}" for name in counted for where in ("needed", "distractors"))], rows)
    others = sum(forms.total() - sum(forms[text] for row in FORMS for text in row) for forms in columns)
    print(f"Statements of any other form: {others}.\n")


def print_problems_like_the_sample() -> None:
    """How many problems of the law light that are as long as the paper's sample are as it is."""
    law = LAWS["light"].difficulties["14 operations"]._law
    alike = constants = long = 0
    for indices in batches(LIKE_THE_SAMPLE, "problems with 14 operations"):
        problem = law.draw(indices, Stream("igsm", SEED, "test"), MODULUS)
        there = torch.arange(problem.count.shape[1]) < problem.statements  # [batch, n]
        constant = problem.added | problem.factor | (problem.count == 0)  # [batch, n]
        as_long = ((problem.needed == 9) & (problem.statements == 12))[:, 0]  # [batch]
        alike += int(as_long.sum())
        constants += int((as_long & ((constant & there).sum(1) <= 2)).sum())
        long += int((as_long & ((problem.count + constant >= 3) & there).sum(1).ge(7)).sum())
    print(f"{alike:,} problems with 14 operations, 12 statements and 9 needed ones: {constants} with two constants at")
    print(f"most, {long} with 7 statements of three terms or more.\n")


# Templates


def template_hashes(problem: Problem) -> Tensor:
    """[batch]: equal for two problems if what their queries stand for, written out in full, is the same up to the order
    of sums and the values of constants, and else different, but for chance."""
    kind = problem.count + 8 * problem.added + 16 * problem.factor  # [batch, n]
    added, subtracted = _mix(torch.tensor([1, 2]))
    written_out = torch.zeros_like(problem.count)  # [batch, n]
    for i in range(written_out.shape[1]):
        used = written_out.gather(1, problem.operands[:, i])  # [batch, k]
        sign = problem.sign[:, i]  # [batch, k]
        parts = torch.where(sign > 0, _mix(used + added), torch.where(sign < 0, _mix(used + subtracted), 0))
        # A sum of hashes does not tell in which order they are added.
        written_out[:, i] = _mix(parts.sum(1) + _mix(kind[:, i]))
    return written_out.gather(1, problem.needed - 1)[:, 0]


def operations_of(problem: Problem) -> Tensor:
    """[batch]: operations of the needed statements, as Ye et al. count them."""
    terms = problem.count + (problem.added | problem.factor | (problem.count == 0)).long()  # [batch, n]
    needed = torch.arange(terms.shape[1]) < problem.needed  # [batch, n]
    return torch.where(needed, (terms - 1).clamp(min=1), 0).sum(1)


def row_hashes(tokens: Tensor) -> Tensor:
    """[batch]: equal for equal rows. Where no two are equal, no two rows are."""
    weights = Stream("rows", SEED, "").bits(torch.zeros_like(tokens[0, :1]), tokens.shape[1], "weights")  # [1, length]
    return (tokens * weights).sum(1)


@dataclass(frozen=True)
class Hashes:
    operations: Tensor
    templates: Tensor
    rows: Tensor


def hashes(task: IGSM, examples: int, split: Split) -> Hashes:
    """[examples] each."""
    stream, parts = Stream(task.name, SEED, split), []
    for indices in batches(examples, f"{split} examples"):
        problem = task._law.draw(indices, stream, task.modulus)
        order = torch.arange(problem.count.shape[1]).expand_as(problem.count)
        rows = row_hashes(write(problem, order, task.modulus, task.length)[0])  # in one order, whatever it is
        parts.append((operations_of(problem), template_hashes(problem), rows))
    return Hashes(*(torch.cat(part) for part in zip(*parts, strict=True)))


def templates(task: IGSM, train_examples: int, test_examples: int) -> None:
    print(f"Templates: {how_many(task.operations):.3g}.\n")
    train, test = hashes(task, train_examples, "train"), hashes(task, test_examples, "test")
    in_train, same = torch.isin(test.templates, train.templates.unique()), torch.isin(test.rows, train.rows)
    rows = []
    for k in (*range(1, task.operations + 1), None):
        known, asked = ((of.operations == k) if k else torch.ones_like(of.rows).bool() for of in (train, test))
        different = len(train.templates[known].unique())
        shared = percent(in_train[asked].sum().item(), asked.sum().item())
        rows.append([str(k or "all"), f"{different:,}", shared, f"{same[asked].sum().item():,}"])
    print(f"{test_examples:,} test examples against {train_examples:,} for training:\n")
    print_table(
        [
            "operations",
            f"different templates in {train_examples:,}",
            "test examples whose template occurs in training",
            "same statements in training",
        ],
        rows,
        left=0,
    )


def how_many(most_operations: int) -> int:
    """Counts the templates of the law light that take so many operations at most, needed statement by statement. Each
    uses the one before, so two that differ anywhere are different templates."""
    by_operations = Counter({1: 1})  # of the statements so far: the first is a constant
    total = by_operations.total()
    for others in range(most_operations - 1):  # that the next one can use, besides the one before
        forms = {
            1: 3 + 2 * others,
            2: 4 * others + math.comb(others, 2),
            3: 2 * math.comb(others, 2) + math.comb(others, 3),
        }
        longer: Counter[int] = Counter()
        for so_far, count in by_operations.items():
            for further, ways in forms.items():
                if so_far + further <= most_operations:
                    longer[so_far + further] += count * ways
        by_operations = longer
        total += by_operations.total()
    return total


if __name__ == "__main__":
    main()
