from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
import torch
import tyro
from torch.utils._python_dispatch import TorchDispatchMode

from loopt import tasks
from loopt.errors import InputError
from loopt.random_bits import Stream, TensorStream
from loopt.tasks import IGSM, Addition, AfterStart, BinaryAddition, GroupComposition, PHop, VariableAssignment

# Every task by default, with labels at every position where it has them, one with padding in front, and problems drawn
# by another law.
SAMPLED = [tasks.get(name) for name in tasks.names()]
SAMPLED += [tasks.get(task.name, supervision="every") for task in SAMPLED if hasattr(task, "supervision")]
SAMPLED += [Addition(supervision="every", room=32), IGSM(levels=(2, 4)), IGSM(law="even", supervision="every")]
SAMPLED += [IGSM().difficulties["7 operations"]]
SAMPLED += [AfterStart.of(PHop(p=(1, 2), n=9)), *(BinaryAddition(form=form) for form in ("chain", "dummies"))]
# With labels at every position a sampler does all that it does with the last alone, and more.
TRACED = [task for task in SAMPLED if getattr(task, "supervision", "every") == "every"]
TRACED += [IGSM(levels=(2, 4)), IGSM().difficulties["7 operations"]]
sampled = pytest.mark.parametrize("task", SAMPLED, ids=str)


class NoHostIndices(TorchDispatchMode):
    """Fails where a tensor is indexed by one that was made on the host, which a CUDA device would have to wait for: by
    one that comes out of no operation that ran here."""

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.made = list(given)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.index.Tensor:
            assert all(any(index is one for one in self.made) for index in args[1] if index is not None)
        made = function(*args, **(kwargs or {}))
        self.made += made if isinstance(made, list | tuple) else [made]
        return made


def test_get_by_name() -> None:
    assert "phop" in tasks.names()
    assert tasks.names() == tuple(tasks.known())
    assert tasks.get("phop") == PHop()
    assert tasks.get("phop", p=3, n=24) == PHop(p=(3,), n=24)


def test_settings_survive_json() -> None:
    for name in tasks.names():
        task = tasks.get(name)
        assert tasks.get(**json.loads(json.dumps({"name": name, **asdict(task)}))) == task
    mixed = PHop(p=(1, 2, 3), n=30)
    assert tasks.get("phop", **json.loads(json.dumps(asdict(mixed)))) == mixed


@pytest.mark.parametrize(("arguments", "p"), [(["--p", "8"], (8,)), (["--p", "1", "2", "3"], (1, 2, 3)), ([], (16,))])
def test_settings_on_the_command_line(arguments: list[str], p: tuple[int, ...]) -> None:
    assert tyro.cli(PHop, args=[*arguments, "--n", "40"]) == PHop(p=p, n=40)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("hop", {}, "task 'hop' is not known; allowed are phop"),
        (
            "phop",
            {"q": 1},
            "task phop: no setting 'q'; allowed are train_examples, answer_weight, target_accuracy, p, n, ",
        ),
    ],
)
def test_unknown_names_are_listed(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        tasks.get(name, **settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", tasks.names())
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"split": "dev"}, "split='dev'; allowed are train, validation, test"),
        ({"seed": 0.5}, "seed=0.5; allowed are integers"),
        ({"seed": True}, "seed=True; allowed are integers"),
        ({"seed": 2**63}, f"seed={2**63}; allowed are integers"),
        ({"indices": range(-1, 3)}, "index=-1; allowed are integers, 0 to"),
        ({"indices": range(3, -2, -1)}, "index=-1; allowed are integers, 0 to"),
        ({"indices": range(2**62, 2**62 + 2)}, f"index={2**62 + 1}; allowed are integers, 0 to"),
        ({"indices": torch.tensor([4, -7])}, "index=-7; allowed are integers, 0 to"),
        ({"indices": [1, 2]}, "indices=[1, 2]; allowed are a range or an int64 tensor"),
        ({"indices": torch.tensor([1.5])}, "indices=tensor([1.5000]); allowed are a range or an int64 tensor"),
    ],
)
def test_bad_requests_for_examples(name: str, bad: dict[str, Any], message: str) -> None:
    request: dict[str, Any] = {"indices": range(3), "seed": 0, "split": "train"} | bad
    with pytest.raises(InputError) as error:
        tasks.get(name).sample(**request)
    assert str(error.value).startswith(f"task {name}: {message}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", tasks.names())
