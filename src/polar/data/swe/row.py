"""One row of SWE-bench or of a data set like it: the fields that Polar uses. docs/swe_bench.md describes them.

The gold patch and the tests are in the row. A task made of it names the gold patch's files, never its content, and
only the evaluator's options have the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from polar.evaluators.swe_bench.script import check_markers

NO_IMAGE = ("", "none")
"""Values of `image` for a row whose repository is a bundle or a clone."""
NAMES = (
    re.compile(r"diff --git a/(?P<name>.+?) b/(?P<other>.+)"),
    re.compile(r"(?:---|\+\+\+) (?:[ab]/)?(?P<name>.+?)(?:\t.*)?"),
    re.compile(r"rename (?:from|to) (?P<name>.+)"),
)
"""Lines of a patch that name a file."""
HUNK = re.compile(r"@@ -\d+(?:,(?P<before>\d+))? \+\d+(?:,(?P<after>\d+))? @@")


def _parsed_list(value: Any) -> Any:
    """Data sets have lists as lists, as arrays, or as JSON in a string."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"neither a list nor a list as JSON: {error}") from error
    return list(value) if hasattr(value, "tolist") else value


def _text(value: Any) -> Any:
    """A version such as 1.0 is a number in some files."""
    return str(value) if isinstance(value, int | float) else value


TestIds = Annotated[tuple[str, ...], BeforeValidator(_parsed_list)]


class SweRow(BaseModel):
    """Fields that are not named here are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    instance_id: str = Field(min_length=1)
    repo: str = Field(min_length=1)
    """`owner/name`. Its bundle or clone is `owner__name.bundle` or `owner__name` in the `repositories` folder."""
    version: Annotated[str, BeforeValidator(_text)] = ""
    base_commit: str = ""
    """The commit at which the agent begins. Only a row with an image of its own may leave it out."""
    problem_statement: str = ""
    hints_text: str = ""
    patch: str = ""
    """The gold patch. Of SWE-smith rows: the bug, which is reversed."""
    test_patch: str = ""
    FAIL_TO_PASS: TestIds
    """Test ids as the log parser names them; a list, or a JSON string of one."""
    PASS_TO_PASS: TestIds = ()
    eval_script: str = ""
    """Bash. It runs in the repository, whose path is also `$TESTBED`, after the agent's patch is applied. Between
    a line with the start marker and one with the end marker there is the test command; both markers stand alone
    on one line each, as in `: '>>>>> Start Test Output'`. Empty: a script is made of `test_patch` and
    `test_command`."""
    test_command: str = ""
    """For a row without `eval_script`: the command, to which the files of `test_patch` are added."""
    log_parser: str = ""
    """A name in swebench's `PARSER_REGISTRY`. Empty: `parse_log_pytest`, if the ids are pytest's."""
    eval_type: Literal["pass_and_fail", "fail_only"] = "pass_and_fail"
    image: str = ""
    """An image with the repository in /testbed. Empty or `none`: the repository is a bundle or clone."""
    image_assets: None = None
    """Of multimodal rows."""
    image_name: str = ""
    """The same, in rows of SWE-smith."""

    @model_validator(mode="before")
    @classmethod
    def _of_other_sets(cls, value: Any) -> Any:
        """SWE-rebench has the test command and the log parser in a table, and another name for the image."""
        if not isinstance(value, dict):
            raise ValueError("a row is an object")
        row = cast("dict[str, Any]", value)
        table: Any = row.get("install_config")
        if isinstance(table, dict):
            install = cast("dict[str, Any]", table)
            command: Any = install.get("test_cmd")
            command = " && ".join(cast("list[str]", command)) if isinstance(command, list) else command
            row = {"test_command": command, "log_parser": install.get("log_parser")} | row
        return {"image": row.get("docker_image")} | row

    @field_validator("image_assets", mode="before")
    @classmethod
    def _brings_no_files(cls, value: Any) -> Any:
        assets: Any = json.loads(value) if isinstance(value, str) and value else value or {}
        if isinstance(assets, dict) and cast("dict[str, Any]", assets).get("test_patch"):
            raise ValueError("its test patch needs binary files from elsewhere, which is not supported")
        return None

    @field_validator(
        "version", "base_commit", "problem_statement", "hints_text", "patch", "test_patch", mode="before"
    )
    @classmethod
    def _none_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value

    @field_validator("eval_script", "test_command", "log_parser", "image", "image_name", mode="before")
    @classmethod
    def _absent_is_empty(cls, value: Any) -> Any:
        return "" if value is None else value

    @field_validator("FAIL_TO_PASS")
    @classmethod
    def _some_test_must_pass(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("empty: without a test that has to pass, any patch resolves the row")
        return value

    @field_validator("eval_script")
    @classmethod
    def _has_both_markers(cls, script: str) -> str:
        return check_markers(script) if script else script

    @property
    def has_bug_patch(self) -> bool:
        """As in SWE-smith: the patch brings the bug, and the image has the repository without it."""
        return bool(self.image_name) and not self.base_commit

    @property
    def image_of(self) -> str:
        """Empty: it has none."""
        name = self.image or self.image_name
        return "" if name.lower() in NO_IMAGE else name


def files_of(patch: str) -> tuple[str, ...]:
    """Every path that a patch names, before and after."""
    found: set[str] = set()
    for line in _headers(patch):
        if match := next(filter(None, (pattern.fullmatch(line) for pattern in NAMES)), None):
            found |= set(match.groupdict().values())
    return tuple(sorted(found - {"/dev/null"}))


def _headers(patch: str) -> Iterator[str]:
    """Lines outside of hunks, in which any text may stand."""
    before = after = 0
    for line in patch.split("\n"):
        if before <= 0 and after <= 0:
            if match := HUNK.match(line):
                before, after = (int(match[side] or 1) for side in ("before", "after"))
            else:
                yield line
        elif not line.startswith("\\"):
            before -= not line.startswith("+")
            after -= not line.startswith("-")
