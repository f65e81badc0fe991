"""The 14 data sets behind the 15 real tasks: where each comes from, its licence, and its name and splits on the hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["closed_book", "open_book", "dialog", "math_word"]

LAYOUTS: dict[Form, str] = {
    "closed_book": '{"id", "question", "answers": [text, …]}',
    "open_book": '{"id", "context", "question", "answers": [text, …]}',
    "dialog": '{"id", "context", "turns": [{"question", "answers": [text, …]}, …]}',
    "math_word": '{"id", "question", "answer"}, with or without a "body" before the question',
}
"""The fields of a line of JSON, for each form a data set may have."""


@dataclass(frozen=True)
class HubSet:
    """A data set on the Hugging Face hub."""

    dataset: str
    config: str | None
    splits: tuple[str, ...]
    """The splits to score."""
    shot_split: str | None
    """The split that shots come from; None: a reserved part of what is there."""
    data_files: str | None = None
    revision: str | None = None


PARQUET = "refs/convert/parquet"
"""The branch on which the hub keeps a Parquet copy of a set that is published as a script."""


@dataclass(frozen=True)
class DataSet:
    """A published set of questions."""

    folder: str
    """Its folder in a ``--data-dir``."""
    title: str
    form: Form
    license: str
    origin: str
    """Where to get it."""
    hub: HubSet


DATA_SETS = (
    DataSet(
        "triviaqa",
        "TriviaQA, unfiltered",
        "closed_book",
        "code Apache-2.0; the questions belong to their authors",
        "nlp.cs.washington.edu/triviaqa, unfiltered dev; answers are all aliases, the canonical one first",
        HubSet("mandarjoshi/trivia_qa", "unfiltered.nocontext", ("validation",), "train"),
    ),
    DataSet(
        "nq_open",
        "Natural Questions, open",
        "closed_book",
        "CC BY-SA 3.0",
        "github.com/google-research-datasets/natural-questions, nq_open/NQ-open.dev.jsonl",
        HubSet("google-research-datasets/nq_open", None, ("validation",), "train"),
    ),
    DataSet(
        "webquestions",
        "WebQuestions",
        "closed_book",
        "CC BY 4.0",
        "nlp.stanford.edu/software/sempre, WebQuestions test",
        HubSet("stanfordnlp/web_questions", None, ("test",), "train"),
    ),
    DataSet(
        "tydiqa_goldp_en",
        "TyDi QA GoldP, English",
        "open_book",
        "Apache-2.0",
        "github.com/google-research-datasets/tydiqa, GoldP v1.1 dev, the English part",
        HubSet("google-research-datasets/tydiqa", "secondary_task", ("validation",), "train"),
    ),
    DataSet(
        "squad_v2",
        "SQuAD 2.0",
        "open_book",
        "CC BY-SA 4.0",
        "rajpurkar.github.io/SQuAD-explorer, dev-v2.0.json; no answers: unanswerable",
        HubSet("rajpurkar/squad_v2", None, ("validation",), "train"),
    ),
    DataSet(
        "drop",
        "DROP",
        "open_book",
        "CC BY-SA 4.0",
        "allenai.org/data/drop, dev; the spans of one answer joined with ' and '",
        HubSet("EleutherAI/drop", None, ("validation",), "train", revision=PARQUET),
    ),
    DataSet(
        "quac",
        "QuAC",
        "dialog",
        "CC BY-SA 4.0",
        "quac.ai, val_v0.2.json; CANNOTANSWER: unanswerable",
        HubSet("allenai/quac", None, ("validation",), "train", revision=PARQUET),
    ),
    DataSet(
        "coqa",
        "CoQA",
        "dialog",
        "by domain: CC BY-SA 4.0 (Gutenberg, Wikipedia), MSR-LA (MCTest), RACE's own, Apache-2.0 (CNN)",
        "stanfordnlp.github.io/coqa, coqa-dev-v1.0.json with the additional answers",
        HubSet("EleutherAI/coqa", None, ("validation",), "train", revision=PARQUET),
    ),
    DataSet(
        "asdiv",
        "ASDiv",
        "math_word",
        "CC BY-NC 4.0",
        "github.com/chaochun/nlu-asdiv-dataset, ASDiv.xml",
        HubSet("EleutherAI/asdiv", None, ("validation",), None, revision=PARQUET),
    ),
    *(
        DataSet(
            f"mawps_{part.lower()}",
            f"MAWPS {part}",
            "math_word",
            "none stated",
            f"github.com/sroy9/mawps; as {part}.json in github.com/wzy6642/PRP",
            HubSet("HuggingFaceTB/math_tasks", None, ("train",), None, data_files=f"data/mawps/{part.lower()}.jsonl"),
        )
        for part in ("AddSub", "MultiArith", "SingleEq", "SingleOp")
    ),
    DataSet(
        "svamp",
        "SVAMP",
        "math_word",
        "MIT",
        "github.com/arkilpatel/SVAMP, SVAMP.json",
        HubSet("ChilleD/SVAMP", None, ("train", "test"), None),
    ),
)
