"""Small shell tasks for a small model, in families: every number makes another instance of one of them.

Tasks of `ONE_STEP` and `MORE_ONE_STEP` take one command, those of `TWO_STEPS` and `SEVERAL_STEPS` two and three.
Every command that the long ones need can be learned in a short one. Held-out instances have words that no training
instance has, and `TRANSFER` has families that are never trained on, from near to far: other wording, other
sequences of steps, other commands.

    python examples/learning/families.py held_out 800 > tasks.jsonl
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAINING_WORDS = """
apple river stone cloud maple tiger lemon ocean piano robin sugar wheat copper violet marble falcon cedar
amber bamboo canyon ember garnet hazel indigo jasper lilac mango nectar olive pepper quartz raven saffron
timber umber velvet willow
""".split()
HELD_OUT_WORDS = """
banana desert flower guitar hammer island jacket kettle ladder mirror needle orange pillow rabbit silver
tunnel valley walnut yellow zebra anchor basket candle dragon engine forest garden harbor
""".split()

RUNTIME = "bubblewrap" if shutil.which("bwrap") else "local"
"""A small model at temperature 1 tries every command, also `rm -rf /`. The local runtime contains nothing."""

Task = dict[str, Any]
Family = Callable[[random.Random, list[str]], Task]


def word(draw: random.Random, words: list[str]) -> Task:
    chosen, name = draw.choice(words), files(draw, words, 1)[0]
    return task(f"Write the word {chosen} into the file {name}.", [f'[ "$(cat {name})" = {chosen} ]'])


def number(draw: random.Random, words: list[str]) -> Task:
    chosen, name = draw.randrange(1000), files(draw, words, 1)[0]
    return task(f"Write the number {chosen} into the file {name}.", [f'[ "$(cat {name})" = {chosen} ]'])


def folder(draw: random.Random, words: list[str]) -> Task:
    name = numbered(draw, words)
    return task(f"Make a folder named {name}.", [f"[ -d {name} ]"])


def copy(draw: random.Random, words: list[str]) -> Task:
    (source, target), text = files(draw, words, 2), draw.choice(words)
    return task(
        f"Copy the file {source} to {target}.",
        [f'[ "$(cat {target})" = {text} ] && [ "$(cat {source})" = {text} ]'],
        {source: f"{text}\n"},
    )


def replace(draw: random.Random, words: list[str]) -> Task:
    old, new = draw.sample(words, 2)
    name = files(draw, words, 1)[0]
    return task(
        f"Replace {old} by {new} in the file {name}.", [f'[ "$(cat {name})" = {new} ]'], {name: f"{old}\n"}
    )


def run(draw: random.Random, words: list[str]) -> Task:
    script = f"{draw.choice(words)}.sh"
    return task(f"Run sh {script}.", ['[ "$(cat ran.txt)" = yes ]'], {script: "echo yes > ran.txt\n"})


def move(draw: random.Random, words: list[str]) -> Task:
    text, name, moved = draw.choice(words), numbered(draw, words), files(draw, words, 1)[0]
    return task(
        f"Move the file {moved} into the folder {name}.",
        [f'[ ! -e {moved} ] && [ "$(cat {name}/{moved})" = {text} ]'],
        {moved: f"{text}\n", f"{name}/first.txt": "first\n"},
    )


def rename(draw: random.Random, words: list[str]) -> Task:
    text, (old, new) = draw.choice(words), files(draw, words, 2)
    return task(
        f"Rename the file {old} to {new}.", [f'[ ! -e {old} ] && [ "$(cat {new})" = {text} ]'], {old: f"{text}\n"}
    )


def folder_then_word(draw: random.Random, words: list[str]) -> Task:
    chosen, name, inner = draw.choice(words), numbered(draw, words), files(draw, words, 1)[0]
    return task(
        f"Make a folder named {name}. Write the word {chosen} into the file {name}/{inner}.",
        [f"[ -d {name} ]", f'[ "$(cat {name}/{inner})" = {chosen} ]'],
    )


def copy_then_number(draw: random.Random, words: list[str]) -> Task:
    (source, target, other), text = files(draw, words, 3), draw.choice(words)
    chosen = draw.randrange(1000)
    return task(
        f"Copy the file {source} to {target}. Write the number {chosen} into the file {other}.",
        [f'[ "$(cat {target})" = {text} ]', f'[ "$(cat {other})" = {chosen} ]'],
        {source: f"{text}\n"},
    )


def replace_then_run(draw: random.Random, words: list[str]) -> Task:
    """What is run fails before the replacement."""
    old, new = draw.sample(words, 2)
    name = files(draw, words, 1)[0]
    run = f"grep -qx {new} {name} && echo yes > ran.txt\n"
    return task(
        f"Replace {old} by {new} in the file {name}. Run sh run.sh.",
        [f'[ "$(cat {name})" = {new} ]', '[ "$(cat ran.txt)" = yes ]'],
        {name: f"{old}\n", "run.sh": run},
    )


def move_then_rename(draw: random.Random, words: list[str]) -> Task:
    text, name = draw.choice(words), numbered(draw, words)
    old, new = files(draw, words, 2)
    return task(
        f"Move the file {old} into the folder {name}. Rename the file {name}/{old} to {name}/{new}.",
        [f"grep -qx {text} {name}/{old} {name}/{new}", f'[ ! -e {old} ] && [ "$(cat {name}/{new})" = {text} ]'],
        {old: f"{text}\n", f"{name}/first.txt": "first\n"},
    )


def run_then_word(draw: random.Random, words: list[str]) -> Task:
    chosen, script, name = draw.choice(words), f"{draw.choice(words)}.sh", files(draw, words, 1)[0]
    return task(
        f"Run sh {script}. Write the word {chosen} into the file {name}.",
        ['[ "$(cat ran.txt)" = yes ]', f'[ "$(cat {name})" = {chosen} ]'],
        {script: "echo yes > ran.txt\n"},
    )


def show_then_write(draw: random.Random, words: list[str]) -> Task:
    """The word has to be read first."""
    chosen, (name, answer) = draw.choice(words), files(draw, words, 2)
    return task(
        f"Show the file {name}. Write its word into the file {answer}.",
        [f"[ -e {answer} ]", f'[ "$(cat {answer})" = {chosen} ]'],
        {name: f"{chosen}\n"},
    )


def any_two(draw: random.Random, words: list[str]) -> Task:
    return joined(draw, words, 2)


def any_three(draw: random.Random, words: list[str]) -> Task:
    return joined(draw, words, 3)


def edit_and_check(draw: random.Random, words: list[str]) -> Task:
    """The check passes only after the edit, and leaves a file behind."""
    old, new = draw.sample(words, 2)
    name, stamp = files(draw, words, 2)
    check = f"grep -qx {new} {name} && echo passed > passed.txt && echo passed || echo failed\n"
    return task(
        f"Replace {old} by {new} in the file {name}. Run sh check.sh. Write the word done into the file {stamp}.",
        [f'[ "$(cat {name})" = {new} ]', '[ "$(cat passed.txt)" = passed ]', f'[ "$(cat {stamp})" = done ]'],
        {name: f"{old}\n", "check.sh": check},
    )


def extract(draw: random.Random, words: list[str]) -> Task:
    """The answer has to be read first; one line with both words is no copy of anything."""
    first, second = draw.sample(words, 2)
    one, two, answer = files(draw, words, 3)
    return task(
        f"Show the file {one}. Show the file {two}. Write both words in one line into the file {answer}.",
        [f"grep -q {first} {answer}", f"grep -q {second} {answer}", f"grep -qx '{first} {second}' {answer}"],
        {one: f"{first}\n", two: f"{second}\n"},
    )


def move_and_rename(draw: random.Random, words: list[str]) -> Task:
    text, name = draw.choice(words), numbered(draw, words)
    old, new = files(draw, words, 2)
    return task(
        f"Make a folder named {name}. Move the file {old} into the folder {name}. "
        f"Rename the file {name}/{old} to {name}/{new}.",
        [f"[ -d {name} ]", f"[ -d {name} ] && [ ! -e {old} ]", f'[ "$(cat {name}/{new})" = {text} ]'],
        {old: f"{text}\n"},
    )


def repair(draw: random.Random, words: list[str]) -> Task:
    """The test has to fail once and pass once: it keeps a log of its runs."""
    wrong, right = draw.sample(words, 2)
    name = f"{draw.choice(words)}.sh"
    test = f'[ "$(sh {name})" = {right} ] && echo pass | tee -a runs.log || echo fail | tee -a runs.log\n'
    return task(
        f"Run sh test.sh. Replace {wrong} by {right} in the file {name}. Run sh test.sh.",
        ["grep -qx fail runs.log", f'[ "$(sh {name})" = {right} ]', '[ "$(tail -n 1 runs.log)" = pass ]'],
        {name: f"echo {wrong}\n", "test.sh": test},
    )


def save_word(draw: random.Random, words: list[str]) -> Task:
    chosen, name = draw.choice(words), files(draw, words, 1)[0]
    return task(f"Save the word {chosen} in {name}.", [f'[ "$(cat {name})" = {chosen} ]'])


def create_directory(draw: random.Random, words: list[str]) -> Task:
    name = numbered(draw, words)
    return task(f"Create a directory called {name}.", [f"[ -d {name} ]"])


def make_a_copy(draw: random.Random, words: list[str]) -> Task:
    (source, target), text = files(draw, words, 2), draw.choice(words)
    return task(
        f"Make a copy of {source} called {target}.",
        [f'[ "$(cat {target})" = {text} ] && [ "$(cat {source})" = {text} ]'],
        {source: f"{text}\n"},
    )


def one_then_other(draw: random.Random, words: list[str]) -> Task:
    """Two steps in one sentence; those that are trained have a sentence each."""
    chosen, name, inner = draw.choice(words), numbered(draw, words), files(draw, words, 1)[0]
    return task(
        f"Make a folder named {name}, then write the word {chosen} into the file {name}/{inner}.",
        [f"[ -d {name} ]", f'[ "$(cat {name}/{inner})" = {chosen} ]'],
    )


def append(draw: random.Random, words: list[str]) -> Task:
    first, second = draw.sample(words, 2)
    name = files(draw, words, 1)[0]
    wanted = f"{first}\\n{second}"
    return task(
        f"Append the word {second} to the file {name}.",
        [f'[ "$(cat {name})" = "$(printf \'{wanted}\')" ]'],
        {name: f"{first}\n"},
    )


def empty_file(draw: random.Random, words: list[str]) -> Task:
    name = files(draw, words, 1)[0]
    return task(f"Make an empty file named {name}.", [f"[ -f {name} ] && [ ! -s {name} ]"])


def write_three(draw: random.Random, words: list[str]) -> Task:
    """Steps that are trained one by one and in other sequences, in one that is not."""
    one, two = draw.sample(words, 2)
    name, (inner, outer) = numbered(draw, words), files(draw, words, 2)
    return task(
        f"Write the word {one} into the file {outer}. Make a folder named {name}. "
        f"Write the word {two} into the file {name}/{inner}.",
        [f'[ "$(cat {outer})" = {one} ]', f"[ -d {name} ]", f'[ "$(cat {name}/{inner})" = {two} ]'],
    )


def any_four(draw: random.Random, words: list[str]) -> Task:
    """Longer than all that is trained."""
    return joined(draw, words, 4)


ONE_STEP: tuple[Family, ...] = (word, number, folder, copy)
MORE_ONE_STEP: tuple[Family, ...] = (replace, run, move, rename)
TWO_STEPS: tuple[Family, ...] = (
    folder_then_word,
    copy_then_number,
    replace_then_run,
    move_then_rename,
    run_then_word,
    show_then_write,
    any_two,
)
SEVERAL_STEPS: tuple[Family, ...] = (edit_and_check, extract, move_and_rename, repair)
OTHER_WORDING: tuple[Family, ...] = (save_word, create_directory, make_a_copy, one_then_other)
OTHER_SEQUENCES: tuple[Family, ...] = (write_three, any_four)
OTHER_COMMANDS: tuple[Family, ...] = (append, empty_file)
TRANSFER: tuple[Family, ...] = (*OTHER_WORDING, *OTHER_SEQUENCES, *OTHER_COMMANDS)


def training(index: int) -> Task:
    """Of four tasks, one has one step, one two, and two have three."""
    levels = ((*ONE_STEP, *MORE_ONE_STEP), TWO_STEPS, (*SEVERAL_STEPS, any_three), (*SEVERAL_STEPS, any_three))
    return made([random.Random(index).choice(levels[index % 4])], index, "train")


def training_joined(index: int) -> Task:
    """Of eight tasks, one has one step, two have two, and five have three. About half of the longest are joined at
    random, so that no sequence of steps can be learned by heart. A command more than needed costs a little."""
    one, two, three = (*ONE_STEP, *MORE_ONE_STEP), TWO_STEPS, (*SEVERAL_STEPS, *[any_three] * len(SEVERAL_STEPS))
    level = (one, two, three, three, three, two, three, three)[index % 8]
    instance = made([random.Random(index).choice(level)], index, "train")
    options = instance["evaluator"]["options"]
    options["commands"] = len(options["checks"])  # every step has a check
    return instance


def demonstrated(index: int) -> Task:
    """What the warm start shows: that a task of one, two or three sentences takes as many commands. None of
    `SEVERAL_STEPS` is shown."""
    levels = ((*ONE_STEP, *MORE_ONE_STEP), TWO_STEPS, (any_three,))
    family = levels[index % 3][index // 3 % len(levels[index % 3])]
    return made([family], index, "train")


def training_one_step(index: int) -> Task:
    return made(ONE_STEP, index, "train")


def held_out(index: int) -> Task:
    """All families in turn, those of `TRANSFER` too."""
    return made((*ONE_STEP, *SEVERAL_STEPS, *TRANSFER), index, "held out")


def held_out_near(index: int) -> Task:
    """What is trained on without a GPU, and the same in other words."""
    return made((*ONE_STEP, *OTHER_WORDING), index, "held out")


def step_by_step(index: int) -> Task:
    """Sixteen one-step tasks in one conversation, for a harness that asks for them one by one."""
    parts = [made(ONE_STEP[:3], 16 * index + number, "train") for number in range(16)]
    agent = Path(__file__).with_name("step_agent.py").read_text()
    joined = task(
        " ".join(part["instruction"] for part in parts),
        [check for part in parts for check in part["evaluator"]["options"]["checks"]],
        {"step_agent.py": agent},
    )
    return joined | {
        "harness": {"name": "shell", "options": {"command": "python3 step_agent.py"}},
        "sampling": {"max_tokens": 64},
        "budgets": {"run_s": 300},
    }


def joined(draw: random.Random, words: list[str], count: int) -> Task:
    """Different one-step tasks in one. Their words differ, so that none undoes another."""
    kinds = draw.sample([*ONE_STEP, *MORE_ONE_STEP], count)
    shuffled = draw.sample(words, len(words))
    parts = [kind(draw, shuffled[place::count]) for place, kind in enumerate(kinds)]
    return task(
        " ".join(part["instruction"] for part in parts),
        [check for part in parts for check in part["evaluator"]["options"]["checks"]],
        {name: text for part in parts for name, text in part["files"].items()},
    )


def made(families: tuple[Family, ...] | list[Family], index: int, part: str) -> Task:
    draw = random.Random(f"{part} {index}")
    family = families[index % len(families)]
    instance = family(draw, TRAINING_WORDS if part == "train" else HELD_OUT_WORDS)
    return instance | {"metadata": {"family": family.__name__}}


def task(instruction: str, checks: list[str], given: dict[str, str] | None = None) -> Task:
    return {
        "instruction": instruction,
        "files": given or {},
        "evaluator": {"name": "checks:Checks", "options": {"checks": checks}},
        "runtime": RUNTIME,
        "harness": {"name": "pi", "options": {"tools": ["bash"]}},
        "sampling": {"max_tokens": 128},
        "budgets": {"run_s": 120, "max_calls": 8, "on_exhausted": "final_message"},
    }


def numbered(draw: random.Random, words: list[str]) -> str:
    return f"{draw.choice(words)}{draw.randrange(100)}"


def files(draw: random.Random, words: list[str], count: int) -> list[str]:
    """Different names."""
    return [f"{each}{draw.randrange(100)}.txt" for each in draw.sample(words, count)]


def main(kind: str, count: int) -> None:
    """Writes a task file."""
    for index in range(count):
        made_task = globals()[kind](index)
        print(json.dumps({"task_id": f"{made_task['metadata']['family']}-{index:04}", **made_task}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
