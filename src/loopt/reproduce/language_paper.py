"""The paper's numbers for language models, Tables 3 to 8, by row and metric. Copied line by line."""

from __future__ import annotations

HEADLINE = ("perplexity", "closed_book", "open_book", "math_word_problems", "all_tasks", "primitives")
TABLE_3_AND_4 = """
24x1         7.40 11.2 33.9 29.3 26.0 47.5
12x1         8.16  8.2 26.9 26.7 21.8 35.7
12x2         7.90  9.3 30.8 34.3 26.5 51.2
4x1-4-1      7.81 11.0 32.3 28.3 25.0 56.5
8x1          8.75  6.3 22.7 17.1 16.1 33.0
8x3          8.19  8.5 30.8 28.4 23.9 55.3
6x1          9.25  4.0 19.3 17.7 14.6 24.1
6x4          8.42  8.2 28.7 29.8 23.7 56.1
4x1         10.12  1.8 13.8  9.7  9.0 19.4
4x6          8.79  6.7 26.2 24.8 20.4 56.9
24x1-k4-w1   7.41 11.2 34.8 31.6 27.2 42.5
24x1-k4-w10  7.38 12.5 36.2 36.4 30.0 57.2
24x1-k6-w10  7.40 12.0 35.8 31.0 27.5 55.8
24x1-k8-w10  7.43 11.3 34.4 32.8 27.6 56.3
24x1-k12-w10 7.51 10.1 34.1 32.3 27.0 50.7
"""

CLOSED_BOOK = ("triviaqa", "tydiqa_nocontext", "nq_open", "webquestions")
TABLE_5 = """
24x1         24.5 10.6 4.3 5.6
12x1         15.9  9.3 2.4 5.2
12x2         18.6  9.6 3.4 5.8
24x1-k12-w10 20.9 10.9 3.6 5.0
8x1          12.3  7.4 1.8 3.9
8x3          17.3  8.8 2.5 5.2
24x1-k8-w10  23.6 10.6 4.1 6.7
6x1           7.4  4.8 1.1 2.7
6x4          16.0  9.3 2.7 4.9
24x1-k6-w10  25.8 12.2 4.5 5.6
4x1           3.3  1.9 0.6 1.5
4x6          11.8  8.8 2.4 3.5
24x1-k4-w10  26.1 13.3 4.5 6.2
"""

OPEN_BOOK = ("tydiqa_goldp", "squad_v2", "drop", "quac", "coqa")
TABLE_6 = """
24x1         33.4 41.3 23.4 18.6 52.7
12x1         21.8 34.6 20.0 17.3 41.1
12x2         27.7 39.5 22.3 17.6 46.8
24x1-k12-w10 33.0 44.3 23.8 17.7 51.9
8x1          12.7 33.8 16.0 15.3 35.9
8x3          29.8 38.1 21.6 17.6 46.6
24x1-k8-w10  33.0 41.7 25.2 19.3 52.9
6x1           8.2 26.8 14.8 14.4 32.5
6x4          26.6 34.6 20.8 18.1 43.7
24x1-k6-w10  34.5 46.1 26.2 18.6 53.4
4x1           3.4 19.0 11.1 13.1 22.3
4x6          22.0 32.4 20.1 15.8 40.7
24x1-k4-w10  33.6 49.4 24.1 19.8 54.0
"""
"""The paper's first column is headed TydiQA-NoContext as that of Table 5 is; its text has TydiQA-GoldP here."""

MATH = ("asdiv", "mawps_addsub", "mawps_multiarith", "mawps_singleeq", "mawps_singleop", "svamp")
TABLE_7 = """
24x1         26.9 49.9 2.7 38.6 40.2 17.9
12x1         23.1 44.8 2.0 36.8 37.9 15.3
12x2         31.5 55.9 2.0 47.4 50.2 18.5
24x1-k12-w10 27.4 54.4 2.7 43.7 45.9 19.8
8x1          12.9 32.7 2.0 19.9 21.9 13.4
8x3          23.2 54.9 2.3 36.2 38.3 15.6
24x1-k8-w10  31.0 56.7 3.5 40.7 47.5 17.3
6x1          15.4 31.1 1.3 21.3 26.3 10.9
6x4          24.5 51.6 0.7 38.0 47.7 16.3
24x1-k6-w10  32.0 47.1 3.5 44.9 42.0 16.8
4x1           7.9 10.4 1.5 11.0 19.0  8.3
4x6          19.9 49.1 1.7 29.3 35.9 12.6
24x1-k4-w10  35.0 53.9 3.2 52.2 50.9 23.0
"""

PRIMITIVES = ("assignment_code_0", "assignment_math_0", "assignment_code_1", "assignment_math_1")
TABLE_8 = """
24x1         71.1 72.5 24.2 22.3
12x1         52.2 51.6 20.7 18.3
12x2         73.5 86.5 21.3 23.6
24x1-k12-w10 75.1 74.9 27.0 25.7
8x1          48.7 42.0 21.4 19.8
8x3          88.4 86.9 23.1 22.9
24x1-k8-w10  92.2 86.7 23.1 23.3
6x1          26.3 29.7 20.2 20.1
6x4          90.6 88.1 24.1 21.7
24x1-k6-w10  84.0 79.7 31.4 28.3
4x1          19.3 23.3 17.3 17.6
4x6          87.9 90.0 24.8 24.8
24x1-k4-w10  88.0 86.9 27.9 25.8
"""


def _read(*tables: tuple[tuple[str, ...], str]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for metrics, table in tables:
        for name, *numbers in map(str.split, table.strip().splitlines()):
            found.setdefault(name, {}).update(zip(metrics, map(float, numbers), strict=True))
    return found


PAPER = _read(
    (HEADLINE, TABLE_3_AND_4),
    (CLOSED_BOOK, TABLE_5),
    (OPEN_BOOK, TABLE_6),
    (MATH, TABLE_7),
    (PRIMITIVES, TABLE_8),
)
"""Row -> metric -> the paper's number."""
