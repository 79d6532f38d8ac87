"""The manifest for KubeRay: only fields that Kubernetes knows, and what it must say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from places import ROOT

from overlap.cluster import by_hand

TEXT = (ROOT / "scripts" / "cluster" / "kuberay.yaml").read_text()
RAY = next(line for line in (ROOT / "requirements" / "base.in").read_text().splitlines() if line.startswith("ray=="))
PROBE = "tcpSocket! failureThreshold initialDelaySeconds periodSeconds timeoutSeconds"
FIELDS = {
    **dict.fromkeys(("RayCluster", "NetworkPolicy"), "apiVersion! kind! metadata! spec!"),
    "metadata": "name labels annotations",
    "RayCluster.spec": "rayVersion suspend enableInTreeAutoscaling headGroupSpec! workerGroupSpecs",
    "headGroupSpec": "serviceType enableIngress rayStartParams template!",
    "workerGroupSpecs": "groupName! replicas minReplicas! maxReplicas! numOfHosts rayStartParams template!",
    "template": "metadata spec!",
    "template.spec": "hostUsers automountServiceAccountToken enableServiceLinks terminationGracePeriodSeconds "
    "containers! volumes",
    "containers": "name! image! env ports securityContext readinessProbe livenessProbe resources volumeMounts",
    "env": "name! value valueFrom",
    "valueFrom": "secretKeyRef!",
    "secretKeyRef": "name! key!",
    "ports": "name containerPort! protocol",
    "securityContext": "procMount seccompProfile appArmorProfile privileged allowPrivilegeEscalation runAsUser",
    **dict.fromkeys(("seccompProfile", "appArmorProfile"), "type! localhostProfile"),
    **dict.fromkeys(("readinessProbe", "livenessProbe"), PROBE),
    "tcpSocket": "port!",
    "resources": "requests limits",
    "volumeMounts": "name! mountPath! readOnly",
    "volumes": "name! emptyDir persistentVolumeClaim",
    "emptyDir": "",
    "persistentVolumeClaim": "claimName!",
    "NetworkPolicy.spec": "podSelector! policyTypes ingress",
    "ingress": "from",
    "from": "podSelector",
    "podSelector": "matchLabels",
    **dict.fromkeys(("labels", "annotations", "rayStartParams", "requests", "limits", "matchLabels"), "*"),
}
"""Names in a mapping, by the name of that; with "!" they must be there."""
NUMBERS = "port containerPort failureThreshold initialDelaySeconds periodSeconds timeoutSeconds replicas minReplicas"
NUMBERS += " maxReplicas numOfHosts runAsUser terminationGracePeriodSeconds"
SWITCHES = "hostUsers automountServiceAccountToken enableServiceLinks suspend enableInTreeAutoscaling enableIngress"
SWITCHES += " privileged allowPrivilegeEscalation readOnly"
TYPES = dict.fromkeys(NUMBERS.split(), int) | dict.fromkeys(SWITCHES.split(), bool) | dict.fromkeys(FIELDS, dict)


def faults(value: Any, name: str) -> Iterator[str]:
    """A line for each thing that is not as Kubernetes takes it."""
    for inner in value if isinstance(value, list) else [value]:
        if type(inner) is not (kind := TYPES.get(name, str)):
            yield f"{name}={inner!r}: no {kind.__name__}"
        elif kind is dict:
            known = FIELDS[name].split()
            yield from (
                f"{name}.{must[:-1]} is missing" for must in known if must[-1] == "!" and must[:-1] not in inner
            )
            for key, more in inner.items():
                if not {key, f"{key}!", "*"} & set(known):
                    yield f"{name}.{key} is no field"
                elif "*" in known:
                    yield from faults(more, "a label")
                else:
                    yield from faults(more, f"{name}.spec" if key == "spec" else key)


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(TEXT)}


@pytest.fixture(scope="module")
def groups(documents) -> list[dict[str, Any]]:
    spec = documents["RayCluster"]["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def test_every_field_is_one_that_kubernetes_knows() -> None:
    for document in yaml.safe_load_all(TEXT):
        assert list(faults(document, document["kind"])) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("  headGroupSpec:", "  headGroup:", "RayCluster.spec.headGroup is no field"),
        ("minReplicas: 0", "minReplica: 0", "minReplicas is missing"),
        ('include-dashboard: "false"', "include-dashboard: false", "no str"),
        ("port: 6380", "port: '6380'", "no int"),
    ],
)
def test_the_check_sees_what_kubernetes_would_refuse(before: str, after: str, fault: str) -> None:
    assert before in TEXT
    document = next(yaml.safe_load_all(TEXT.replace(before, after)))
    assert [line for line in faults(document, "RayCluster") if fault in line]


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
