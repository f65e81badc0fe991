"""What happens inside an example: its true intermediate values, and its structure as people draw it.

>>> task = PHop(p=(2,), n=8, alphabet=3)
>>> quantities(task, [0, 2, 1, 0, 2, 1, 1, 0])["hop 1"]
[3, 3, 3, 2, 1, 0, 1, 2]
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import reduce
from typing import Any

from loopt.errors import InputError
from loopt.tasks.addition import END, EQUALS, PAD, Addition
from loopt.tasks.base import IGNORE, Task
from loopt.tasks.group import GroupComposition
from loopt.tasks.groups import group
from loopt.tasks.igsm import IGSM
from loopt.tasks.igsm_text import PAD as PADDING
from loopt.tasks.igsm_text import Expression, Reader, names_in, worked_out, written
from loopt.tasks.phop import PHop

Quantities = dict[str, list[int]]
"""By name: a label at each position, IGNORE where the quantity has none or does not follow from the tokens so far."""


def quantities(task: Task, tokens: Sequence[int]) -> Quantities:
    """Returns the intermediate values of one example that a model may compute on its way, and the answer."""
    tokens = [int(token) for token in tokens]
    match task:
        case PHop():
            return _hops(task, tokens)
        case Addition():
            return _columns(task, tokens)
        case GroupComposition():
            return _partial_products(task, tokens)
        case IGSM():
            return {"value named here": _values_so_far(task, tokens), "answer": task.solve(tokens)}
    return {"answer": task.solve(tokens)}


def asked(task: Task, tokens: Sequence[int]) -> list[int]:
    """Returns the right label at each position that the task trains, IGNORE at the others."""
    labels = task.solve(tokens)
    if getattr(task, "supervision", "every") == "every":
        return [*_values_so_far(task, list(tokens))[:-1], labels[-1]] if isinstance(task, IGSM) else labels
    begin = list(tokens).index(EQUALS) if isinstance(task, Addition) else len(labels) - 1
    return [IGNORE] * begin + labels[begin:]


def structure(task: Task, tokens: Sequence[int]) -> dict[str, Any]:
    """Returns an example as it is drawn: a ``kind``, and what that kind of drawing needs, all of it plain data."""
    tokens = [int(token) for token in tokens]
    match task:
        case PHop():
            return {"kind": "phop", "p": _hop_count(task, tokens), "hop": _one_hop(task, tokens)}
        case Addition():
            return _sum_on_paper(task, tokens)
        case GroupComposition():
            return _product_tree(task, tokens)
        case IGSM():
            return _dependencies(task, tokens)
    return {"kind": "tokens"}


# p-hop


def _hop_count(task: PHop, tokens: list[int]) -> int:
    return task.p[tokens[0] - task.alphabet - 1] if task.mixed else task.p[0]


def _one_hop(task: PHop, tokens: list[int]) -> list[int]:
    """Returns the position to which one hop leads from each, or -1 where there is none."""
    after_last: dict[int, int] = {}  # for each letter, the position after its last occurrence so far
    hop = [-1] * task.mixed
    for position, letter in enumerate(tokens[task.mixed :], start=int(task.mixed)):
        hop.append(after_last.get(letter, -1))
        after_last[letter] = position + 1
    return hop


def _hops(task: PHop, tokens: list[int]) -> Quantities:
    hop = _one_hop(task, tokens)
    found: Quantities = {}
    stops = list(range(len(tokens)))
    for count in range(_hop_count(task, tokens) + 1):
        letters = [tokens[stop] if stop >= 0 else task.alphabet for stop in stops]
        found[f"hop {count}"] = [IGNORE] * task.mixed + letters[task.mixed :]
        stops = [hop[stop] if stop >= 0 else -1 for stop in stops]
    return found


# Addition


def _operands(tokens: list[int]) -> tuple[list[list[int]], int]:
    """Returns the positions of each operand's digits, and that of the equals sign."""
    equals = tokens.index(EQUALS)
    places: list[list[int]] = [[]]
    for position in range(equals):
        if tokens[position] < 10:
            places[-1].append(position)
        elif tokens[position] != PAD:
            places.append([])
    return places, equals