def test_targets_and_answers_agree_with_the_solver(name: str) -> None:
    task = tasks.get(name)
    batch = task.sample(range(8), 0, "train")
    assert batch.tokens.shape == batch.targets.shape == batch.answers.shape
    assert batch.tokens.shape[1] <= task.length
    assert batch.tokens.dtype == batch.targets.dtype == batch.answers.dtype == torch.int64
    assert len(set(task.vocabulary)) == len(task.vocabulary)
    assert 0 <= batch.tokens.min() <= batch.tokens.max() < len(task.vocabulary)
    for tokens, targets, answers in zip(batch.tokens, batch.targets, batch.answers, strict=True):
        labels = torch.tensor(task.solve(tokens.tolist()))
        assert (answers != tasks.IGNORE).any()
        assert torch.equal(targets, torch.where(targets == tasks.IGNORE, tasks.IGNORE, labels))
        assert torch.equal(answers, torch.where(answers == tasks.IGNORE, tasks.IGNORE, labels))
        assert task.render(tokens.tolist())


@pytest.mark.parametrize("name", tasks.names())
def test_the_same_split_and_seed_give_the_same_examples(name: str) -> None:
    task = tasks.get(name)
    first, again = task.sample(range(100, 110), 5, "test"), task.sample(torch.arange(100, 110), 5, "test", "cpu")
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, task.sample(range(100, 110), 6, "test").tokens)


@pytest.mark.parametrize("name", tasks.names())
def test_keys_in_a_tensor_give_the_same_examples(name: str) -> None:
    task, indices = tasks.get(name), torch.arange(70, 90)
    for one in task.mixture:
        stream = Stream(one.name, 4, "train")
        same = TensorStream.like(stream, partial(one.draw, indices[:1]), indices.device)
        assert torch.equal(one.draw(indices, same).tokens, one.draw(indices, stream).tokens)


@pytest.mark.slow
def test_one_compiled_sampler_serves_all_seeds() -> None:
    graphs = 0

    def count(graph: torch.fx.GraphModule, inputs: object) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    task, indices = tasks.get("phop", p=2, n=8), torch.arange(5)
    draw = torch.compile(lambda stream: task.draw(indices, stream).tokens, backend=count)
    for seed in (0, 1, 2**40, 7):
        stream = Stream("phop", seed, "train")
        same = TensorStream.like(stream, partial(task.draw, indices[:1]), indices.device)
        assert torch.equal(draw(same), task.draw(indices, stream).tokens)
    assert graphs == 1


@pytest.mark.slow
@pytest.mark.parametrize("task", TRACED, ids=str)
def test_a_compiler_can_follow_every_sampler(task: tasks.Task) -> None:
    """There is no graph break, since a step is captured whole. Samplers are traced only, not compiled for a device."""
    indices = torch.arange(6)
    for one in task.mixture[:2]:  # which differ in a length alone
        torch.compiler.reset()
        stream = Stream(one.name, 4, "train")
        same = TensorStream.like(stream, partial(one.draw, indices[:1]), indices.device)
        traced = torch.compile(lambda stream, one=one: one.draw(indices, stream), backend="eager", fullgraph=True)
        assert torch.equal(traced(same).targets, one.draw(indices, stream).targets)


@pytest.mark.slow
@sampled
def test_sampling_never_waits_for_a_device(task: tasks.Task) -> None:
    """Meta tensors have shapes but no values: whatever runs on them reads nothing back to the host."""
    indices = torch.arange(6, device="meta")
    task.sample(indices, 0, "train")  # what is copied once
    with NoHostIndices(indices):
        batch = task.sample(indices, 0, "train")
    assert batch.tokens.device.type == "meta"
    assert batch.tokens.shape == (6, task.length)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@sampled
