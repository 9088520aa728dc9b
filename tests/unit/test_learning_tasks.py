"""The tasks of examples/learning: solved by what they ask for, and by nothing less."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "learning"
SAMPLES = 33
"""Some instances of each family."""

STEPS = (
    (r"Write the (?:word|number) (\S+) into the file (\S+?)", r"echo \1 > \2"),
    (r"Make a folder named (\S+?)", r"mkdir \1"),
    (r"Copy the file (\S+) to (\S+?)", r"cp \1 \2"),
    (r"Replace (\S+) by (\S+) in the file (\S+?)", r"sed -i s/\1/\2/ \3"),
    (r"Run sh (\S+?)", r"sh \1"),
    (r"Move the file (\S+) into the folder (\S+?)", r"mv \1 \2"),
    (r"Rename the file (\S+) to (\S+?)", r"mv \1 \2"),
    (r"Append the word (\S+) to the file (\S+?)", r"echo \1 >> \2"),
    (r"Make an empty file named (\S+?)", r"touch \1"),
    (r"Show the file (\S+?)", r"cat \1 | tee -a seen"),
    (r"Write both words in one line into the file (\S+?)", r"echo $(cat seen) > \1"),
)


@pytest.fixture(scope="module")
def families() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        import families

        return families
    finally:
        sys.path.remove(str(FOLDER))


def commands(instruction: str) -> list[str]:
    """One for each sentence."""
    found: list[str] = []
    for sentence in re.split(r"\. (?=[A-Z])", instruction.removesuffix(".")):
        [command] = [
            re.sub(f"^{pattern}$", to, sentence) for pattern, to in STEPS if re.match(f"^{pattern}$", sentence)
        ]
        found.append(command)
    return found


def held(task: dict[str, Any], folder: Path, steps: list[str]) -> list[bool]:
    """Which of the task's checks hold after the commands."""
    folder.mkdir()
    for name, text in task["files"].items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for step in steps:
        subprocess.run(["sh", "-c", step], cwd=folder, check=True, capture_output=True)
    checks = task["evaluator"]["options"]["checks"]
    return [
        subprocess.run(["sh", "-c", check], cwd=folder, capture_output=True).returncode == 0 for check in checks
    ]


def some_tasks(families: Any) -> list[dict[str, Any]]:
    """Of every part of the training, and held out."""
    numbers = [step * families.PHASE // 12 for step in range(36)]
    return [families.training(number) for number in numbers] + [families.held_out(n) for n in range(SAMPLES)]


def test_what_the_instruction_asks_for_solves_the_task(families: Any, tmp_path: Path) -> None:
    for number, task in enumerate(some_tasks(families)):
        assert all(held(task, tmp_path / str(number), commands(task["instruction"]))), task


def test_one_step_less_does_not(families: Any, tmp_path: Path) -> None:
    for number, task in enumerate(some_tasks(families)):
        assert not all(held(task, tmp_path / str(number), commands(task["instruction"])[:-1])), task


def test_families_have_as_many_steps_as_they_say(families: Any) -> None:
    words = families.TRAINING_WORDS
    one_step = (*families.ONE_STEP, *families.MORE_ONE_STEP)
    for count, kinds in ((1, one_step), (2, families.TWO_STEPS), (3, families.SEVERAL_STEPS)):
        for family in kinds:
            assert len(commands(family(random.Random(1), words)["instruction"])) == count


def test_every_sentence_of_a_longer_task_is_learned_in_a_shorter_one(families: Any) -> None:
    def verbs(kinds: tuple[Any, ...]) -> set[str]:
        tasks = [family(random.Random(1), families.TRAINING_WORDS) for family in kinds]
        return {sentence.split()[0] for task in tasks for sentence in re.split(r"\. ", task["instruction"])}

    known = verbs((*families.ONE_STEP, *families.MORE_ONE_STEP)) | {"Show"}
    assert verbs(families.TWO_STEPS) | verbs(families.SEVERAL_STEPS) <= known


def test_the_same_number_is_the_same_task(families: Any) -> None:
    assert families.training(7) == families.training(7)
    assert families.training(7) != families.training(18)


def test_held_out_instances_share_no_word_with_training(families: Any) -> None:
    assert not set(families.TRAINING_WORDS) & set(families.HELD_OUT_WORDS)
