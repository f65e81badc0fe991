"""i-GSM problems as text: a parser and a solver, which check the sampler and share no code with it."""

from __future__ import annotations

from typing import NoReturn

from loopt.errors import InputError

ENTITIES = "ABCDEFGHIJKLMNOP"
PAD = "<pad>"

Expression = int | str | tuple["Expression", str, "Expression"]
"""A number, the name of a parameter, or two of these with + - or * between them."""


class Reader:
    """Parses problem = statement* name "?";  statement = name ":=" sum ".";  sum = product (("+" | "-") product)*;
    product = factor ("*" factor)*;  factor = number | name | "(" sum ")";  name = entity "#" entity."""

    def __init__(self, symbols: list[str]) -> None:
        self.symbols = symbols
        self.at = 0

    def problem(self) -> tuple[dict[str, Expression], str]:
        while self.take(PAD):
            pass
        definitions: dict[str, Expression] = {}
        while True:
            name = self.parameter()
            if self.take("?"):
                break
            self.expect(":=")
            if name in definitions:
                self.fail(f"{name} is defined twice")
            definitions[name] = self.sum()
            self.expect(".")
        if self.peek():
            self.fail("expected the end after '?'")
        return definitions, name

    def sum(self) -> Expression:
        left = self.product()
        while self.peek() in ("+", "-"):
            sign = self.next()
            left = (left, sign, self.product())
        return left

    def product(self) -> Expression:
        left = self.factor()
        while self.take("*"):
            left = (left, "*", self.factor())
        return left

    def factor(self) -> Expression:
        if self.take("("):
            inner = self.sum()
            self.expect(")")
            return inner
        if self.peek().isdigit():
            return int(self.next())
        return self.parameter()

    def parameter(self) -> str:
        upper = self.entity()
        self.expect("#")
        return f"{upper}#{self.entity()}"

    def entity(self) -> str:
        if not (self.peek() and self.peek() in ENTITIES):
            self.fail("expected an entity, A to P")
        return self.next()

    def peek(self) -> str:
        return self.symbols[self.at] if self.at < len(self.symbols) else ""

    def next(self) -> str:
        self.at += 1
        return self.symbols[self.at - 1]

    def take(self, symbol: str) -> bool:
        found = self.peek() == symbol
        self.at += found
        return found

    def expect(self, symbol: str) -> None:
        if not self.take(symbol):
            self.fail(f"expected {symbol!r}")

    def fail(self, message: str) -> NoReturn:
        here = repr(self.peek()) if self.peek() else "the end"
        raise InputError(f"task igsm: {message}, at token {self.at} of {len(self.symbols)}, which is {here}")


def worked_out(definitions: dict[str, Expression], query: str, modulus: int) -> dict[str, int]:
    """Returns the value of every parameter that the query needs, each after those that it uses."""
    values: dict[str, int] = {}
    begun: set[str] = set()

    def value(expression: Expression) -> int:
        if isinstance(expression, int):
            return expression % modulus
        if isinstance(expression, tuple):
            left, sign, right = value(expression[0]), expression[1], value(expression[2])
            return (left + right if sign == "+" else left - right if sign == "-" else left * right) % modulus
        if expression not in values:
            if expression not in definitions:
                raise InputError(f"task igsm: {expression} is used and not defined")
            if expression in begun:
                raise InputError(f"task igsm: {expression} is defined in terms of itself")
            begun.add(expression)
            values[expression] = value(definitions[expression])
        return values[expression]

    value(query)
    return values


def names_in(expression: Expression) -> list[str]:
    """Returns the parameters that an expression uses, in the order written."""
    if isinstance(expression, tuple):
        return names_in(expression[0]) + names_in(expression[2])
    return [expression] if isinstance(expression, str) else []


def written(expression: Expression) -> str:
    """Returns an expression as text, with no more brackets than it needs."""
    if not isinstance(expression, tuple):
        return str(expression)
    left, sign, right = expression
    sides = [written(left), written(right)]
    if sign == "*":
        sides = [f"({text})" if _is_sum(side) else text for side, text in zip((left, right), sides, strict=True)]
    elif _is_sum(right):
        sides[1] = f"({sides[1]})"
    return f"{sides[0]} {sign} {sides[1]}"


def _is_sum(expression: Expression) -> bool:
    return isinstance(expression, tuple) and expression[1] in ("+", "-")
