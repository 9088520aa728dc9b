"""The `[swe]` table of a task file: where the rows are, which of them are run, and how."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from polar.data.swe.row import NO_IMAGE, SweRow
from polar.types import Spec, Strict

INSTRUCTION = """\
The folder you are in is a checkout of the repository {repo}. Resolve this issue in it:

<issue>
{problem_statement}
</issue>

Change the source files so that the issue is resolved, and nothing else. Hidden tests check the result. Changes \
to existing tests and to the configuration of test runners do not count. Leave your changes in the folder; you do \
not have to commit them.
"""
PLACEHOLDERS = ("problem_statement", "repo", "version", "instance_id", "base_commit", "hints_text")


class SweTable(Strict):
    rows: str | tuple[str, ...]
    """Files of rows (.jsonl, .json or .parquet), relative to the task file. Also a folder of them, as a data
    set of Hugging Face has."""
    split: str | None = None
    """Of a folder: `train`, `validation` or `test`, by the names of its files. None: it has only one."""
    repositories: str | None = None
    """A folder with `owner__name.bundle`, or `owner__name` as a clone, for rows without an image."""
    instances: tuple[str, ...] = ()
    """Only these rows. Empty: all."""
    repos: tuple[str, ...] = ()
    """Only rows of these repositories. Empty: all."""
    exclude_repos: tuple[str, ...] = ()
    """No rows of these repositories, such as those that another set is evaluated on."""
    shuffle_seed: int | None = None
    """The order is random, the same for the same seed. None: the order of the files."""
    limit: int | None = Field(default=None, ge=1)
    """The first so many of the rows that can run."""
    instruction: str = Field(default=INSTRUCTION, min_length=1)
    """A template with {problem_statement}, {repo}, {version}, {instance_id}, {base_commit} and
    {hints_text}; a brace is `{{`."""
    runtime: Spec | None = None
    """For rows with an image; it gets the image and `testbed` as options. None: docker. For rows without: the
    runtime of [defaults]."""
    image: str | None = None
    """A template for the name of a row's image, such as "swebench/sweb.eval.x86_64.{docker_id}:latest", where
    {docker_id} is the instance id as Docker Hub spells it, {gym_id} as SWE-Gym does. "none": no row has an image.
    None: the row's own."""
    testbed: str = "/testbed"
    """The repository's path in an image."""
    only_local_images: bool = False
    """Skips rows whose image the Docker Engine of this machine does not have."""
    strip_history: bool = True
    """In an image: removes remotes, other branches, tags, reflogs and every commit that HEAD does not have."""
    test_commands: dict[str, str] = Field(default={})
    """For rows without an eval script: repository to test command; `*` is for all others."""
    log_parsers: dict[str, str] = Field(default={})
    """For rows without a log parser: repository to a name of swebench's; `*` is for all others."""
    timeout_s: float = Field(default=1800.0, gt=0)
    """Time limit of a row's tests."""
    evaluator: dict[str, Any] = Field(default={})
    """Further options of the evaluator `swe_bench`, such as `patch_file` or `network`."""

    @field_validator("instruction")
    @classmethod
    def _fills(cls, template: str) -> str:
        try:
            filled = template.format_map({name: "x" for name in PLACEHOLDERS})
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"cannot be filled ({error}); it may have {known}") from error
        if filled == template.format_map({name: "y" for name in PLACEHOLDERS}):
            raise ValueError("has no placeholder, so every task would be the same; use {problem_statement}")
        return template

    @field_validator("image")
    @classmethod
    def _names(cls, template: str | None) -> str | None:
        try:
            (template or "").format(instance_id="x", docker_id="x", gym_id="x", repo="x", version="x")
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(
                f"cannot be filled ({error}); it may have {{instance_id}}, {{docker_id}}, {{gym_id}}"
            ) from error
        return template

    def image_of(self, row: SweRow) -> str:
        """Empty: the row's repository is a bundle or clone."""
        if self.image is None:
            return row.image_of
        name = self.image.format(
            instance_id=row.instance_id,
            docker_id=row.instance_id.replace("__", "_1776_").lower(),
            gym_id=row.instance_id.replace("__", "_s_").lower(),
            repo=row.repo,
            version=row.version,
        )
        return "" if name.lower() in NO_IMAGE else name

    @property
    def row_files(self) -> tuple[str, ...]:
        return (self.rows,) if isinstance(self.rows, str) else self.rows
