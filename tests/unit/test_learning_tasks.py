"""The tasks of examples/learning: solved by what they ask for, and by nothing less."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.evaluators.workplace import FolderRuntime

from polar.types import Message

FOLDER = Path(__file__).parents[2] / "examples" / "learning"
SAMPLES = 36
"""Tasks of each kind: some of each family."""


@pytest.fixture(scope="module")
def families() -> Any:
    return of_example("families")


@pytest.fixture(scope="module")
def script() -> Any:
    return of_example("demonstrations")


def of_example(name: str) -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def held(task: dict[str, Any], folder: Path, steps: list[str]) -> list[bool]:
    """Which of the task's checks hold after the commands."""
    folder.mkdir()
    for name, text in task["files"].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    shown: list[str] = []
    for step in steps:
        command = ["sh", "-c", step.format(shown=" ".join(shown))]
        printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        if step.startswith("cat "):
            shown.append(printed.strip())
    checks = task["evaluator"]["options"]["checks"]
    return [
        subprocess.run(["sh", "-c", check], cwd=folder, capture_output=True).returncode == 0 for check in checks
    ]


def some_tasks(families: Any) -> list[dict[str, Any]]:
    """Of training, of the warm start, and held out."""
    kinds = (families.training, families.training_joined, families.demonstrated, families.held_out)
    return [kind(number) for kind in kinds for number in range(SAMPLES)]


def test_what_the_instruction_asks_for_solves_the_task(families: Any, script: Any, tmp_path: Path) -> None:
    for number, task in enumerate(some_tasks(families)):
        assert all(held(task, tmp_path / str(number), script.commands(task["instruction"]))), task


def test_one_step_less_does_not(families: Any, script: Any, tmp_path: Path) -> None:
    for number, task in enumerate(some_tasks(families)):
        assert not all(held(task, tmp_path / str(number), script.commands(task["instruction"])[:-1])), task


def test_families_have_as_many_steps_as_they_say(families: Any, script: Any) -> None:
    words = families.TRAINING_WORDS
    one_step = (*families.ONE_STEP, *families.MORE_ONE_STEP)
    kinds_of = {1: one_step, 2: families.TWO_STEPS, 3: (*families.SEVERAL_STEPS, families.any_three)}
    for count, kinds in kinds_of.items():
        for family in kinds:
            assert len(script.commands(family(random.Random(1), words)["instruction"])) == count


def test_every_sentence_of_a_longer_task_is_learned_in_a_shorter_one(families: Any) -> None:
    def verbs(kinds: tuple[Any, ...]) -> set[str]:
        tasks = [family(random.Random(1), families.TRAINING_WORDS) for family in kinds]
        return {sentence.split()[0] for task in tasks for sentence in re.split(r"\. ", task["instruction"])}

    known = verbs((*families.ONE_STEP, *families.MORE_ONE_STEP)) | {"Show"}
    assert verbs(families.TWO_STEPS) | verbs(families.SEVERAL_STEPS) <= known


def test_the_warm_start_shows_no_family_that_is_counted_as_several_steps(families: Any) -> None:
    shown = {families.demonstrated(number)["metadata"]["family"] for number in range(200)}
    assert not shown & {family.__name__ for family in families.SEVERAL_STEPS}
    assert {"word", "any_two", "any_three"} < shown


def test_families_of_transfer_are_never_trained_on(families: Any) -> None:
    kinds = (families.training, families.training_joined, families.demonstrated)
    trained = {kind(number)["metadata"]["family"] for kind in kinds for number in range(500)}
    assert not trained & {family.__name__ for family in families.TRANSFER}
    assert {family.__name__ for family in families.SEVERAL_STEPS} < trained


def test_transfer_is_tried_from_near_to_far(families: Any, script: Any) -> None:
    """Other wording needs no command that is not trained; other commands need only such."""

    def programs(kinds: tuple[Any, ...]) -> set[str]:
        tasks = [family(random.Random(1), families.HELD_OUT_WORDS) for family in kinds]
        return {command.split()[0] for task in tasks for command in script.commands(task["instruction"])}

    trained = programs((*families.ONE_STEP, *families.MORE_ONE_STEP))
    assert programs(families.OTHER_WORDING) <= programs(families.ONE_STEP)
    assert programs(families.OTHER_SEQUENCES) <= trained
    [appended] = script.commands(families.append(random.Random(1), families.HELD_OUT_WORDS)["instruction"])
    assert ">>" in appended
    assert not programs((families.empty_file,)) & trained


def test_the_script_answers_with_one_command_after_the_other(script: Any) -> None:
    prompt = "<|im_start|>user\nShow the file a.txt. Write its word into the file b.txt.<|im_end|>\n"
    first = '<tool_call>{"name": "bash", "arguments": {"command": "cat a.txt"}}</tool_call>'
    assert script.reply(prompt) == first
    prompt += f"<|im_start|>assistant\n{first}<|im_end|>\n<|im_start|>tool\nblue\n<|im_end|>\n"
    second = script.reply(prompt)
    assert '"echo blue > b.txt"' in second
    prompt += f"<|im_start|>assistant\n{second}<|im_end|>\n<|im_start|>tool\n(no output)<|im_end|>\n"
    assert script.reply(prompt) == "Done."


def test_the_same_number_is_the_same_task(families: Any) -> None:
    assert families.training(7) == families.training(7)
    assert families.training(7) != families.training(18)


def test_held_out_instances_share_no_word_with_training(families: Any) -> None:
    assert not set(families.TRAINING_WORDS) & set(families.HELD_OUT_WORDS)


@pytest.mark.parametrize(
    ("needed", "run", "reward"), [(None, 5, 1.0), (2, 2, 1.0), (2, 1, 1.0), (2, 3, 0.9), (2, 9, 0.7)]
)
async def test_commands_more_than_needed_cost_a_little(
    needed: int | None, run: int, reward: float, tmp_path: Path
) -> None:
    score = await checked(tmp_path, ["true", "true"], needed, run)
    assert score.reward == pytest.approx(reward)


async def test_a_solution_of_many_commands_is_worth_more_than_a_short_attempt(tmp_path: Path) -> None:
    solved = await checked(tmp_path, ["true", "true", "true"], 3, 9)
    attempted = await checked(tmp_path, ["true", "true", "false"], 3, 3)
    useless = await checked(tmp_path, ["false"], 1, 9)
    assert solved.reward > attempted.reward > useless.reward == 0.0


async def checked(folder: Path, checks: list[str], needed: int | None, run: int) -> Any:
    checks_class = of_example("checks").Checks
    evaluator = checks_class(checks_class.Options(checks=checks, commands=needed))
    seen = SimpleNamespace(runtime=FolderRuntime(folder), transcript=(Message("user"), *[Message("tool")] * run))
    return await evaluator.evaluate(seen)


def test_tasks_with_a_cost_say_how_many_commands_they_need_and_held_out_ones_have_none(
    families: Any, script: Any
) -> None:
    for number in range(SAMPLES):
        task = families.training_joined(number)
        assert task["evaluator"]["options"]["commands"] == len(script.commands(task["instruction"]))
        assert "commands" not in families.held_out(number)["evaluator"]["options"]
