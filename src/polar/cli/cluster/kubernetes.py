"""`polar cluster kubernetes`: writes manifests for a rollout server and gateway nodes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.cluster.checked_plan import checked_plan
from polar.cli.options import ConfigOption, checked_config

if TYPE_CHECKING:
    from polar.config import Config


class Autoscaling(StrEnum):
    KEDA = "keda"
    HPA = "hpa"
    NONE = "none"


def kubernetes(  # noqa: PLR0913 - each is an option of the command
    node_image: Annotated[str, typer.Option(help="Image of a node; deploy/images.sh builds polar-node.")],
    server_image: Annotated[
        str | None,
        typer.Option(help="Image of a server, if there is to be one; deploy/images.sh builds polar-server."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="A server that runs already, as pods reach it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write files.", show_default="stdout")] = None,
    name: Annotated[str, typer.Option(help="Names of all objects begin with it.")] = "polar",
    namespace: Annotated[str, typer.Option(help="Where you apply them.")] = "default",
    secret: Annotated[
        str, typer.Option(help="Secret with the keys control-token, node-token and, by choice, metrics-token.")
    ] = "polar-tokens",
    prometheus_namespace: Annotated[
        str | None, typer.Option(help="From where Prometheus may scrape.", show_default="from nowhere")
    ] = None,
    min_nodes: Annotated[int, typer.Option(min=0, help="Nodes when nothing waits. 0 needs KEDA.")] = 1,
    max_nodes: Annotated[int, typer.Option(min=1, help="Most nodes.")] = 10,
    autoscaling: Annotated[
        Autoscaling, typer.Option(help="keda asks the server; hpa needs an adapter for Prometheus.")
    ] = Autoscaling.KEDA,
    cpus: Annotated[float, typer.Option(min=0.1, help="CPUs of a node, sessions included.")] = 4.0,
    memory: Annotated[str, typer.Option(help="Memory of a node.")] = "16Gi",
    storage: Annotated[str, typer.Option(help="Size of the server's volume.")] = "50Gi",
    drain: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="How long the sessions of a leaving node may go on.")
    ] = 600,
    config: ConfigOption = None,
) -> None:
    """Write plain manifests of gateway nodes that follow the queue.

    Make the Secret first, it is not written here:
    `kubectl create secret generic polar-tokens --from-literal=control-token=...
    --from-literal=node-token=...`. Then `kubectl apply -f FOLDER`.
    """
    from polar.cluster.kubernetes.manifests import KubernetesPlan, manifests
    from polar.config import CONFIG_FILE

    chosen = checked_config(config)
    _check_scheme(chosen, server_image)
    file = config or Path(CONFIG_FILE)
    plan = checked_plan(
        KubernetesPlan,
        **{"name": name, "namespace": namespace, "secret": secret},
        **{"node_image": node_image, "server_image": server_image, "server": server},
        **{"min_nodes": min_nodes, "max_nodes": max_nodes, "autoscaling": autoscaling.value},
        **{"cpus": cpus, "memory": memory, "storage": storage, "drain_s": drain},
        **{"prometheus_namespace": prometheus_namespace, "slots": chosen.pools.running},
        config=file.read_text(encoding="utf-8") if file.exists() else "",
    )
    made = manifests(plan)
    if out is None:
        typer.echo("---\n".join(made.values()), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for file_name, text in made.items():
        (out / file_name).write_text(text, encoding="utf-8")
    typer.echo(f"{len(made)} files in {out}; kubectl apply --namespace {namespace} -f {out}")


def _check_scheme(config: Config, server_image: str | None) -> None:
    """Probes, nodes and KEDA reach a server of the manifests without TLS."""
    from polar.errors import PolarError

    if server_image and config.server.tls_cert:
        raise PolarError(
            "the manifests of a server speak http inside the cluster: leave server.tls_cert out of the config and "
            "let an Ingress speak TLS, or name a server that you run with --server https://..."
        )
