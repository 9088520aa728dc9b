"""The manifests against the schemas of Kubernetes and of KEDA, and what they say about Polar."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError
from starlette.routing import Route
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cluster.kubernetes.manifests import KubernetesPlan, manifests
from polar.monitoring.readiness import CHECK_S, Readiness
from polar.node.status.checks import PROVEN_S
from polar.node.status.listener import StatusApp
from polar.server.app import openapi_document
from polar.types import Stage

OLDEST, NEWEST = "1.30.0", kubernetes_validate.latest_version()
IMAGES = {"node_image": "registry.example/polar-node:1", "server_image": "registry.example/polar-server@sha256:0a"}
PLANS = {
    "own server, KEDA": KubernetesPlan(**IMAGES, config='[pools]\nrunning = 8\n\n# "quoted": {$x}\n'),
    "own server, HPA": KubernetesPlan(**IMAGES, autoscaling="hpa", cpus=0.5),
    "another server": KubernetesPlan(node_image="polar-node", server="https://polar.example/", autoscaling="none"),
    "to zero": KubernetesPlan(**IMAGES, min_nodes=0, max_nodes=100, name="p", namespace="rl", secret="s"),
    "scraped": KubernetesPlan(**IMAGES, prometheus_namespace="monitoring"),
}


def documents(plan: KubernetesPlan) -> list[dict[str, Any]]:
    return [document for text in manifests(plan).values() for document in yaml.safe_load_all(text)]


def of_kind(plan: KubernetesPlan, kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in documents(plan) if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def node_pod(plan: KubernetesPlan) -> dict[str, Any]:
    return of_kind(plan, "Deployment", f"{plan.name}-node")["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_kubernetes_takes_them(plan: KubernetesPlan, version: str) -> None:
    own = [each for each in documents(plan) if not each["apiVersion"].startswith("keda.sh/")]
    assert {"Deployment", "PodDisruptionBudget", "NetworkPolicy"} <= {each["kind"] for each in own}
    for document in own:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        (("spec", "replicas"), "three"),
        (("spec", "template", "spec", "containers"), []),
        (("spec", "template", "spec", "terminationGracePeriod"), 5),
    ],
)
def test_the_schemas_find_what_is_wrong(where: tuple[str, ...], wrong: Any) -> None:
    document = of_kind(PLANS["own server, KEDA"], "Deployment", "polar-node")
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    if wrong == []:
        del inner[where[-1]]
    else:
        inner[where[-1]] = wrong
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, NEWEST, strict=True)


def test_every_reference_between_objects_resolves() -> None:
    for plan in PLANS.values():
        found = documents(plan)
        names = {(each["kind"], each["metadata"]["name"]) for each in found}
        pods = [each["spec"]["template"] for each in found if each["kind"] == "Deployment"]
        labels = [pod["metadata"]["labels"] for pod in pods]
        for each in found:
            spec = each.get("spec", {})
            chosen = spec.get("podSelector") or spec.get("selector") or {}
            wanted = chosen.get("matchLabels", chosen)
            assert not wanted or any(wanted.items() <= label.items() for label in labels), each["metadata"]
            if target := spec.get("scaleTargetRef"):
                assert ("Deployment", target["name"]) in names
            for trigger in spec.get("triggers", []):
                assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in names
        for pod in pods:
            for volume in pod["spec"]["volumes"]:
                claim, config = volume.get("persistentVolumeClaim"), volume.get("configMap")
                assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in names
                assert config is None or ("ConfigMap", config["name"]) in names


def test_a_leaving_node_has_time_to_drain() -> None:
    pod = node_pod(KubernetesPlan(**IMAGES, drain_s=900))
    [container] = pod["containers"]
    arguments = container["args"]
    assert arguments[arguments.index("--drain") + 1] == "900"
    assert pod["terminationGracePeriodSeconds"] == 960


def test_nodes_get_the_tokens_of_nodes_and_metrics_alone() -> None:
    for plan in PLANS.values():
        [container] = node_pod(plan)["containers"]
        keys = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"]}
        assert keys == {
            "POLAR_NODE_TOKEN": {"name": plan.secret, "key": "node-token"},
            "POLAR_METRICS_TOKEN": {"name": plan.secret, "key": "metrics-token", "optional": True},
        }


def test_commands_are_ones_that_polar_has() -> None:
    known = {"gateway", "server"}
    for kind in ("node", "server"):
        pod = of_kind(PLANS["own server, KEDA"], "Deployment", f"polar-{kind}")["spec"]["template"]["spec"]
        program, command, *options = pod["containers"][0]["args"]
        assert program == "polar" and command in known
        wanted = [each for each in options if each.startswith("--")]
        help_text = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
        assert [each for each in wanted if each not in help_text] == []


def test_probes_ask_routes_of_the_server() -> None:
    routes = openapi_document()["paths"]
    pod = of_kind(PLANS["own server, KEDA"], "Deployment", "polar-server")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["args"][:6] == ["polar", "server", "--host", "0.0.0.0", "--port", "8700"]
    assert container["ports"] == [{"name": "http", "containerPort": 8700}]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["port"] for probe in probes} == {"http"}
    assert [probe["path"] for probe in probes if probe["path"] not in routes] == []


def test_probes_ask_routes_of_a_node_where_it_listens() -> None:
    app = StatusApp((), Readiness({}), "").app()
    routes = {route.path for route in app.routes if isinstance(route, Route)}
    for plan in PLANS.values():
        [container] = node_pod(plan)["containers"]
        arguments = container["args"]
        assert arguments[arguments.index("--metrics-host") + 1] == "0.0.0.0", "the kubelet comes from outside"
        port = int(arguments[arguments.index("--metrics-port") + 1])
        assert container["ports"] == [{"name": "metrics", "containerPort": port}]
        probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
        assert {probe["httpGet"]["port"] for probe in probes.values()} == {"metrics"}
        paths = {kind: probe["httpGet"]["path"] for kind, probe in probes.items()}
        assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
        assert routes >= set(paths.values())


def test_probes_of_a_node_have_the_time_that_it_takes() -> None:
    [container] = node_pod(PLANS["own server, KEDA"])["containers"]
    startup, readiness, liveness = (container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness"))
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800, "it may download a model first"
    assert readiness["timeoutSeconds"] > CHECK_S, "the answer that a part does not answer arrives"
    assert readiness["periodSeconds"] >= PROVEN_S, "while sessions run, their calls are the probe"
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60, "a stall is not a death"


def test_only_prometheus_reaches_a_node_and_only_if_its_namespace_is_named() -> None:
    """The kubelet's probes come from the pod's machine, which no policy keeps out."""
    closed = of_kind(PLANS["own server, KEDA"], "NetworkPolicy", "polar-node")["spec"]
    assert (closed["policyTypes"], closed["ingress"]) == (["Ingress"], [])
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    plan = PLANS["scraped"]
    [rule] = of_kind(plan, "NetworkPolicy", "polar-node")["spec"]["ingress"]
    assert rule == {"ports": [{"port": "metrics"}], "from": [peer]}
    [at_server] = of_kind(plan, "NetworkPolicy", "polar-server")["spec"]["ingress"]
    assert peer in at_server["from"]


@pytest.mark.parametrize(("kind", "port"), [("node", 8701), ("server", 8700)])
def test_pods_are_annotated_where_prometheus_may_scrape_them(kind: str, port: int) -> None:
    def template(plan: KubernetesPlan) -> dict[str, Any]:
        return of_kind(plan, "Deployment", f"polar-{kind}")["spec"]["template"]

    found = template(PLANS["scraped"])
    assert found["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }
    assert found["spec"]["containers"][0]["ports"][0]["containerPort"] == port
    assert "annotations" not in template(PLANS["own server, KEDA"])["metadata"]


def test_keda_reads_fields_that_the_server_sends() -> None:
    plan = PLANS["own server, KEDA"]
    spec = of_kind(plan, "ScaledObject", "polar-node")["spec"]
    document = openapi_document()
    overview = document["components"]["schemas"]["Overview"]["properties"]
    for trigger in spec["triggers"]:
        metadata = trigger["metadata"]
        assert metadata["url"] == "http://polar-server.default.svc:8700/v1/overview"
        assert "/v1/overview" in document["paths"]
        assert metadata["valueLocation"].partition(".")[0] in overview
    assert spec["advanced"]["scalingModifiers"]["target"] == "4", "the run slots of a node"
    assert {trigger["name"] for trigger in spec["triggers"]} == {"queued", "running"}


def test_the_hpa_counts_every_stage_that_is_not_final() -> None:
    [metric] = of_kind(PLANS["own server, HPA"], "HorizontalPodAutoscaler", "polar-node")["spec"]["metrics"]
    [expression] = metric["external"]["metric"]["selector"]["matchExpressions"]
    assert set(expression["values"]) == {stage.value for stage in Stage if not stage.final}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "4"}


def test_an_autoscaler_owns_the_number_of_nodes() -> None:
    assert "replicas" not in of_kind(PLANS["own server, KEDA"], "Deployment", "polar-node")["spec"]
    assert of_kind(PLANS["another server"], "Deployment", "polar-node")["spec"]["replicas"] == 1


def test_the_config_arrives_as_it_is() -> None:
    plan = PLANS["own server, KEDA"]
    assert of_kind(plan, "ConfigMap", "polar-config")["data"]["polar.toml"] == plan.config
    [container] = node_pod(plan)["containers"]
    assert container["args"][-2:] == ["--config", "/etc/polar/polar.toml"]


@pytest.mark.parametrize(
    "text",
    ["  # indented\n[pools]\nrunning = 8\n", "\n\n [node]\n[pools]\n", '[a]\nb = """two  \n spaces"""\n'],
)
def test_white_space_of_the_config_arrives_too(text: str) -> None:
    plan = KubernetesPlan(**IMAGES, config=text)
    assert of_kind(plan, "ConfigMap", "polar-config")["data"]["polar.toml"] == text


def test_no_value_changes_the_structure() -> None:
    """A colon at an end makes a mapping in YAML, and digits alone a number."""
    [container] = node_pod(KubernetesPlan(node_image="1.5", server="http://x:"))["containers"]
    assert container["image"] == "1.5"
    assert container["args"][2:4] == ["--server", "http://x:"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, "give the address of a server"),
        ({"server_image": "polar-server", "server": "http://x"}, "not both"),
        ({"server": "http://x, evil: true"}, "is not an address"),
        ({"server": "http://x", "node_image": "x\nkind: Evil"}, "is not the name of an image"),
        ({"server": "http://x", "name": "Polar"}, "lower-case"),
        ({"server": "http://x", "name": "on"}, "a word that YAML takes for a value"),
        ({"server": "http://x", "secret": "null"}, "a word that YAML takes for a value"),
        ({"server": "http://x", "memory": "a lot"}, "a quantity"),
        ({"server": "http://x", "min_nodes": 5, "max_nodes": 2}, "more than max_nodes"),
        ({"server": "http://x", "autoscaling": "hpa", "min_nodes": 0}, "KEDA scales to zero"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        KubernetesPlan(**{"node_image": "polar-node", **wrong})


class TestCommand:
    def test_it_writes_files_that_kubectl_applies(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "polar.toml").write_text("[pools]\nrunning = 16\n")
        images = ["--node-image", "polar-node", "--server-image", "polar-server"]
        done = CliRunner().invoke(app, ["cluster", "kubernetes", *images, "--namespace", "rl", "--out", "made"])
        assert done.exit_code == 0, done.output
        assert "kubectl apply --namespace rl -f made" in done.output
        files = {path.name for path in (tmp_path / "made").iterdir()}
        assert files == {"config.yaml", "server.yaml", "nodes.yaml", "autoscaling-keda.yaml"}
        assert 'target: "16"' in (tmp_path / "made/autoscaling-keda.yaml").read_text()

    def test_without_a_folder_it_prints_one_stream(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, ["cluster", "kubernetes", "--node-image", "n", "--server", "http://s:8700"])
        kinds = [document["kind"] for document in yaml.safe_load_all(done.output)]
        assert kinds[0] == "Deployment" and "ScaledObject" in kinds and "Service" not in kinds

    def test_a_server_with_tls_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its probes, its nodes and KEDA would all speak http to it."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "polar.toml").write_text('[server]\ntls_cert = "a.pem"\ntls_key = "a.key"\n')
        done = CliRunner().invoke(app, ["cluster", "kubernetes", "--node-image", "n", "--server-image", "s"])
        assert (done.exit_code, "server.tls_cert" in done.output) == (2, True)
        other = CliRunner().invoke(app, ["cluster", "kubernetes", "--node-image", "n", "--server", "https://s"])
        assert other.exit_code == 0, other.output

    def test_it_names_what_is_wrong(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, ["cluster", "kubernetes", "--node-image", "n"])
        assert (done.exit_code, "address of a server" in done.output) == (2, True)


KEDA_MODELS = "@kubernetes-models/keda@0.4.2"
"""Validators that are compiled from KEDA's own resource definitions."""
ASK_MODELS = """
const fs = require("fs");
const models = require("@kubernetes-models/keda/keda.sh/v1alpha1");
const problems = JSON.parse(fs.readFileSync(0)).map((each) => {
    try { new models[each.kind](each).validate(); return ""; }
    catch (error) { return String(error.message || error); }
});
console.log(JSON.stringify(problems));
"""


@pytest.mark.check
def test_keda_takes_its_objects(tmp_path: Path) -> None:
    subprocess.run(["npm", "install", "--silent", "--prefix", tmp_path, KEDA_MODELS], check=True)
    objects = [each for each in documents(PLANS["to zero"]) if each["apiVersion"].startswith("keda.sh/")]
    wrong = json.loads(json.dumps(objects[1]))
    wrong["spec"]["maxReplicaCount"] = "many"
    done = subprocess.run(
        ["node", "-e", ASK_MODELS],
        input=json.dumps([*objects, wrong]),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *fine, found = json.loads(done.stdout)
    assert fine == ["", ""]
    assert "maxReplicaCount" in found, "the models find what is wrong"
