"""What a node must have to run a session, from its task alone, and what a node lacks of it.

The server imports no module that a task names: of plug-ins that are not Polar's own it knows only the module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from polar import registry
from polar.errors import PolarError
from polar.types import NodeAbilities, Spec, Strict, TaskRequest

SHOWN = 6
"""Names in a reason; a node may have hundreds of images."""


class SessionNeeds(Strict):
    """Of all sessions of a task. Tasks with equal needs are asked about once."""

    runtimes: tuple[str, ...] = ()
    """Of Polar's own: the session's, and the evaluator's if it has another."""
    images: tuple[tuple[str, str], ...] = ()
    """Runtime and image, where the node must have the image already."""
    permits: tuple[str, ...] = ()
    """Settings of `[permits]` that the node must have."""
    harness: str = ""
    """Empty: one that needs nothing installed on the node."""
    modules: tuple[str, ...] = ()
    """That the node has to import."""
    labels: tuple[str, ...] = ()
    engine: str | None = None
    model: str | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


class Lack(NamedTuple):
    """Something that a node lacks."""

    what: str
    """As in "no live node has ...": `the runtime docker`."""
    has: str = ""
    """What it has instead; empty: nothing that helps."""


def needs_of(task: TaskRequest) -> SessionNeeds:
    runtimes = [spec for spec in _runtimes_of(task) if registry.ships("runtime", spec.name)]
    chosen = [(spec.name, options) for spec in runtimes if (options := _options_of(spec)) is not None]
    return SessionNeeds(
        runtimes=tuple(sorted({spec.name for spec in runtimes})),
        images=tuple(sorted({(name, options.needed_image) for name, options in chosen if options.needed_image})),
        permits=tuple(sorted({name for _, options in chosen for name in options.permits_needed})),
        harness=task.harness.name if _is_installed(task.harness) else "",
        modules=tuple(registry.modules_of([task])),
        labels=tuple(sorted(set(task.needs.labels))),
        engine=task.needs.engine,
        model=task.needs.model,
    )


def missing(needs: SessionNeeds, node: NodeAbilities) -> list[Lack]:
    """Empty: the node can run it."""
    lacks = [
        Lack(f"the runtime {name}", _listed(node.runtimes)) for name in _not_in(needs.runtimes, node.runtimes)
    ]
    lacks += [
        Lack(f"the image {image} for {runtime}", _listed(node.images[runtime]))
        for runtime, image in needs.images
        if runtime in node.images and image not in node.images[runtime]
    ]
    lacks += [
        Lack(f"{name} in [permits] of its polar.toml", _listed(node.permits))
        for name in _not_in(needs.permits, node.permits)
    ]
    if needs.harness and needs.harness not in node.harnesses:
        lacks.append(Lack(f"the harness {needs.harness}", _listed(node.harnesses)))
    lacks += [
        Lack(f"the module {module} in node.allowed_modules", _listed(node.modules))
        for module in needs.modules
        if not registry.is_allowed(module, node.modules)
    ]
    lacks += [Lack(f"the label {label}", _listed(node.labels)) for label in _not_in(needs.labels, node.labels)]
    if needs.engine is not None and needs.engine != node.engine:
        lacks.append(Lack(f"the engine {needs.engine}", node.engine))
    if needs.model is not None and needs.model != node.model:
        lacks.append(Lack(f"the model {needs.model}", node.model))
    return lacks


def _runtimes_of(task: TaskRequest) -> list[Spec]:
    wanted = [task.runtime]
    if registry.is_ours("evaluator", task.evaluator):
        try:
            evaluator: Any = registry.make("evaluator", task.evaluator)
            wants = getattr(evaluator, "wants_runtime", None)
            request = wants(task) if wants else None
        except PolarError:  # the checks of a submitted task, or its node, report that
            return wanted
        if request is not None and request.runtime is not None:
            wanted.append(request.runtime)
    return wanted


def _options_of(spec: Spec) -> Any:
    """None: they are wrong, which the checks of a submitted task, or its node, report."""
    try:
        return registry.options_of("runtime", registry.find("runtime", spec.name), spec.options)
    except PolarError:
        return None


def _is_installed(spec: Spec) -> bool:
    """Whether it is a harness of Polar's own whose program the node has to install."""
    if not registry.ships("harness", spec.name):
        return False
    try:
        return bool(registry.make("harness", spec).requirements())
    except PolarError:
        return True


def _not_in(wanted: Iterable[str], there: Iterable[str]) -> list[str]:
    known = set(there)
    return [name for name in wanted if name not in known]


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
