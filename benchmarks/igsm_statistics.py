"""The numbers of docs/igsm.md, in the Markdown of that page.

    python benchmarks/igsm_statistics.py              both parts, about a minute of CPU each
    python benchmarks/igsm_statistics.py tables       what comes out: 100,000 test examples
    python benchmarks/igsm_statistics.py templates    templates: 50,000 test examples against 4 million for training
    python benchmarks/igsm_statistics.py --help       how to run it smaller

tables     Every example is read back from its tokens by the task's own solver, which shares no code with the sampler,
           and counted from what that finds. Two numbers cannot be found in the text and come from the sampler's
           tensors: how often step 8 adds a constant, and what answers are like without it.
templates  A template is hashed to 64 bits on the sampler's tensors, from the first needed statement to the query. The
           tests hold these hashes against templates written out from the text.

Numbers go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from loopt.random_bits import Stream, _mix
from loopt.source import Split
from loopt.tasks import IGSM
from loopt.tasks.igsm import MOST_OPERANDS, PER_LEVEL, _of_query, _Problem
from loopt.tasks.igsm_text import ENTITIES, PAD, Reader, names_in, worked_out, written

TASK, SEED = IGSM(), 0
BATCH = 4096
SHOWN = (0, 2, 10)
"""Test examples that the page shows in full."""
FORMS = (
    ("c",),
    ("x",),
    ("c + x",),
    ("c * x",),
    ("x + y",),
    ("x - y",),
    ("c + x + y", "c + x - y"),
    ("c * (x + y)", "c * (x - y)"),
    ("x + y + z",),
    ("c + x + y + z",),
    ("c * (x + y + z)",),
)
"""Right sides, in the rows of the page's table."""
Counts = dict[str, Counter[Any]]


def main() -> None:
    options = read_options()
    torch.set_num_threads(options.threads)
    if options.part != "templates":
        tables(options.examples)
    if options.part != "tables":
        templates(options.train_examples, options.test_examples)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("all", "tables", "templates"), default="all", help="what to count")
    parser.add_argument("--threads", type=int, default=1, help="of torch; reading text takes one whatever it is")
    parser.add_argument("--examples", type=int, default=100_000, help="test examples behind the tables")
    parser.add_argument("--train-examples", type=int, default=4_000_000, help="whose templates are known")
    parser.add_argument("--test-examples", type=int, default=50_000, help="whose templates are looked up")
    return parser.parse_args()


def batches(examples: int, what: str) -> Iterator[Tensor]:
    """Indices from 0 on, with a bar that says how far they are."""
    starts = range(0, examples, BATCH)
    for start in track(starts, what, console=Console(stderr=True)):
        yield torch.arange(start, min(start + BATCH, examples))