def test_a_cuda_graph_gives_the_examples_of_the_cpu(task: tasks.Task) -> None:
    indices = torch.arange(64, device="cuda")
    task.sample(indices, 3, "train")  # libraries load outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = task.sample(indices, 3, "train")
    indices += 2**40
    graph.replay()
    expected = task.sample(range(2**40, 2**40 + 64), 3, "train")
    for field in ("tokens", "targets", "answers"):
        assert torch.equal(getattr(batch, field).cpu(), getattr(expected, field))


# A document for language models

DOCUMENTED = [
    ("assignment", {}, "a=1, b=2, c=a, d=b, d=?", "a=1, b=2, c=a, d=b, d=? 2"),
    (
        "assignment",
        {"rendering": "code", "shots": 1, "variables": 2},
        "a=3\nb=7\nprint(a)#3\nb=9\na=4\nprint(a)#",
        "a = 3\nb = 7\nprint(a)  # 3\nb = 9\na = 4\nprint(a)  # 4",
    ),
    ("addition", {"room": 32}, "pad pad 315+120+045+824=", "315+120+045+824=1304"),
    ("phop", {"p": 2, "n": 8, "alphabet": 3}, "acbacbba", "a c b a c b b a, 2 hops: b"),
    ("phop", {"p": (1, 2), "n": 8, "sampler": "uniform"}, "p=1 abc", "a b c, 1 hop: ⊥"),
    ("group", {"group": "S3", "n": 2}, "(1 2) (2 3)", "(1 2) ∘ (2 3) = (1 2 3)"),
    ("igsm", {}, "F#K := 3 + E#I. E#I := 5. F#K?", "F#K := 3 + E#I. E#I := 5. F#K? 1"),
]


@pytest.mark.parametrize(("name", "settings", "typed", "document"), DOCUMENTED)
def test_a_document_is_question_and_answer(name: str, settings: dict[str, Any], typed: str, document: str) -> None:
    task = tasks.get(name, **settings)
    assert task.document(task.encode(typed)) == document


FEW_EXAMPLES = [
    *(VariableAssignment(0, 2, r, s, letters=3, largest=2) for r in ("math", "code") for s in (0, 1)),
    VariableAssignment(1, 2, order="shuffled", letters=4, largest=2),
    PHop(p=(1, 2), n=5, alphabet=2),
    PHop(p=(2,), n=4, alphabet=2, sampler="uniform"),
    Addition(operands=(1, 2, 11), digits=1, room=32),
    Addition(operands=(1, 2), digits=1, room=32, fill="zeros"),
    GroupComposition("Z2xZ2", n=3),
]


@pytest.mark.parametrize("task", [*map(tasks.get, tasks.names()), *FEW_EXAMPLES], ids=str)
def test_documents_end_with_the_answer_and_differ_where_examples_do(task: tasks.Task) -> None:
    batch = task.sample(range(400), 0, "train")
    documents = [task.document(tokens) for tokens in batch.tokens.tolist()]
    for document, answers in zip(documents, batch.answers.tolist(), strict=True):
        answer = "".join(task.vocabulary[label] for label in answers if label != tasks.IGNORE)
        assert document.endswith(answer.removesuffix("end"))
    examples = {tuple(tokens) for tokens in batch.tokens.tolist()}
    assert len(set(documents)) == len(examples)
    assert task not in FEW_EXAMPLES or len(examples) < len(documents)


def test_a_document_of_igsm_reads_back_as_its_example() -> None:  # there are too many for any two to be the same
    task = IGSM(modulus=23, law="even", statements=6, needed=(1, 6))
    for tokens in task.sample(range(100), 0, "train").tokens.tolist():
        assert task.encode(task.document(tokens).rpartition(" ")[0]) == tokens


def test_a_task_without_documents_is_refused_by_name() -> None:
    class Silent(PHop):
        name = "silent"
        document = tasks.Task.document

    with pytest.raises(InputError, match=r"^task silent: has no documents for language models$"):
        Silent().document([0])
