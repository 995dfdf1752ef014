"""docker-compose.yml as docker-compose itself resolves it; no engine runs here, so no container."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.needs import needs_program

from prony_slo.objective import load_slo
from prony_slo.rules import rules

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "dashboards/prometheus"
PORTS = {"server": 8000, "grafana": 3000, "prometheus": 9090, "collector": 4318,
         "locust-master": 8089}  # fmt: skip
# One program and no shell in the image, or no port to ask at.
CANNOT_BE_ASKED = {"tempo", "collector", "locust-worker", "dcgm-exporter"}


def resolved(*files: str, **environ: str) -> dict[str, Any]:
    command = [needs_program("docker-compose")]
    for file in files:
        command += ["-f", file]
    done = subprocess.run(
        [*command, "--profile", "locust", "config"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environ},
    )
    assert done.returncode == 0, done.stderr
    assert "is not set" not in done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return resolved("docker-compose.yml")


@pytest.fixture(scope="module")
def with_gpu() -> dict[str, Any]:
    return resolved("docker-compose.yml", "docker-compose.gpu.yml", PRONY_TARGETS="vllm=h:1")


def test_every_port_is_bound_to_the_loopback(services: dict[str, Any]) -> None:
    published = {
        name: port for name, service in services.items() for port in service.get("ports", ())
    }
    assert published.keys() == PORTS.keys()
    assert published == {name: f"127.0.0.1:{port}:{port}/tcp" for name, port in PORTS.items()}


def test_every_port_can_be_moved() -> None:
    moved = resolved("docker-compose.yml", PRONY_GRAFANA_PORT="3999", PRONY_SERVER_PORT="8999")
    assert moved["grafana"]["ports"] == ["127.0.0.1:3999:3000/tcp"]
    assert moved["server"]["ports"] == ["127.0.0.1:8999:8000/tcp"]


def test_every_image_is_pinned(services: dict[str, Any], with_gpu: dict[str, Any]) -> None:
    images = {service["image"] for service in (*services.values(), *with_gpu.values())}
    tags = {image: image.rpartition(":")[2] for image in images}
    assert all(any(digit.isdigit() for digit in tag) for tag in tags.values()), tags
    base = (ROOT / "server/Dockerfile").read_text().split("FROM ")[1].split()[0]
    assert base.startswith("python:3.") and base.count(".") >= 2


def test_every_service_has_limits_and_a_health_check_where_it_can_be_asked(
    with_gpu: dict[str, Any],
) -> None:
    for name, service in with_gpu.items():
        limits = service["deploy"]["resources"]["limits"]
        assert limits.keys() == {"cpus", "memory"}, name
        checked = service.get("healthcheck", {}).get("test", ["NONE"]) != ["NONE"]
        assert checked != (name in CANNOT_BE_ASKED), name


def test_the_locust_services_wait_for_their_profile_and_the_gentle_load_does_not(
    services: dict[str, Any],
) -> None:
    waiting = {name for name, service in services.items() if service.get("profiles")}
    assert waiting == {"locust-master", "locust-worker"}
    assert "load" in services


def test_nobody_needs_a_password_and_none_is_in_the_files(services: dict[str, Any]) -> None:
    grafana = services["grafana"]["environment"]
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert grafana["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    for file in ("docker-compose.yml", "docker-compose.gpu.yml"):
        words = (ROOT / file).read_text().lower()
        assert "password:" not in words and "_password" not in words


def test_the_gpu_file_gives_the_server_the_gpus_and_keeps_the_users_targets(
    with_gpu: dict[str, Any],
) -> None:
    devices = with_gpu["server"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices[0]["capabilities"] == ["gpu"]
    targets = with_gpu["prometheus"]["environment"]["PRONY_TARGETS"]
    assert targets == "dcgm=dcgm-exporter:9400,vllm=h:1"


def test_every_file_that_is_mounted_exists(services: dict[str, Any]) -> None:
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume.startswith("/")
    ]
    assert len(mounted) >= 6
    assert [path for path in mounted if not Path(path).exists()] == []


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", []),
        ("a:1", [{"targets": ["a:1"], "labels": {"job": "targets"}}]),
        (
            "vllm=h:8001,,sglang=10.0.0.7:30000,",
            [
                {"targets": ["h:8001"], "labels": {"job": "vllm"}},
                {"targets": ["10.0.0.7:30000"], "labels": {"job": "sglang"}},
            ],
        ),
    ],
)
def test_targets_of_the_environment_become_prometheus_own_list(
    given: str, wanted: list[Any]
) -> None:
    done = subprocess.run(
        ["sh", str(PROMETHEUS / "targets.sh")],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PRONY_TARGETS": given},
    )
    assert json.loads(done.stdout) == wanted


def test_prometheus_takes_its_configuration_and_rules() -> None:
    promtool = needs_program("promtool")
    config = str(PROMETHEUS / "prometheus.yml")
    subprocess.run([promtool, "check", "config", "--syntax-only", config], check=True)
    files = sorted(str(path) for path in (PROMETHEUS / "rules").glob("*.yml"))
    assert len(files) == 3
    subprocess.run([promtool, "check", "rules", *files], check=True)


def test_names_whose_colon_was_escaped_get_it_back() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (job,) = (each for each in config["scrape_configs"] if each["job_name"] == "targets")
    (rule,) = job["metric_relabel_configs"]
    assert (rule["source_labels"], rule["target_label"]) == (["__name__"], "__name__")
    into = rule["replacement"].replace("$1", r"\1").replace("$2", r"\2")
    for name, stored in (
        ("vllm_request_success_total", "vllm:request_success_total"),
        ("sglang_num_running_reqs", "sglang:num_running_reqs"),
        ("vllm:num_requests_running", "vllm:num_requests_running"),
        ("prony_requests_running", "prony_requests_running"),
    ):
        match = re.fullmatch(rule["regex"], name)
        assert (match.expand(into) if match else name) == stored


def test_the_committed_rules_are_what_the_command_makes() -> None:
    made = rules(load_slo(["chat"]), "prony").to_yaml()
    assert (PROMETHEUS / "rules/chat.yml").read_text() == made


def test_scraping_and_grafanas_data_source_agree_on_two_seconds() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    provisioned = ROOT / "dashboards/provisioning/datasources/prony.yaml"
    sources = {
        each["type"]: each for each in yaml.safe_load(provisioned.read_text())["datasources"]
    }
    assert config["global"]["scrape_interval"] == "2s"
    assert sources["prometheus"]["jsonData"]["timeInterval"] == "2s"
    # A point of a percentile opens the trace that it came from.
    (link,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert link == {"name": "trace_id", "datasourceUid": sources["tempo"]["uid"]}
