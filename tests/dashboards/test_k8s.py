"""The Kubernetes manifests as they stand: their parts fit one another. No cluster is run here."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from prony_dashboards.lint import family, selected_names
from prony_dashboards.names import exported_names

K8S = Path(__file__).parents[2] / "deploy/k8s"
FILES = sorted(K8S.glob("*.yaml"))


def documents() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.name, document)
        for path in FILES
        for document in yaml.safe_load_all(path.read_text())
        if document
    ]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [document for _, document in documents() if document["kind"] in kinds]


def pods() -> list[tuple[str, dict[str, Any]]]:
    return [(d["metadata"]["name"], d["spec"]["template"]) for d in of_kind("Deployment", "Job")]


def test_everything_is_named_and_lies_in_one_namespace() -> None:
    for file, document in documents():
        assert document.keys() >= {"apiVersion", "kind", "metadata"}, file
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "prony", file


def test_every_selector_finds_its_pods() -> None:
    labels = {name: template["metadata"]["labels"] for name, template in pods()}
    for deployment in of_kind("Deployment"):
        wanted = deployment["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= labels[deployment["metadata"]["name"]].items()
    for service in of_kind("Service"):
        assert any(service["spec"]["selector"].items() <= each.items() for each in labels.values())
        assert any(
            {port["targetPort"] for port in service["spec"]["ports"]}
            <= {port["name"] for c in template["spec"]["containers"] for port in c.get("ports", ())}
            for _, template in pods()
        )


@pytest.mark.parametrize(
    ("name", "template"), pods(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_every_container_has_a_pinned_image_limits_and_no_privileges(
    name: str, template: dict[str, Any]
) -> None:
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in template["spec"]["containers"]:
        assert re.fullmatch(r".+:\d.*", container["image"])
        assert "memory" in container["resources"]["limits"] and container["resources"]["requests"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_the_server_has_all_three_probes_and_time_to_drain() -> None:
    ((_, template),) = [pod for pod in pods() if pod[0] == "prony-server"]
    (server,) = template["spec"]["containers"]
    paths = {
        kind: server[f"{kind}Probe"]["httpGet"]["path"]
        for kind in ("startup", "readiness", "liveness")
    }
    assert paths == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    drain = int(server["args"][server["args"].index("--drain-seconds") + 1])
    assert template["spec"]["terminationGracePeriodSeconds"] > drain


def test_both_ways_to_scale_ask_for_metrics_that_the_server_exports() -> None:
    (keda,) = of_kind("ScaledObject")
    queries = [trigger["metadata"]["query"] for trigger in keda["spec"]["triggers"]]
    (rules,) = (d for d in of_kind("ConfigMap") if "rules.yaml" in d["data"])
    adapter = yaml.safe_load(rules["data"]["rules.yaml"])["rules"]
    for rule in adapter:
        filled = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'a="b"')
        queries.append(filled.replace("<<.GroupBy>>", "namespace"))
    names = {family(name) for query in queries for name in selected_names(query)}
    assert names == {"prony_requests_waiting", "gen_ai_server_time_to_first_token_seconds"}
    assert names <= exported_names()


def test_the_autoscaler_asks_the_adapter_for_what_its_rules_make() -> None:
    (hpa,) = of_kind("HorizontalPodAutoscaler")
    asked = {metric[metric["type"].lower()]["metric"]["name"] for metric in hpa["spec"]["metrics"]}
    (rules,) = (d for d in of_kind("ConfigMap") if "rules.yaml" in d["data"])
    made = {
        rule.get("name", {}).get("as") or rule["seriesQuery"].partition("{")[0]
        for rule in yaml.safe_load(rules["data"]["rules.yaml"])["rules"]
    }
    assert asked == made


def test_the_readme_names_every_file_and_the_add_on_that_it_needs() -> None:
    readme = (K8S / "README.md").read_text()
    assert [path.name for path in FILES if f"`{path.name}`" not in readme] == []
    for needed in ("KEDA", "prometheus-adapter", "Prometheus Operator"):
        assert needed in readme
