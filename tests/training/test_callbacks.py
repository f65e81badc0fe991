"""Who listens to a run hears everything that happens, in order, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from loopt.plan import LoopPlan
from loopt.runs.stacking import StackingConfig
from loopt.training import Callback, train
from loopt.training.learner import Evaluation
from loopt.training.trainer import Trainer
from tiny_runs import CPU, TINY, assert_same, metrics, tiny


class Listener(Callback):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.losses: list[float] = []

    def begun(self, trainer: Trainer) -> None:
        self.heard.append(("begun", trainer.step))

    def stepping(self, trainer: Trainer) -> None:
        self.heard.append(("stepping", trainer.step))

    def stepped(self, trainer: Trainer) -> None:
        self.heard.append(("stepped", trainer.step))

    def logged(self, trainer: Trainer, values: Mapping[str, float]) -> None:
        self.heard.append(("logged", trainer.step))
        self.losses.append(values["loss"])

    def evaluated(self, trainer: Trainer, evaluation: Evaluation) -> None:
        assert evaluation.values["validation_accuracy"] == evaluation.score
        self.heard.append(("evaluated", trainer.step))

    def saved(self, trainer: Trainer) -> None:
        assert (trainer.run.checkpoints / f"step-{trainer.step}").exists()
        self.heard.append(("saved", trainer.step))

    def grown(self, trainer: Trainer, plan: LoopPlan) -> None:
        assert trainer.learner.model.config.plan == plan
        self.heard.append((f"grown to {plan}", trainer.step))

    def finished(self, trainer: Trainer) -> None:
        self.heard.append(("finished", trainer.step))

    def closed(self, trainer: Trainer) -> None:
        self.heard.append(("closed", trainer.step))


def test_everything_is_heard_in_order(tmp_path: Path) -> None:
    config, listener = replace(TINY, steps=6, log_every=2, eval_every=3), Listener()
    train(config, tmp_path / "heard", CPU, callbacks=[listener])
    due = {2: ["logged"], 3: ["evaluated", "saved"], 4: ["logged"], 6: ["logged", "evaluated", "saved"]}
    expected = [("begun", 0)]
    for step in range(1, 7):
        expected += [("stepping", step - 1), *((event, step) for event in due.get(step, [])), ("stepped", step)]
    assert listener.heard == [*expected, ("finished", 6), ("closed", 6)]
    assert listener.losses == [entry["loss"] for entry in metrics(tmp_path / "heard") if "loss" in entry]
    train(config, tmp_path / "unheard", CPU)
    assert_same(tmp_path / "heard", tmp_path / "unheard")


def test_growth_is_heard_and_a_resumed_run_begins_where_it_was(tmp_path: Path) -> None:
    model = replace(TINY.model, plan=LoopPlan.parse("3x1"))
    config = tiny(model=model, stacking=StackingConfig(block=1, grow_at=(2, 4)), steps=8, eval_every=8)
    listener = Listener()
    train(config, tmp_path, CPU, callbacks=[listener])
    assert [heard for heard in listener.heard if "grown" in heard[0]] == [("grown to 2x1", 2), ("grown to 3x1", 4)]

    first, second = Listener(), Listener()
    train(TINY, tmp_path / "again", replace(CPU, time_limit=0), callbacks=[first])
    assert first.heard[-1] == ("closed", 1)
    assert ("finished", 1) not in first.heard
    train(TINY, tmp_path / "again", CPU, callbacks=[second])
    assert second.heard[0] == ("begun", 1)


def test_a_callback_may_look_at_the_model(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Weights(Callback):
        def evaluated(self, trainer: Trainer, evaluation: Evaluation) -> None:
            seen.append(trainer.learner.model.token_embedding.weight.detach().clone())

    train(TINY, tmp_path, CPU, callbacks=[Weights()])
    assert len(seen) == 4
    assert not torch.equal(seen[0], seen[-1])
