"""The law "light" of i-GSM once more, one problem at a time: its steps 1 to 9 in docs/igsm.md in plain Python, with
sizes drawn again until one takes the operations wanted. It shares no code with the sampler."""

from __future__ import annotations

import functools
import math
import random
from itertools import pairwise

from loopt.tasks import IGSM

LETTERS = ("ABCD", "EFGH", "IJKL", "MNOP")
Edge = tuple[int, int, int]
"""Level, entity of that level, entity of the next one."""


def draw_text(task: IGSM, rng: random.Random) -> str:
    operations = min(rng.randint(1, task.operations), rng.randint(1, task.operations))
    while True:
        s = min(rng.randint(1, task.operations), rng.randint(1, task.operations))
        needed = rng.randint(max(rng.randint(1, s), rng.randint(1, s)), s)
        length = (s - 1) / (task.edges - 1)
        depth = soft_choice(length, range(task.levels[0], task.levels[1] + 1), rng)
        fewest, most = sorted(soft_choice(length, range(2, 5), rng) for _ in range(2))
        owed = (depth - 1) * fewest
        statements = min(rng.randint(owed, task.edges), rng.randint(owed, task.edges), (depth - 1) * most**2)
        needed = min(needed, statements)
        room = [min(2, max(0, i - 1)) for i in range(needed)]
        if needed + min(s - needed, sum(room)) == operations:
            break
    edges = draw_edges(draw_entities(depth, fewest, most, statements, rng), statements, rng)
    rng.shuffle(edges)
    uses, constants = draw_uses(edges, needed, operations, rng)
    return write(edges, needed, uses, constants, task.modulus, depth, rng)


def soft_choice(length: float, numbers: range, rng: random.Random) -> int:
    return rng.choices(numbers, soft_weights(length, numbers))[0]


@functools.cache
def soft_weights(length: float, numbers: range) -> list[float]:
    return [math.exp(-((length - (0.3 * number - 0.4)) ** 2)) for number in numbers]


def draw_entities(depth: int, fewest: int, most: int, statements: int, rng: random.Random) -> list[int]:
    entities, chance = [fewest] * depth, rng.random()
    while any(width < most for width in entities):
        too_few = sum(a * b for a, b in pairwise(entities)) < statements
        if not too_few and (sum(entities[1:]) == statements or rng.random() >= chance):
            break
        entities[rng.choice([i for i, width in enumerate(entities) if width < most])] += 1
    return entities


def draw_edges(entities: list[int], statements: int, rng: random.Random) -> list[Edge]:
    owed, others = [], []
    for level, (above, below) in enumerate(pairwise(entities)):
        for lower in range(below):
            parent = rng.randrange(above)
            owed.append((level, parent, lower))
            others += [(level, upper, lower) for upper in range(above) if upper != parent]
    return owed + rng.sample(others, statements - len(owed))


def draw_uses(
    edges: list[Edge], needed: int, operations: int, rng: random.Random
) -> tuple[dict[Edge, list[Edge]], dict[Edge, bool]]:
    further = [0] * needed
    for _ in range(operations - needed):
        further[rng.choice([i for i in range(needed) if further[i] < min(2, max(0, i - 1))])] += 1
    uses: dict[Edge, list[Edge]] = {}
    constants: dict[Edge, bool] = {}
    for i, edge in enumerate(edges[:needed]):
        terms = min(further[i] + 2 if further[i] else rng.randint(1, 2), i + 1)
        link = edges[max(0, i - 1) : i]
        pool: list[Edge | None] = [None, *edges[: max(0, i - 1)]]  # None: a constant
        if terms == i + 1:
            chosen = list(pool)
        else:
            left = terms - 1
            sure = pool[:1] if left and rng.random() < 0.5 else []
            chosen = sure + rng.sample(pool[len(sure) :], left - len(sure))
        uses[edge], constants[edge] = [*link, *(one for one in chosen if one)], None in chosen
    apart: list[Edge] = []
    for i, edge in enumerate(edges[needed:], start=needed):
        is_apart = rng.random() < 0.5
        able, terms = list(apart if is_apart else edges[:i]), 1
        while terms < min(4, len(able) + 1) and rng.random() < 0.5:
            terms += 1
        everything = terms == len(able) + 1
        constants[edge] = everything or rng.random() < 0.5
        uses[edge] = able if everything else rng.sample(able, terms - constants[edge])
        apart += [edge] * is_apart
    return uses, constants


def write(
    edges: list[Edge],
    needed: int,
    uses: dict[Edge, list[Edge]],
    constants: dict[Edge, bool],
    modulus: int,
    depth: int,
    rng: random.Random,
) -> str:
    first = rng.randint(0, 4 - depth)
    letters = [rng.sample(level, 4) for level in LETTERS]
    name = {(level, a, b): f"{letters[first + level][a]}#{letters[first + level + 1][b]}" for level, a, b in edges}
    statements = []
    for edge in edges:
        sign = " - " if len(uses[edge]) == 2 and rng.random() < 0.5 else " + "
        right = sign.join(name[used] for used in uses[edge])
        if constants[edge] and not right:
            right = str(rng.randrange(modulus))
        elif constants[edge] and rng.random() < 0.5:
            right = f"{rng.randrange(modulus)} + {right}"
        elif constants[edge]:
            right = f"{rng.randrange(1, modulus)} * " + (f"({right})" if len(uses[edge]) > 1 else right)
        statements.append(f"{name[edge]} := {right}.")
    query = name[edges[needed - 1]]
    rng.shuffle(statements)
    return " ".join([*statements, f"{query}?"])
