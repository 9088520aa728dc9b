"""Plug-ins by name: `"pi"` or `"my.module:Class"` to a class. An evaluator may also be a plain function.

The table below lists every plug-in we ship. A class is imported when it is first used, so a heavy dependency costs
only those who use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from polar.errors import FieldProblem, FieldsRefused, PolarError, UnknownPlugin, did_you_mean, field_problems
from polar.types import Spec, TaskRequest

BUILT_IN: dict[str, dict[str, str]] = {
    "runtime": {
        "apptainer": "polar.runtimes.apptainer.runtime:ApptainerRuntime",
        "bubblewrap": "polar.runtimes.bubblewrap.runtime:BubblewrapRuntime",
        "docker": "polar.runtimes.docker.runtime:DockerRuntime",
        "local": "polar.runtimes.local.runtime:LocalRuntime",
    },
    "harness": {
        "claude_code": "polar.harnesses.claude_code:ClaudeCode",
        "codex": "polar.harnesses.codex:Codex",
        "gemini_cli": "polar.harnesses.gemini_cli:GeminiCli",
        "opencode": "polar.harnesses.opencode:OpenCode",
        "pi": "polar.harnesses.pi:Pi",
        "qwen_code": "polar.harnesses.qwen_code:QwenCode",
        "shell": "polar.harnesses.shell:Shell",
    },
    "builder": {
        "per_request": "polar.builders.per_request:PerRequest",
        "prefix_merging": "polar.builders.prefix_merging:PrefixMerging",
        "tree": "polar.builders.tree:Tree",
    },
    "evaluator": {
        "combine": "polar.evaluators.combine:Combine",
        "harbor": "polar.evaluators.harbor.evaluator:HarborEvaluator",
        "judge": "polar.evaluators.judge.evaluator:Judge",
        "session_completion": "polar.evaluators.session_completion:SessionCompletion",
        "swe_bench": "polar.evaluators.swe_bench.evaluator:SweBench",
        "test_on_output": "polar.evaluators.test_on_output:TestOnOutput",
    },
    "engine": {
        "embedded": "polar.engines.embedded.engine:EmbeddedEngine",
        "endpoint": "polar.engines.endpoint.engine:EndpointEngine",
        "llamacpp": "polar.engines.llamacpp.engine:LlamaCppEngine",
        "pool": "polar.engines.pool.engine:PoolEngine",
        "sglang": "polar.engines.sglang.engine:SglangEngine",
        "torch": "polar.engines.torch.engine:TorchEngine",
        "vllm": "polar.engines.vllm.engine:VllmEngine",
    },
    "renderer": {
        "smollm2": "polar.tokens.renderers.smollm2:SmolLM2Renderer",
        "family": "polar.tokens.renderers.family:FamilyRenderer",
        "template": "polar.tokens.renderers.template:TemplateRenderer",
    },
}


FOLDER_ON_PATH = "PYTHONPATH=FOLDER"
EXTRA_OF = {"gguf": "embedded", "renderers": "renderers", "torch": "torch", "transformers": "torch"}
"""Modules that plug-ins of ours import at their top, and the extra that brings each."""
TASK_KINDS = ("runtime", "harness", "builder", "evaluator")
"""The plug-ins that a task names."""
ANY_MODULE = "*"
METHODS = {"evaluator": "evaluate"}
"""What a class must have, so that its absence is found before a run."""


def ships(kind: str, name: str) -> bool:
    """Whether the plug-in comes with Polar."""
    return name in BUILT_IN[kind]


def is_ours(kind: str, spec: Spec) -> bool:
    """Whether the plug-in comes with Polar, and so do those that it is made of (`inner_specs`)."""
    return ships(kind, spec.name) and all(is_ours(kind, each) for each in _inner_specs(kind, spec))


def _inner_specs(kind: str, spec: Spec) -> list[Spec]:
    try:
        within: Callable[[dict[str, Any]], list[Spec]] | None = getattr(find(kind, spec.name), "inner_specs", None)
    except PolarError:  # making it reports that
        return []
    return within(spec.options) if within else []


def names_to_import(kind: str, spec: Spec) -> list[str]:
    """The `module:Class` names in a spec: its own, or those of the plug-ins that one of ours is made of. Imports
    none of their modules."""
    if not ships(kind, spec.name):
        return [spec.name] if all(spec.name.partition(":")) else []
    return [name for inner in _inner_specs(kind, spec) for name in names_to_import(kind, inner)]


def modules_of(tasks: Iterable[TaskRequest]) -> list[str]:
    """The modules that these tasks name, without importing them."""
    names = (name for task in tasks for kind in TASK_KINDS for name in names_to_import(kind, getattr(task, kind)))
    return sorted({name.partition(":")[0] for name in names})


def module_problems(task: TaskRequest, allowed: Sequence[str], setting: str) -> list[FieldProblem]:
    """Names in a task whose modules are neither allowed nor below one that is. `setting`: where the operator
    allows them. Imports none of them."""
    return [
        FieldProblem((kind,), _not_allowed(name, setting))
        for kind in TASK_KINDS
        for name in names_to_import(kind, getattr(task, kind))
        if not is_allowed(name.partition(":")[0], allowed)
    ]


def is_allowed(module: str, allowed: Sequence[str]) -> bool:
    """Whether it is in the list, or below one that is."""
    return any(each == ANY_MODULE or module == each or module.startswith(f"{each}.") for each in allowed)


def _not_allowed(name: str, setting: str) -> str:
    module = name.partition(":")[0]
    return (
        f"{name[:100]!r} would import a module that {setting} does not list; use a plug-in of Polar's own, or let"
        f' the operator add "{module[:100]}" to {setting} in polar.toml'
    )


def find(kind: str, name: str) -> type[Any]:
    """The class of a plug-in. The error for an unknown name lists the known ones."""
    known = BUILT_IN[kind]
    target = known.get(name, name)
    module_name, _, class_name = target.partition(":")
    if not module_name or not class_name:
        names = sorted(known)
        near = did_you_mean(name, names).partition("; known")[0] or ";"
        raise UnknownPlugin(
            f"unknown {kind} {name!r}{near} known: {', '.join(names)}, or your own as 'module:Class'"
        )
    try:
        loaded = getattr(import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # importing a plug-in may fail in any way, or exit
        raise UnknownPlugin(_why_not_loaded(kind, name, module_name, error)) from error
    if kind == "evaluator" and callable(loaded) and not isinstance(loaded, type):
        return _class_around(loaded, name)
    if not isinstance(loaded, type) or not hasattr(loaded, "Options"):
        other = ", or a function of the evidence" if kind == "evaluator" else ""
        raise UnknownPlugin(
            f"{kind} {name!r} is not a plug-in: it needs to be a class with an `Options` model{other}"
        )
    if (method := METHODS.get(kind)) and not callable(getattr(loaded, method, None)):
        raise UnknownPlugin(f"{kind} {name!r} has no method `{method}`")
    return loaded


def _why_not_loaded(kind: str, name: str, module_name: str, error: BaseException) -> str:
    extra = EXTRA_OF.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if ships(kind, name) and extra:
        return f"{kind} {name!r} needs more packages: pip install 'polar-rollout[{extra}]'"
    why = f"{type(error).__name__}: {error}{_how_to_find(module_name, error)}"
    return f"{kind} {name!r} cannot be loaded: {why}"


def _how_to_find(module_name: str, error: BaseException) -> str:
    """Python looks for modules where it was told to, not beside the task file."""
    top = module_name.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or error.name != top:
        return ""
    return f"; put the folder of {top}.py or {top}/ on Python's path: {FOLDER_ON_PATH} polar ..."


def _class_around(function: Callable[..., Any], name: str) -> type[Any]:
    """The evaluator class of a plain function, whose further parameters are its options."""
    options, parameters = _options_around(function, name)

    class FunctionEvaluator:
        Options: type[BaseModel] = options

        def __init__(self, options: BaseModel) -> None:
            self._given = {parameter: getattr(options, field) for field, parameter in parameters.items()}
            self._given |= options.model_extra or {}

        def evaluate(self, evidence: Any) -> Any:
            return function(evidence, **self._given)

    FunctionEvaluator.__name__ = name
    return FunctionEvaluator


def _options_around(function: Callable[..., Any], name: str) -> tuple[type[BaseModel], dict[str, str]]:
    """A model of a function's options, and each field's parameter. They differ, because a parameter may have a
    name that a model's field must not have, such as `json`."""
    try:
        evidence, *others = inspect.signature(function).parameters.values()
    except ValueError as error:  # no parameter, or no signature
        raise UnknownPlugin(f"evaluator {name!r} must take the evidence as its first argument") from error
    if evidence.kind in (evidence.KEYWORD_ONLY, evidence.VAR_KEYWORD):
        raise UnknownPlugin(f"evaluator {name!r} must take the evidence as its first positional argument")
    named = [each for each in others if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    asked = SimpleNamespace(__annotations__={each.name: each.annotation for each in named})
    try:
        hints = get_type_hints(asked, globalns=getattr(function, "__globals__", {}), include_extras=True)
    except Exception as error:  # an annotation is any expression
        raise UnknownPlugin(f"evaluator {name!r}: its annotations cannot be read: {error}") from error
    fields: dict[str, Any] = {
        f"option_{number}": (
            Any if each.annotation is each.empty else hints[each.name],
            Field(default=... if each.default is each.empty else each.default, alias=each.name),
        )
        for number, each in enumerate(named)
    }
    takes_any = any(each.kind is each.VAR_KEYWORD for each in others)
    config = ConfigDict(frozen=True, extra="allow" if takes_any else "forbid", arbitrary_types_allowed=True)
    model = create_model("FunctionOptions", __config__=config, **fields)
    return model, dict(zip(fields, (each.name for each in named), strict=True))


def options_of(kind: str, plugin: type[Any], options: dict[str, Any]) -> BaseModel:
    """A plug-in's options, checked against its `Options` model. An error names them as the user wrote them."""
    model: type[BaseModel] = plugin.Options
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise FieldsRefused(field_problems(error, model, (kind, "options"))) from error


def make(kind: str, spec: Spec) -> Any:
    """A plug-in from its spec. A plug-in class has an `Options` model and takes one as its argument."""
    plugin = find(kind, spec.name)
    return plugin(options_of(kind, plugin, spec.options))


def plugin_problems(task: TaskRequest, *, only_ours: bool = False) -> list[FieldProblem]:
    """Problems with the plug-ins that a task names, found before anything runs. `only_ours`: imports no module
    that the task names. Then plug-ins that need one are not checked, and in such a task neither is what the others
    ask of the whole task."""
    found: list[FieldProblem] = []
    unchecked = {kind for kind in TASK_KINDS if only_ours and names_to_import(kind, getattr(task, kind))}
    for kind in [kind for kind in TASK_KINDS if kind not in unchecked]:
        spec: Spec = getattr(task, kind)
        try:
            plugin = find(kind, spec.name)
            options = options_of(kind, plugin, spec.options)
            if hasattr(plugin, "task_problems") and not unchecked:
                found += [FieldProblem((kind,), problem) for problem in plugin(options).task_problems(task)]
        except FieldsRefused as error:
            found += error.problems
        except PolarError as error:
            found.append(FieldProblem((kind,), str(error)))
        except (Exception, SystemExit) as error:  # a user's class may fail in any way, or exit
            why = f"{spec.name!r} cannot be used: {type(error).__name__}: {error}"
            found.append(FieldProblem((kind,), why))
    return found