def print_table(header: list[str], rows: list[list[str]], left: int = 1) -> None:
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
    def of(cls, tokens: list[int]) -> Reading:
        definitions, query = Reader([TASK.vocabulary[token] for token in tokens]).problem()
        return cls(definitions, query, worked_out(definitions, query, TASK.modulus))

    @property
    def chain(self) -> int:
        depth: dict[str, int] = {}
        for name in self.values:
            depth[name] = 1 + max((depth[used] for used in names_in(self.definitions[name])), default=0)
        return depth[self.query]

    @property
    def distractors(self) -> list[str]:
        return [name for name in self.definitions if name not in self.values]

    @property
    def operations(self) -> int:
        """As Ye et al. count them: a statement that computes nothing is one too."""
        return sum(max(1, len(re.findall(r"[+*-]", written(self.definitions[name])))) for name in self.values)

    def depends_on_needed(self, name: str) -> bool:
        return any(used in self.values or self.depends_on_needed(used) for used in names_in(self.definitions[name]))

    def matters(self, name: str) -> bool:
        """Whether the answer changes with the parameter: it is linear in each, so adding 1 tells."""
        changed = {**self.definitions, name: (self.definitions[name], "+", 1)}
        return worked_out(changed, self.query, TASK.modulus)[self.query] != self.values[self.query]

    @property
    def levels(self) -> set[int]:
        """The pairs of levels that have a parameter, by the upper one."""
        return {ENTITIES.index(name[0]) // PER_LEVEL for name in self.definitions}

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
    letters = iter("xyz")
    return re.sub("[A-P]#[A-P]", lambda _: next(letters), re.sub(r"\d+", "c", written(right_side)))


def tables(examples: int) -> None:
    counts = count_all(examples)
    print(f"Solver and sampler agree on {counts['agrees'][True]:,} of {examples:,} answers.")
    print(f"{len(counts['rows']):,} examples are different.\n")
    print_needed_and_chain(counts["needed, chain"])
    print_forms(counts)
    print_rest(counts, examples)
    print_guesses(counts, examples)
    print_step_8(examples)
    for index in SHOWN:
        print(f"Test example {index}:\n\n```")
        print(TASK.render(TASK.sample(range(index, index + 1), SEED, "test").tokens[0].tolist()), end="\n```\n\n")


def count_all(examples: int) -> Counts:
    counts: Counts = defaultdict(Counter)
    for indices in batches(examples, "reading test examples"):
        batch = TASK.sample(indices, SEED, "test")
        for tokens, answer in zip(batch.tokens.tolist(), batch.answers[:, -1].tolist(), strict=True):
            counts["rows"][bytes(tokens)] += 1
            counts["tokens"][len(tokens) - tokens.count(TASK.vocabulary.index(PAD))] += 1
            count_one(Reading.of(tokens), answer, counts)
    return counts


def count_one(problem: Reading, answer: int, counts: Counts) -> None:
    counts["agrees"][problem.values[problem.query] == answer] += 1
    counts["answer"][answer] += 1
    counts["needed, chain"][len(problem.values), problem.chain] += 1
    counts["statements"][len(problem.definitions)] += 1
    counts["distractors"][len(problem.distractors)] += 1
    counts["operations"][problem.operations] += 1
    counts["all levels"][len(problem.levels) == len(ENTITIES) // PER_LEVEL - 1] += 1
    counts["lone constants"][sum(isinstance(problem.definitions[name], int) for name in problem.values)] += 1
    for name, right_side in problem.definitions.items():
        where = "needed" if name in problem.values else "distractors"
        counts[f"forms of {where}"][form(right_side)] += 1
    for name in problem.distractors:
        counts["depends on needed"][problem.depends_on_needed(name)] += 1
    for name in problem.values:
        counts["matters"][problem.matters(name)] += 1
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


def chi_squared(counts: list[int]) -> float:
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def print_needed_and_chain(pairs: Counter[tuple[int, int]]) -> None:
    total, rows = pairs.total(), []
    for m in range(TASK.needed[0], TASK.needed[1] + 1):
        chains = Counter({chain: count for (needed, chain), count in pairs.items() if needed == m})
        deep = sum(count for (_, chain), count in pairs.items() if chain == m)
        longest = percent(chains[m], chains.total(), 0)
        rows.append([str(m), percent(chains.total(), total), f"{mean(chains):.2f}", longest, ""])
        rows[-1] += [str(m), percent(deep, total)]
    needed, chain = (sum(pair[i] * count for pair, count in pairs.items()) / total for i in (0, 1))
    rows.append([f"mean {needed:.2f}", "", f"{chain:.2f}", "", "", "", ""])
    print_table(["needed", "share", "mean chain", "chain as long as needed", "", "chain", "share"], rows, left=0)


def print_forms(counts: Counts) -> None:
    both = [counts["forms of needed"], counts["forms of distractors"]]
    rows = []
    for row in FORMS:
        shares = [", ".join(percent(forms[text], forms.total()) for text in row) for forms in both]
        rows.append([", ".join(f"`{text}`" for text in row), *shares])
    uses = []
    for forms in both:
        used = [sum(forms[text] for text in forms if sum(text.count(x) for x in "xyz") == k) for k in range(4)]
        uses.append(", ".join(percent(count, forms.total()) for count in used))
    rows.append(["uses 0, 1, 2, 3 parameters", *uses])
    print_table(["right side", "needed", "distractors"], rows)
    others = sum(sum(forms.values()) - sum(forms[text] for row in FORMS for text in row) for forms in both)
    print(f"Statements of any other form: {others}.\n")


def print_rest(counts: Counts, examples: int) -> None:
    distractors, operations, tokens = counts["distractors"], counts["operations"], counts["tokens"]
    lone, depend, matters = counts["lone constants"], counts["depends on needed"], counts["matters"]
    answers = [counts["answer"][answer] for answer in range(TASK.modulus)]
    million = [0] * TASK.modulus
    for indices in batches(1_000_000, "a million answers"):
        problem = TASK._problem(indices, Stream(TASK.name, SEED, "test"))
        for answer, count in Counter(_of_query(TASK._values(problem), problem).tolist()).items():
            million[answer] += count
    statements = sorted(counts["statements"].items(), reverse=True)
    rows = [
        ["statements", ", ".join(f"{number} in {percent(count, examples, 2)}" for number, count in statements)],
        [
            "distractors",
            f"at least two in {percent(above(distractors, 1), examples, 2)}, {mean(distractors):.1f} on average; "
            f"{percent(depend[True], depend.total(), 0)} of them depend on a needed parameter",
        ],
        [
            "operations of the solution, counted as Ye et al. do",
            f"{min(operations)} to {max(operations)}, mean {mean(operations):.1f}; "
            f"{percent(operations[1], examples, 0)} have 1, {percent(above(operations, 7), examples, 0)} more than 7, "
            f"{percent(above(operations, 12), examples, 0)} more than 12",
        ],
        [
            "lone constants among the needed",
            f"one in {percent(lone[1], examples)}, "
            f"two in {percent(lone[2], examples)}, more in {percent(above(lone, 2), examples)}",
        ],
        [
            "needed parameters whose value makes no difference to the answer, because it cancels",
            percent(matters[False], matters.total()),
        ],
        [
            "problems in which all three pairs of levels have a parameter",
            percent(counts["all levels"][True], examples, 0),
        ],
        [
            "tokens",
            f"mean {mean(tokens):.0f}, 1% at most {quantile(tokens, 0.01)}, half at most {quantile(tokens, 0.5)}, "
            f"99% at most {quantile(tokens, 0.99)}, never more than {max(tokens)}",
        ],
        [
            "answers 0 to 6",
            ", ".join(f"{100 * count / examples:.1f}" for count in answers)
            + f"% (χ² = {chi_squared(answers):.1f} at 6 degrees of freedom; {chi_squared(million):.1f} over a million)",
        ],
    ]
    print_table(["", ""], rows, left=2)


def print_guesses(counts: Counts, examples: int) -> None:
    guesses = {
        "always 0": "always 0",
        "the most frequent lone constant, the smallest of several": "commonest constant",
        "the constant that the query's statement consists of or adds, 0 if there is none": "constant of query",
    }
    print_table(["guess", "right"], [[guess, percent(counts[key][True], examples)] for guess, key in guesses.items()])
    single = counts["needed, chain"][1, 1]
    looked_up = percent(single + (examples - single) / TASK.modulus, examples)
    print(f"Right where m = 1, guessing on the rest: {looked_up}.\n")


def print_step_8(examples: int) -> None:
    stream = Stream(TASK.name, SEED, "test")
    happens = in_query = 0
    for indices in batches(examples, "step 8"):
        problem = TASK._problem(indices, stream)
        # A constant that is added although step 6 had no such role for it.
        saved = problem.added & (stream.integers(indices, TASK.statements, 6, "constant role") != 0)  # [batch, n]
        happens += int(saved.any(1).sum())
        in_query += int(saved.gather(1, problem.needed - 1).sum())
    print(f"Step 8 adds a constant in {percent(happens, examples)} of problems, {in_query} times to the query's own.\n")
    for needed, what in ((TASK.needed, "1 to 10"), ((9, 9), "9, as in the sample,")):
        zero = 0
        for indices in batches(examples, "like the paper's sample"):
            zero += int((answers_like_the_sample(needed, indices) == 0).sum())
        print(f"One constant, a factor in one statement of eleven, {what} needed: 0 in {percent(zero, examples)}.\n")


def answers_like_the_sample(needed: tuple[int, int], indices: Tensor) -> Tensor:
    """[batch]: what answers are with no constant but that of v₁, and with factors as rare as in the paper's sample."""
    task, stream = replace(TASK, needed=needed), Stream("like the sample", SEED, "test")
    problem = task._problem(indices, stream)
    first = torch.arange(task.statements) == 0  # [n]
    count = torch.where(first, 0, problem.count.clamp(min=1))  # [batch, n]
    sign = torch.cat([(count > 0).long()[:, :, None], problem.sign[:, :, 1:]], dim=2)  # [batch, n, 3]
    factor = ~first & (stream.integers(indices, task.statements, 11, "factor or not") == 0)  # [batch, n]
    factors = 2 + stream.integers(indices, task.statements, task.modulus - 2, "rare factors")  # [batch, n]
    constant = torch.where(factor, factors, torch.where(first, problem.constant, 0))  # [batch, n]
    changed = replace(problem, count=count, sign=sign, factor=factor, added=torch.zeros_like(factor), constant=constant)
    return _of_query(task._values(changed), changed)


# Templates


def template_hashes(problem: _Problem) -> Tensor:
    """[batch]: equal for two problems if what their queries stand for, written out in full, is the same up to the order
    of sums and the values of constants, and else different, but for chance."""
    n = problem.count.shape[1]
    kind = problem.count + 4 * problem.added + 8 * problem.factor  # [batch, n]
    added, subtracted = _mix(torch.tensor([1, 2]))
    written_out = torch.zeros_like(problem.count)  # [batch, n]
    for i in range(n):
        used = written_out.gather(1, problem.operands[:, i])  # [batch, 3]
        sign = problem.sign[:, i]  # [batch, 3]
        parts = torch.where(sign > 0, _mix(used + added), torch.where(sign < 0, _mix(used + subtracted), 0))
        # A sum of hashes does not tell in which order they are added.
        written_out[:, i] = _mix(parts.sum(1) + _mix(kind[:, i]))
    return written_out.gather(1, problem.needed - 1)[:, 0]


def row_hashes(tokens: Tensor) -> Tensor:
    """[batch]: equal for equal rows. Where no two are equal, no two rows are."""
    weights = Stream("rows", SEED, "").bits(torch.zeros_like(tokens[0, :1]), tokens.shape[1], "weights")  # [1, length]
    return (tokens * weights).sum(1)


@dataclass(frozen=True)
class Hashes:
    needed: Tensor
    templates: Tensor
    rows: Tensor


def hashes(examples: int, split: Split) -> Hashes:
    """[examples] each."""
    stream, parts = Stream(TASK.name, SEED, split), []
    for indices in batches(examples, f"{split} examples"):
        problem = TASK._problem(indices, stream)
        rows = row_hashes(TASK._written(problem, indices, stream)[0])
        parts.append((problem.needed[:, 0], template_hashes(problem), rows))
    return Hashes(*(torch.cat(part) for part in zip(*parts, strict=True)))


def templates(train_examples: int, test_examples: int) -> None:
    print_how_many()
    train, test = hashes(train_examples, "train"), hashes(test_examples, "test")
    in_train, same = torch.isin(test.templates, train.templates.unique()), torch.isin(test.rows, train.rows)
    rows = []
    for m in (*range(TASK.needed[0], TASK.needed[1] + 1), None):
        known, asked = ((of.needed == m) if m else torch.ones_like(of.needed).bool() for of in (train, test))
        different = len(train.templates[known].unique())
        shared = percent(in_train[asked].sum().item(), asked.sum().item())
        rows.append([str(m or "all"), f"{different:,}", shared, f"{same[asked].sum().item():,}"])
    print(f"{test_examples:,} test examples against {train_examples:,} for training:\n")
    print_table(
        [
            "needed",
            f"different templates in {train_examples:,}",
            "test examples whose template occurs in training",
            "same example in training",
        ],
        rows,
        left=0,
    )
    part = min(1_000_000, train_examples)
    print(f"{len(train.templates[:part].unique()):,} different templates in the first {part:,} training examples.")


def print_how_many() -> None:
    """The templates in which each parameter uses the one before it, by the page's formula."""
    for m in (8, 9, 10):
        others = range(m - 1)  # the i-th statement has i - 2 to choose from besides the one before it
        product = math.prod(3 + 9 * a + 3 * math.comb(a, MOST_OPERANDS - 1) for a in others)
        print(f"Templates that are one chain, m = {m}: {product:,} = {product:.2g}\n")


if __name__ == "__main__":
    main()
