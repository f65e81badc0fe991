"""Help: a first screen that comes at once, every option behind --help-all, and what was meant by a mistyped word."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import run
from loopt.commands import first_screens
from loopt.commands.completion import SHELLS
from loopt.errors import InputError, not_known
from loopt.reproduce.catalogue import EXPERIMENTS, LANGUAGE

Captured = pytest.CaptureFixture[str]
KEPT = first_screens.kept_options()
WITH_OPTIONS = [words for words, options in KEPT.items() if options]


@pytest.mark.slow
def test_the_kept_screens_are_what_the_commands_say() -> None:
    assert first_screens.FILE.read_text(encoding="utf-8") == first_screens.screens_now(), (
        "`make screens` writes them anew"
    )


@pytest.mark.parametrize("words", ["", "train", "train phop-cpu", "reproduce quick", "runs", "eval", "prove all"])
def test_a_first_screen_comes_without_torch(words: str) -> None:
    program = (
        "import sys; from loopt.cli import main; code = main([*sys.argv[1:], '--help']); "
        "sys.exit(code or 'torch' in sys.modules or 'tyro' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program, *words.split()], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("usage: loopt")


@pytest.mark.parametrize("words", WITH_OPTIONS)
def test_a_first_screen_is_short(words: str) -> None:
    screen = first_screens.kept_screen(words) or ""
    assert screen.count("\n") <= 66, screen
    assert len(re.findall(r"^  (?:-\w, )?--", screen, re.MULTILINE)) <= 18


@pytest.mark.parametrize("words", ["train phop-cpu", "train lm-1b", "reproduce phop", "reproduce language", "generate"])
def test_a_first_screen_leads_to_all_options(words: str, capsys: Captured) -> None:
    screen = first_screens.kept_screen(words) or ""
    first = set(re.findall(r"^  (?:-\w, )?(--[\w.-]+)", screen, re.MULTILINE))
    assert first < set(KEPT[words])
    assert f"{len(KEPT[words]) - len(first)} more options, by group: loopt {words} --help-all" in screen
    assert run(*words.split(), "--help-all") == 0
    whole = capsys.readouterr().out
    assert all(re.search(rf"^  (?:-\w, )?{option}\b", whole, re.MULTILINE) for option in KEPT[words])


def test_the_help_of_a_task_of_ones_own_imports_it() -> None:
    script = Path(__file__).parents[1] / "examples" / "own_task.py"
    command = [sys.executable, "-m", "loopt", "train", "parity", "--import", str(script), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    examples = re.findall(r"^ *(loopt train parity.*)$", shown, re.MULTILINE)
    assert len(examples) >= 3
    assert all(re.match(r"loopt train parity --import \S*examples/own_task\.py\b", one) for one in examples)
    assert re.search(r"more options, by group: loopt train\s+parity --import \S+ --help-all", shown)


def test_the_screen_of_reproduce_names_every_experiment() -> None:
    screen = first_screens.kept_screen("reproduce") or ""
    for name in ("quick", *EXPERIMENTS, *LANGUAGE):
        assert re.search(rf"^  {name}  ", screen, re.MULTILINE), name
        assert re.search(rf"^(?:usage:|      ) loopt reproduce .*\b{name}\b", screen, re.MULTILINE), name


@pytest.mark.parametrize("words", ["train phop-cpu", "train lm-cpu", "reproduce quick", "reproduce phop"])
def test_there_are_three_examples(words: str) -> None:
    examples = (first_screens.kept_screen(words) or "").partition("or example")[2]
    assert len(re.findall(r"^  loopt ", examples, re.MULTILINE)) >= 3


@pytest.mark.slow
def test_every_option_has_a_sentence(capsys: Captured) -> None:
    for words in WITH_OPTIONS:
        run(*words.split(), "--help-all")
        for option in re.split(r"\n(?=  -)", capsys.readouterr().out)[1:]:
            written, _, sentence = option.strip().partition("  ")
            told = sentence or option.partition("\n")[2]
            assert re.search(r"\w", re.sub(r"\(.*\)", "", told)), f"{words}: {written}"


def test_options_that_cannot_matter_are_not_there() -> None:
    assert not {"--micro-batch", "--parallel", "--data"} & set(KEPT["train phop-cpu"])
    assert not {"--fingerprint", "--end-of-document", "--p"} & set(KEPT["train lm-cpu"])
    assert not {"--parallel", "--micro-batch", "--recompute", "--keep"} & set(KEPT["reproduce quick"])
    assert {"--micro-batch", "--parallel"} <= set(KEPT["train lm-cpu"])


def test_what_was_probably_meant_is_named() -> None:
    with pytest.raises(InputError, match=r"'evla' is not known; did you mean eval\? Allowed are train, eval"):
        raise not_known("command", "evla", ["train", "eval"])
    with pytest.raises(InputError, match="'fly' is not known; allowed are train, eval"):
        raise not_known("command", "fly", ["train", "eval"])


@pytest.mark.parametrize("words", first_screens.CHOICES)
def test_a_mistyped_name_is_refused_without_torch_as_the_command_would(words: str) -> None:
    command, *above = words.split()
    module = importlib.import_module(f"loopt.commands.{command}")
    with pytest.raises(InputError) as refused:
        module.main([*above, "phop-cpuu"])
    program = (
        "import sys; from loopt.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    typed = [*words.split(), "phop-cpuu", "--steps", "5"]
    shown = subprocess.run([sys.executable, "-c", program, *typed], capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (2, f"loopt: {refused.value}\n")


def completed(words: list[str], capsys: Captured) -> list[str]:
    assert run("--complete", *words) == 0
    return capsys.readouterr().out.split()


def test_words_are_completed(capsys: Captured) -> None:
    assert completed(["tr"], capsys) == ["train"]
    assert completed(["train", "phop"], capsys) == ["phop-cpu", "phop"]
    assert "compare" in completed(["runs", ""], capsys)
    assert completed(["train", "phop-cpu", "--optim.l"], capsys) == ["--optim.lr"]
    assert completed(["generate", "runs/mine", "--temp"], capsys) == ["--temperature"]
    assert completed(["generate", "runs/m"], capsys) == []


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed_at_home(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    assert run("--install-completion") == 0
    (script,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert "loopt --complete" in script.read_text()
    assert str(script) in capsys.readouterr().out


def test_bash_completes_with_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("--install-completion", "bash") == 0
    (script,) = (path for path in tmp_path.rglob("*") if path.is_file())
    program = (
        f'loopt() {{ {sys.executable} -m loopt "$@"; }}; source {script}; '
        "COMP_WORDS=(loopt train phop-c); COMP_CWORD=2; "
        'complete() { :; }; _loopt; echo "${COMPREPLY[@]}"'
    )
    shown = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert shown.stdout.split() == ["phop-cpu"], shown.stderr
