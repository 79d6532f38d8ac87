"""The manifest for KubeRay: only fields that Kubernetes knows, and what it must say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from places import ROOT

from overlap.cluster.access import HEALTH

TEXT = (ROOT / "scripts" / "cluster" / "kuberay.yaml").read_text()
RAY = next(line for line in (ROOT / "requirements" / "base.in").read_text().splitlines() if line.startswith("ray=="))
CLUSTER, POLICY = yaml.safe_load_all(TEXT)
GROUPS = [CLUSTER["spec"]["headGroupSpec"], *CLUSTER["spec"]["workerGroupSpecs"]]
SHAPES = yaml.safe_load("""
labels: &labels {"*": str}
probe: &probe
  {tcpSocket!: {port!: int}, failureThreshold: int, initialDelaySeconds: int, periodSeconds: int, timeoutSeconds: int}
selector: &selector {matchLabels: *labels}
pod: &pod
  spec!:
    hostUsers: bool
    automountServiceAccountToken: bool
    enableServiceLinks: bool
    terminationGracePeriodSeconds: int
    containers!:
      - name!: str
        image!: str
        env: [{name!: str, value: str, valueFrom: {secretKeyRef!: {name!: str, key!: str}}}]
        ports: [{name: str, containerPort!: int, protocol: str}]
        securityContext: {procMount: str, seccompProfile: {type!: str}, appArmorProfile: {type!: str}}
        readinessProbe: *probe
        livenessProbe: *probe
        resources: {requests: *labels, limits: *labels}
        volumeMounts: [{name!: str, mountPath!: str, readOnly: bool}]
    volumes: [{name!: str, emptyDir: {}, persistentVolumeClaim: {claimName!: str}}]
group: &group {rayStartParams: *labels, template!: *pod}
document: &document {apiVersion!: str, kind!: str, metadata!: {name!: str}}
RayCluster:
  <<: *document
  spec!:
    rayVersion: str
    headGroupSpec!: {serviceType: str, <<: *group}
    workerGroupSpecs: [{groupName!: str, replicas: int, minReplicas!: int, maxReplicas!: int, <<: *group}]
NetworkPolicy:
  <<: *document
  spec!: {podSelector!: *selector, policyTypes: [str], ingress: [{from: [{podSelector: *selector}]}]}
""")
"""What Kubernetes takes, of what a manifest of ours may use; with "!" it must be there."""


def faults(value: Any, shape: Any, name: str) -> Iterator[str]:
    """A line for each thing that is not as Kubernetes takes it."""
    kind = shape if isinstance(shape, str) else type(shape).__name__
    if type(value).__name__ != kind:
        yield f"{name}={value!r}: no {kind}"
    elif kind == "list":
        for each in value:
            yield from faults(each, shape[0], name)
    elif kind == "dict":
        known = {key.rstrip("!"): inner for key, inner in shape.items()}
        yield from (f"{name}.{key[:-1]} is missing" for key in shape if key[-1] == "!" and key[:-1] not in value)
        yield from (f"{name}.{key} is no field" for key in value if not {key, "*"} & known.keys())
        for key in value.keys() if "*" in known else value.keys() & known.keys():
            yield from faults(value[key], known.get(key, "str"), key)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("", "", []),
        ("  headGroupSpec:", "  headGroup:", ["spec.headGroup is no field", "spec.headGroupSpec is missing"]),
        (
            "minReplicas: 0",
            "minReplica: 0",
            ["workerGroupSpecs.minReplica is no field", "workerGroupSpecs.minReplicas is missing"],
        ),
        ('include-dashboard: "false"', "include-dashboard: false", ["include-dashboard=False: no str"]),
        ("port: 6380", "port: '6380'", ["port='6380': no int"]),
    ],
)
def test_every_field_is_one_that_kubernetes_knows_and_another_would_be_seen(
    before: str, after: str, found: list[str]
) -> None:
    assert before in TEXT
    changed = yaml.safe_load_all(TEXT.replace(before, after))
    told = [fault for document in changed for fault in faults(document, SHAPES[document["kind"]], "")]
    assert sorted(set(told)) == found


def test_the_cluster_asks_for_a_token_that_stands_nowhere_in_the_manifest() -> None:
    for group in GROUPS:
        for container in group["template"]["spec"]["containers"]:
            env = {entry["name"]: entry for entry in container["env"]}
            assert env["RAY_AUTH_MODE"]["value"] == "token"
            assert "value" not in env["RAY_AUTH_TOKEN"]
            assert {name: env[name]["value"] for name in HEALTH} == HEALTH


def test_nothing_is_reached_from_outside_and_no_pod_may_ask_kubernetes() -> None:
    head = GROUPS[0]
    assert head["rayStartParams"]["include-dashboard"] == "false"
    assert head["serviceType"] == "ClusterIP"
    assert all(group["template"]["spec"]["automountServiceAccountToken"] is False for group in GROUPS)
    assert "privileged" not in TEXT
    policy = POLICY["spec"]
    selected = {"matchLabels": {"ray.io/cluster": CLUSTER["metadata"]["name"]}}
    assert policy["podSelector"] == selected
    assert policy["ingress"] == [{"from": [{"podSelector": selected}]}]


def test_the_probes_ask_ports_that_ray_is_told_to_listen_at_and_unmasked_proc_goes_with_uids_of_their_own() -> None:
    for group in GROUPS:
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        known = {int(group["rayStartParams"]["node-manager-port"]), 6379}
        for probe in ("readinessProbe", "livenessProbe"):  # KubeRay puts in its own where there is none
            assert container[probe]["tcpSocket"]["port"] in known
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["securityContext"]["procMount"] == "Unmasked"
        assert spec["hostUsers"] is False


def test_the_version_of_ray_is_the_one_that_is_installed() -> None:
    assert f"ray=={CLUSTER['spec']['rayVersion']}" == RAY
