"""The manifests of a fleet on Kubernetes, from templates beside this file.

Templates and not objects, so that a reader finds the same comments here and in what is applied. Every value that
goes into one is checked first: none can change the structure of the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from polar.types import Strict

TEMPLATES = Path(__file__).parent / "manifests"
PORT = 8700
NODE_PORT = 8701
"""Where a node answers its probes and Prometheus."""
HAND_BACK_S = 60
"""What a node needs after its drain, before Kubernetes kills it."""
_CONFIG_ARGS = ", --config, /etc/polar/polar.toml"
_CONFIG_MOUNT = "\n            - {name: config, mountPath: /etc/polar, readOnly: true}"


def _matching(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not {what}")
        return text

    return AfterValidator(check)


YAML_WORDS = r"(?!(?:null|true|false|yes|no|on|off|y|n)$)"
"""What YAML reads as something else than text."""
Label = Annotated[
    str,
    _matching(
        rf"{YAML_WORDS}[a-z]([-a-z0-9]{{0,38}}[a-z0-9])?",
        "a name of lower-case letters, digits and -, or is a word that YAML takes for a value",
    ),
]
Image = Annotated[
    str, _matching(r"[a-z0-9][\w.:/@-]*", "the name of an image, such as registry.example/polar-node:1")
]
Quantity = Annotated[str, _matching(r"[0-9]+(\.[0-9]+)?([KMGTP]i?|m)?", "a quantity, such as 16Gi")]
Url = Annotated[str, _matching(r"https?://[\w.:/-]+", "an address, such as http://polar.example:8700")]


class KubernetesPlan(Strict):
    name: Label = "polar"
    """Names of all objects begin with it."""
    namespace: Label = "default"
    node_image: Image
    server_image: Image | None = None
    """None: no server is made; `server` names one."""
    server: Url | None = None
    secret: Label = "polar-tokens"
    """Secret with the keys `control-token` and `node-token`."""
    min_nodes: int = Field(default=1, ge=0)
    max_nodes: int = Field(default=10, ge=1)
    slots: int = Field(default=4, ge=1)
    """Run slots of a node: `pools.running` of its config."""
    autoscaling: Literal["keda", "hpa", "none"] = "keda"
    autoscaler_namespace: Label = "keda"
    prometheus_namespace: Label | None = None
    """From where Prometheus may scrape; None: from nowhere."""
    cpus: float = Field(default=4.0, gt=0)
    memory: Quantity = "16Gi"
    storage: Quantity = "50Gi"
    """Of the server's volume."""
    drain_s: int = Field(default=600, ge=0)
    config: str = ""
    """Text of a polar.toml for server and nodes; empty: the defaults."""

    @model_validator(mode="after")
    def _has_one_server(self) -> KubernetesPlan:
        if (self.server is None) == (self.server_image is None):
            raise ValueError("give the address of a server, or the image of one, and not both")
        if self.min_nodes > self.max_nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is more than max_nodes {self.max_nodes}")
        if self.autoscaling == "hpa" and self.min_nodes == 0:
            raise ValueError("an HPA keeps at least one node; KEDA scales to zero")
        return self

    @property
    def server_url(self) -> str:
        """With the namespace: KEDA asks from another one."""
        return (self.server or f"http://{self.name}-server.{self.namespace}.svc:{PORT}").rstrip("/")


def manifests(plan: KubernetesPlan) -> dict[str, str]:
    """File names and their texts, in the order in which to apply them."""
    chosen = [
        *(["config.yaml"] if plan.config else []),
        *(["server.yaml"] if plan.server_image else []),
        "nodes.yaml",
        *([] if plan.autoscaling == "none" else [f"autoscaling-{plan.autoscaling}.yaml"]),
    ]
    values = _values(plan)
    return {name: Template((TEMPLATES / name).read_text(encoding="utf-8")).substitute(values) for name in chosen}


def _values(plan: KubernetesPlan) -> Mapping[str, str]:
    fields = plan.model_dump(exclude={"config", "server"})
    config = {
        "config_args": _CONFIG_ARGS,
        "config_mount": _CONFIG_MOUNT,
        "config_volume": f"\n        - name: config\n          configMap: {{name: {plan.name}-config}}",
    }
    return {
        **{name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in fields.items()},
        **{name: text if plan.config else "" for name, text in config.items()},
        "config_text": "\n".join(f"    {line}" if line else "" for line in plan.config.rstrip("\n").split("\n")),
        "server": plan.server_url,
        "grace_s": str(plan.drain_s + HAND_BACK_S),
        # An autoscaler owns the number: to name it here would reset it with every `kubectl apply`.
        "replicas": f"\n  replicas: {plan.min_nodes}" if plan.autoscaling == "none" else "",
        **_scraping(plan.prometheus_namespace),
    }


def _scraping(namespace: str | None) -> dict[str, str]:
    """Annotations by which a Prometheus finds pods, and what lets it in. Without its namespace there are neither:
    it would find what it cannot reach."""
    if namespace is None:
        return {"node_scraped": "", "server_scraped": "", "server_peer": "", "node_ingress": " []"}
    peer = f"- namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}"
    return {
        "node_scraped": _annotations(NODE_PORT),
        "server_scraped": _annotations(PORT),
        "server_peer": f"\n        # Prometheus.\n        {peer}",
        "node_ingress": f"\n    - ports: [{{port: metrics}}]\n      from:\n        {peer}",
    }


def _annotations(port: int) -> str:
    scraped = f'prometheus.io/scrape: "true", prometheus.io/port: "{port}", prometheus.io/path: /metrics'
    return f"\n      annotations: {{{scraped}}}"
