"""The shell harness: the instruction reaches the command complete, and the exit code is the command's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from polar.errors import ConfigError, HarnessError
from polar.harnesses.base import Harness, HarnessContext, Launch
from polar.harnesses.shell import Shell, ShellOptions
from polar.registry import make
from polar.types import Slot, Spec

AWKWARD = """it's "quoted" `id` $(id) $HOME \\ ; & | * ? ~\n{instruction} {other} -n héllo 🌍 \n"""
SLOT = Slot(base_url="http://127.0.0.1:9", key="sk-1", model="polar", context_tokens=8192)


def launch(instruction: str, home: Path = Path("/s/home"), **options: Any) -> Launch:
    context = HarnessContext(instruction, SLOT, "s-1", "/s/work", str(home), {})
    return Shell(ShellOptions(**options)).launch(context)


def run(made: Launch, home: Path, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    for name, text in made.home_files.items():
        (home / name).write_text(text, newline="")
    return subprocess.run(made.argv, env={"PATH": path, **made.env}, capture_output=True, text=True)


@pytest.mark.parametrize(
    "command",
    [
        "printf %s {instruction}",
        'printf %s "$POLAR_INSTRUCTION"',
        'cat "$POLAR_INSTRUCTION_FILE"',
        'x={instruction}; printf %s "$x" | cat',
    ],
)
def test_a_command_gets_the_instruction_whole(tmp_path: Path, command: str) -> None:
    done = run(launch(AWKWARD, tmp_path, command=command), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, AWKWARD, "")


def test_an_argv_gets_it_as_it_is(tmp_path: Path) -> None:
    made = launch(AWKWARD, tmp_path, argv=("printf", "%s", "do: {instruction}"))
    assert made.argv == ("printf", "%s", f"do: {AWKWARD}")
    assert run(made, tmp_path).stdout == f"do: {AWKWARD}"


def test_other_braces_stay(tmp_path: Path) -> None:
    made = launch("x", tmp_path, command="echo '{\"a\": {}}' | awk '{print $1}'; echo ${HOME:-{none}}")
    assert run(made, tmp_path).stdout == '{"a":\n{none}\n'


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [("exit 7", 7), ("true", 0), ("exit 3 | cat", 3), ("false | true", 1), ("true | true", 0), ("kill -9 $$", -9)],
)
def test_exit_codes_are_honest_also_in_a_pipe(tmp_path: Path, command: str, exit_code: int) -> None:
    assert run(launch("x", tmp_path, command=command), tmp_path).returncode == exit_code


@pytest.mark.parametrize(("command", "exit_code"), [("exit 7", 7), ("true", 0), ("printf %s {instruction}", 0)])
def test_plain_sh_will_do(tmp_path: Path, command: str, exit_code: int) -> None:
    done = run(launch("x", tmp_path, command=command), tmp_path, path=str(tmp_path))
    assert done.returncode == exit_code


def test_the_slot_reaches_the_command() -> None:
    assert launch("x", command="true").env == {
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_API_KEY": "sk-1",
        "OPENAI_MODEL": "polar",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "ANTHROPIC_API_KEY": "sk-1",
        "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:9",
        "GEMINI_API_KEY": "sk-1",
        "POLAR_BASE_URL": "http://127.0.0.1:9",
        "POLAR_API_KEY": "sk-1",
        "POLAR_MODEL": "polar",
        "POLAR_CONTEXT_TOKENS": "8192",
        "POLAR_SESSION": "s-1",
        "POLAR_INSTRUCTION": "x",
        "POLAR_INSTRUCTION_FILE": "/s/home/instruction.txt",
    }


@pytest.mark.parametrize("instruction", ["x" * 200_000, "a\0b"])
def test_what_no_variable_can_hold_is_in_the_file(tmp_path: Path, instruction: str) -> None:
    made = launch(instruction, tmp_path, command='cat "$POLAR_INSTRUCTION_FILE"')
    assert "POLAR_INSTRUCTION" not in made.env
    assert run(made, tmp_path).stdout == instruction


@pytest.mark.parametrize("options", [{"command": "agent {instruction}"}, {"argv": ("agent", "{instruction}")}])
def test_what_no_command_line_can_hold_is_refused_with_the_way_out(options: dict[str, Any]) -> None:
    for instruction in ("x" * 200_000, "a\0b"):
        with pytest.raises(HarnessError, match="POLAR_INSTRUCTION_FILE"):
            launch(instruction, **options)


@pytest.mark.parametrize(
    "command",
    ["agent '{instruction}'", 'agent "{instruction}"', 'agent "do: {instruction}"', "echo 'a\\' '{instruction}"],
)
def test_a_placeholder_inside_quotes_is_refused(command: str) -> None:
    with pytest.raises(ConfigError, match="inside quotes"):
        make("harness", Spec(name="shell", options={"command": command}))


@pytest.mark.parametrize(
    "command", ["a 'b' {instruction}", r"a \' {instruction}", "a \"it's\" {instruction} '{}'"]
)
def test_quotes_elsewhere_do_not_matter(command: str) -> None:
    assert launch("x", command=command).argv[-1] == command.replace("{instruction}", "x")


@pytest.mark.parametrize("options", [{}, {"command": "a", "argv": ["a"]}, {"argv": []}, {"command": ""}])
def test_it_wants_exactly_one_of_command_and_argv(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make("harness", Spec(name="shell", options=options))


def test_it_needs_nothing_installed() -> None:
    made: Harness = make("harness", Spec(name="shell", options={"command": "true", "version": "2"}))
    assert (made.name, made.version, made.requirements()) == ("shell", "2", ())


def test_threads_of_a_command_are_told_apart_by_the_headers_it_names() -> None:
    profile = Shell(ShellOptions(command="run", attribution_headers=("X-Thread",))).profile()
    assert profile.attribution({"x-thread": "2"}) == ("2",)
    assert Shell(ShellOptions(command="run")).profile().attribution({"x-thread": "2"}) == ()


def test_its_program_is_the_first_word_of_an_argv() -> None:
    assert Shell(ShellOptions(argv=("agent", "--quick"))).program({}) == ("agent",)
    assert Shell(ShellOptions(command="agent | tee log")).program({}) == ()


def test_where_hosts_are_intercepted_no_variable_names_a_base_url() -> None:
    slot = SLOT
    plain = HarnessContext("x", slot, "s-1", "/s/work", "/s/home", {})
    intercepted = HarnessContext("x", slot, "s-1", "/s/work", "/s/home", {}, ("api.openai.com",))
    with_urls, without = (Shell(ShellOptions(command="true")).launch(each).env for each in (plain, intercepted))
    gone = with_urls.keys() - without.keys()
    assert gone == {"OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"}
    assert without == {name: value for name, value in with_urls.items() if name not in gone}
    assert without["OPENAI_API_KEY"] == without["ANTHROPIC_API_KEY"] == without["GEMINI_API_KEY"] == "sk-1"
