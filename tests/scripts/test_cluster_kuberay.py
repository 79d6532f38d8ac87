"""The manifest for KubeRay: only fields that Kubernetes knows, and what it must say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from places import ROOT

from overlap.cluster import by_hand

TEXT = (ROOT / "scripts" / "cluster" / "kuberay.yaml").read_text()
RAY = next(line for line in (ROOT / "requirements" / "base.in").read_text().splitlines() if line.startswith("ray=="))
Shape = Any
"""A field's kind: a type, a tuple of allowed strings, ``[shape]``, ``{name: shape}``; a name with "!" must be there."""

NAMES = {"name!": str}
LABELS = {"*": str}
ENV = {"name!": str, "value": str, "valueFrom": {"secretKeyRef!": {"name!": str, "key!": str}}}
SECONDS = dict.fromkeys(("initialDelaySeconds", "periodSeconds", "timeoutSeconds"), int)
PROBE = {"tcpSocket!": {"port!": int}, "failureThreshold": int, **SECONDS}
PROFILE = {"type!": ("Unconfined", "RuntimeDefault", "Localhost"), "localhostProfile": str}
SECURITY = {
    "procMount": ("Default", "Unmasked"),
    **dict.fromkeys(("seccompProfile", "appArmorProfile"), PROFILE),
    **dict.fromkeys(("privileged", "allowPrivilegeEscalation"), bool),
    "runAsUser": int,
}
CONTAINER = {
    **dict.fromkeys(("name!", "image!"), str),
    "env": [ENV],
    "ports": [{"name": str, "containerPort!": int, "protocol": ("TCP", "UDP")}],
    "securityContext": SECURITY,
    **dict.fromkeys(("readinessProbe", "livenessProbe"), PROBE),
    "resources": {"requests": LABELS, "limits": LABELS},
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}
POD = {
    "metadata": {"labels": LABELS, "annotations": LABELS},
    "spec!": {
        **dict.fromkeys(("hostUsers", "automountServiceAccountToken", "enableServiceLinks"), bool),
        "terminationGracePeriodSeconds": int,
        "containers!": [CONTAINER],
        "volumes": [{"name!": str, "emptyDir": {}, "persistentVolumeClaim": {"claimName!": str}}],
    },
}
GROUP = {"rayStartParams": LABELS, "template!": POD}
NUMBERS = dict.fromkeys(("replicas", "minReplicas!", "maxReplicas!", "numOfHosts"), int)
CLUSTER = {
    "rayVersion": str,
    **dict.fromkeys(("suspend", "enableInTreeAutoscaling"), bool),
    "headGroupSpec!": {"serviceType": ("ClusterIP", "NodePort", "LoadBalancer"), "enableIngress": bool, **GROUP},
    "workerGroupSpecs": [{"groupName!": str, **NUMBERS, **GROUP}],
}
POLICY = {
    "podSelector!": {"matchLabels": LABELS},
    "policyTypes": [("Ingress", "Egress")],
    "ingress": [{"from": [{"podSelector": {"matchLabels": LABELS}}]}],
}
SHAPES: Mapping[tuple[str, str], Shape] = {
    kind: {"apiVersion!": str, "kind!": str, "metadata!": NAMES, "spec!": spec}
    for kind, spec in {("ray.io/v1", "RayCluster"): CLUSTER, ("networking.k8s.io/v1", "NetworkPolicy"): POLICY}.items()
}


def faults(value: Any, shape: Shape, where: str = "") -> Iterator[str]:
    """A line for each thing that is not as Kubernetes takes it."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f"{where}: no mapping"
            return
        known = {name.removesuffix("!"): kind for name, kind in shape.items()}
        yield from (f"{where}.{name[:-1]} is missing" for name in shape if name[-1] == "!" and name[:-1] not in value)
        for name, inner in value.items():
            if name not in known and "*" not in known:
                yield f"{where}.{name} is no field"
            else:
                yield from faults(inner, known.get(name, known.get("*")), f"{where}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where}: no list"
            return
        for number, inner in enumerate(value):
            yield from faults(inner, shape[0], f"{where}[{number}]")
    elif isinstance(shape, tuple):
        if value not in shape:
            yield f"{where}={value!r}: none of {shape}"
    elif type(value) is not shape:
        yield f"{where}={value!r}: no {shape.__name__}"


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(TEXT)}


@pytest.fixture(scope="module")
def groups(documents) -> list[dict[str, Any]]:
    spec = documents["RayCluster"]["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def test_every_field_is_one_that_kubernetes_knows() -> None:
    for document in yaml.safe_load_all(TEXT):
        assert list(faults(document, SHAPES[document["apiVersion"], document["kind"]])) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("  headGroupSpec:", "  headGroup:", ".spec.headGroup is no field"),
        ("minReplicas: 0", "minReplica: 0", "minReplicas is missing"),
        ('include-dashboard: "false"', "include-dashboard: false", "no str"),
        ("procMount: Unmasked", "procMount: Open", "none of"),
        ("port: 6380", "port: '6380'", "no int"),
    ],
)
def test_the_check_sees_what_kubernetes_would_refuse(before: str, after: str, fault: str) -> None:
    assert before in TEXT
    document = next(yaml.safe_load_all(TEXT.replace(before, after)))
    assert [line for line in faults(document, SHAPES["ray.io/v1", "RayCluster"]) if fault in line]


def test_the_cluster_asks_for_a_token_that_stands_nowhere_in_the_manifest(groups) -> None:
    for group in groups:
        for container in group["template"]["spec"]["containers"]:
            env = {entry["name"]: entry for entry in container["env"]}
            assert env["RAY_AUTH_MODE"]["value"] == "token"
            assert "value" not in env["RAY_AUTH_TOKEN"]
            assert {name: env[name]["value"] for name in by_hand.HEALTH} == by_hand.HEALTH


def test_nothing_is_reached_from_outside_and_no_pod_may_ask_kubernetes(documents, groups) -> None:
    head = documents["RayCluster"]["spec"]["headGroupSpec"]
    assert head["rayStartParams"]["include-dashboard"] == "false"
    assert head["serviceType"] == "ClusterIP"
    assert all(group["template"]["spec"]["automountServiceAccountToken"] is False for group in groups)
    assert "privileged" not in TEXT
    policy = documents["NetworkPolicy"]["spec"]
    selected = {"matchLabels": {"ray.io/cluster": documents["RayCluster"]["metadata"]["name"]}}
    assert policy["podSelector"] == selected
    assert policy["ingress"] == [{"from": [{"podSelector": selected}]}]


def test_the_probes_ask_ports_that_ray_is_told_to_listen_at(groups) -> None:
    for group in groups:
        params = group["rayStartParams"]
        (container,) = group["template"]["spec"]["containers"]
        known = {int(params["node-manager-port"]), 6379}
        for probe in ("readinessProbe", "livenessProbe"):  # KubeRay puts in its own where there is none
            assert container[probe]["tcpSocket"]["port"] in known
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_version_of_ray_is_the_one_that_is_installed(documents) -> None:
    assert f"ray=={documents['RayCluster']['spec']['rayVersion']}" == RAY


def test_unmasked_proc_goes_with_uids_of_their_own(groups) -> None:
    for group in groups:
        spec = group["template"]["spec"]
        assert spec["containers"][0]["securityContext"]["procMount"] == "Unmasked"
        assert spec["hostUsers"] is False