def _carries(columns: Sequence[int], width: int) -> list[int]:
    """Returns what is carried into each of ``width`` digits of a sum, the first one first."""
    carries = [0]
    for column in [*reversed(columns), *[0] * width][: width - 1]:
        carries.append((carries[-1] + column) // 10)
    return carries[::-1]


def _columns(task: Addition, tokens: list[int]) -> Quantities:
    answer = task.solve(tokens)  # refuses what is not a sum
    places, equals = _operands(tokens)
    ones, tens, carry = ([IGNORE] * len(tokens) for _ in range(3))
    columns = [0] * task.digits
    for operand in places:
        for column, position in enumerate(operand):
            columns[column] += tokens[position]
            ones[position], tens[position] = columns[column] % 10, columns[column] // 10 % 10
    width = len(str(sum(10**place * column for place, column in enumerate(reversed(columns)))))
    for position, carried in enumerate(_carries(columns, width), start=equals):
        if position < len(tokens):
            carry[position] = carried
    digits = [IGNORE] * equals + [IGNORE if label == END else label for label in answer[equals:]]
    return {
        "column so far, ones": ones,
        "column so far, tens": tens,
        "carry into it": carry,
        "digit of the sum": digits,
    }


def _sum_on_paper(task: Addition, tokens: list[int]) -> dict[str, Any]:
    places, equals = _operands(tokens)
    columns = [sum(tokens[operand[column]] for operand in places) for column in range(task.digits)]
    total = str(sum(10**place * column for place, column in enumerate(reversed(columns))))
    return {
        "kind": "addition",
        "operands": places,
        "sum": [int(digit) for digit in total],
        "carries": _carries(columns, len(total)),
        "places": [place if place < len(tokens) else -1 for place in range(equals, equals + len(total))],
    }


# Groups


def _partial_products(task: GroupComposition, tokens: list[int]) -> Quantities:
    found: Quantities = {"product so far": task.solve(tokens)}
    table = group(task.group).table
    last, length = tokens, 1  # the product of the last ``length`` elements up to each position
    while 2 * length < len(tokens):
        joined = [IGNORE] * len(tokens)
        for i in range(2 * length - 1, len(tokens)):
            joined[i] = table[last[i - length]][last[i]]
        last, length = joined, 2 * length
        found[f"product of the last {length}"] = last
    return found


def _product_tree(task: GroupComposition, tokens: list[int]) -> dict[str, Any]:
    """Returns the partial products of a balanced tree, level by level: from where to where, and the element."""
    table = group(task.group).table
    spans = [(i, i, token) for i, token in enumerate(tokens)]
    levels = [spans]
    while len(spans) > 1:
        pairs = [spans[i : i + 2] for i in range(0, len(spans), 2)]
        spans = [(two[0][0], two[-1][1], reduce(lambda g, h: table[g][h], (g for _, _, g in two))) for two in pairs]
        levels.append(spans)
    return {"kind": "group", "levels": [[list(span) for span in level] for level in levels]}


# i-GSM


def _values_so_far(task: IGSM, tokens: list[int]) -> list[int]:
    """Returns the value of a parameter wherever a statement has just defined or used it, if all that it depends on
    stands before."""
    words = [task.vocabulary[token] for token in tokens]
    labels = [IGNORE] * len(words)
    known: dict[str, int] = {}
    first = start = next((i for i, word in enumerate(words) if word != PADDING), len(words))
    for end in [i for i, word in enumerate(words) if word == "."]:
        name = "".join(words[start : start + 3])
        for i in range(start + 6, end):
            label = known.get("".join(words[i - 2 : i + 1])) if words[i - 1] == "#" else None
            labels[i] = IGNORE if label is None else label
        definitions, _ = Reader([*words[first : end + 1], *words[start : start + 3], "?"]).problem()
        for one in definitions:
            with contextlib.suppress(InputError):  # it depends on what comes later
                known[one] = worked_out(definitions, one, task.modulus)[one]
        if name in known:
            labels[end] = known[name]
        start = end + 1
    return labels


def _dependencies(task: IGSM, tokens: list[int]) -> dict[str, Any]:
    words = [task.vocabulary[token] for token in tokens]
    definitions, query = Reader(words).problem()
    needed = worked_out(definitions, query, task.modulus)
    ends = [i for i, word in enumerate(words) if word == "."]
    labels = _values_so_far(task, tokens)
    depth: dict[str, int] = {}
    nodes = []
    for (name, definition), end in zip(definitions.items(), ends, strict=True):
        values: dict[str, int] = {}
        with contextlib.suppress(InputError):  # a distractor that no value follows for
            values = worked_out(definitions, name, task.modulus)
        place = len(tokens) - 1 if name == query else end if labels[end] != IGNORE else -1
        node = {"name": name, "text": written(definition), "value": values.get(name), "needed": name in needed}
        uses = sorted(set(names_in(definition)))
        nodes.append(node | {"uses": uses, "place": place, "depth": _depth(name, definitions, depth)})
    return {"kind": "igsm", "nodes": nodes, "query": query}


def _depth(name: str, definitions: dict[str, Expression], depth: dict[str, int]) -> int:
    """Returns how many definitions stand one upon the other up to this one; a circle counts as none."""
    if name not in depth:
        depth[name] = 0  # while it is being found
        used = names_in(definitions[name]) if name in definitions else []
        depth[name] = 1 + max((_depth(one, definitions, depth) for one in used), default=0)
    return depth[name]
