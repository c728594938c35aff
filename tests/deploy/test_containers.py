"""The container, compose and Kubernetes files: what they copy, name and set exists, and nothing in them is a secret."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from kernelcast.api.settings import PREFIX, Settings
from kernelcast.files import HOME_ENV
from kernelcast.models.registry.mlflow_tracking import ARTIFACT_ROOT_ENV, URI_ENV

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
KNOWN = {PREFIX + name.upper() for name in Settings.__slots__} | {HOME_ENV, URI_ENV, ARTIFACT_ROOT_ENV}
FILES = ("Containerfile", "compose.yaml", "kubernetes.yaml")


def instructions() -> list[tuple[int, str, str]]:
    """(stage, instruction, rest) of every line of the Containerfile, continued lines joined."""
    lines = [line for line in FILE.splitlines() if not line.lstrip().startswith("#")]
    result, stage = [], -1
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            stage += word == "FROM"
            result.append((stage, word, rest.strip()))
    return result


def last(word: str) -> str:
    return [rest for stage, result, rest in instructions() if result == word and stage == 1][-1]


def env_of_image() -> dict[str, str]:
    return dict(
        part.split("=", 1)
        for stage, word, rest in instructions()
        if word == "ENV" and stage == 1
        for part in shlex.split(rest)
    )


def test_it_is_built_in_one_stage_and_run_from_another() -> None:
    stages = [rest.split() for _, word, rest in instructions() if word == "FROM"]
    assert len(stages) == 2
    # The first has a compiler, for the compiled engine; both are of one version.
    assert re.fullmatch(r"python:3\.1\d", stages[0][0])
    assert stages[1][0] == f"{stages[0][0]}-slim"
    (between,) = [rest for stage, word, rest in instructions() if word == "COPY" and stage == 1]
    assert between.startswith(f"--from={stages[0][2]} /opt/kernelcast ")


def copied() -> list[str]:
    return [name for stage, word, rest in instructions() if word == "COPY" and stage == 0 for name in rest.split()[:-1]]


def test_what_it_copies_is_there_and_makes_the_whole_wheel() -> None:
    names = set(copied())
    assert [name for name in names if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = {name.split(".")[1] for name in project["tool"]["setuptools"]["packages"] if "." in name}
    modules = {path.name for path in ROOT.glob("*.py")}
    needed = folders | modules | {"pyproject.toml", "constraints.txt", project["project"]["readme"],
                                  *project["project"]["license-files"]}  # fmt: skip
    assert names == needed


def test_the_builder_is_sent_all_of_it() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    plain = {line for line in ignored if line and not line.startswith("#") and "*" not in line}
    assert plain.isdisjoint(copied())
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--", *copied()], cwd=ROOT, capture_output=True, text=True, check=True
    )
    hidden = [name for name in tracked.stdout.split("\0") if any(part.startswith(".") for part in Path(name).parts)]
    assert hidden == []


def test_it_does_not_run_as_root() -> None:
    user, group = last("USER").split(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    assert f"--uid {user}" in FILE
    # Nothing after it runs as root again.
    order = [word for stage, word, _ in instructions() if stage == 1]
    assert not {"RUN", "COPY", "ADD"} & set(order[order.index("USER") :])


def test_its_command_is_the_command_line_s() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["kernelcast"]
    assert json.loads(last("CMD")) == ["serve"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert "kernelcast" in scripts
    settings = Settings.from_env(env_of_image())
    assert (settings.host, str(settings.port)) == ("0.0.0.0", last("EXPOSE"))
    assert env_of_image()[HOME_ENV] == last("VOLUME")


@pytest.mark.parametrize("answer", ["200", "503"])
def test_the_health_check_tells_ready_from_not(answer: str, tmp_path: Path) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    query = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query.append(self.path)
            self.send_response(int(answer))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    command = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = Thread(target=server.handle_request)
    thread.start()
    env = {"KERNELCAST_PORT": str(server.server_port), "PATH": "/usr/bin:/bin", "http_proxy": "http://127.0.0.1:1"}
    done = subprocess.run(
        ["python3", *command[1:]], env=env, check=False, capture_output=True, timeout=120, cwd=tmp_path
    )
    thread.join()
    server.server_close()
    assert (done.returncode == 0, query) == (answer == "200", ["/readyz"])


@pytest.mark.parametrize("name", FILES)
def test_every_variable_is_a_setting(name: str) -> None:
    named = set(re.findall(r"KERNELCAST_\w+", (DEPLOY / name).read_text(encoding="utf-8")))
    assert named
    assert named <= KNOWN, sorted(named - KNOWN)


@pytest.mark.parametrize("name", [*FILES, "nginx/kernelcast.conf", "systemd/kernelcast.service"])
def test_nothing_is_a_secret(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert not re.search(r"\bkc_\w{8}", text)
    for line in text.splitlines():
        if not line.startswith("#") and (result := re.search(r"(?:PASSWORD|_KEY|TOKEN|SECRET)\s*[:=]\s*(\S.*)$", line)):
            assert result[1].startswith("${"), line


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def test_compose_mounts_files_that_are_there() -> None:
    mounted = [volume for service in compose()["services"].values() for volume in service.get("volumes", ())]
    ours = [volume.split(":")[0] for volume in mounted if volume.startswith(".")]
    assert [name for name in ours if not (DEPLOY / name).exists()] == []
    named = {volume.split(":")[0] for volume in mounted} - set(ours)
    assert named == set(compose()["volumes"])


def test_prometheus_and_grafana_find_what_is_mounted() -> None:
    services = compose()["services"]
    mounted = {
        name: dict(volume.split(":")[1::-1] for volume in services[name]["volumes"])
        for name in services
        if "volumes" in services[name]
    }
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    assert set(prometheus["rule_files"]) <= set(mounted["prometheus"])
    (job,) = prometheus["scrape_configs"]
    # The alerts and the dashboard go by this name.
    assert job["job_name"] == "kernelcast"
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert host in services
    assert port == last("EXPOSE")
    assert Path(job["authorization"]["credentials_file"]).name in services["prometheus"]["secrets"]
    source = yaml.safe_load((DEPLOY / "compose" / "datasource.yaml").read_text(encoding="utf-8"))["datasources"][0]
    assert source["url"].removeprefix("http://").split(":")[0] in services
    folder = yaml.safe_load((DEPLOY / "compose" / "dashboards.yaml").read_text(encoding="utf-8"))["providers"][0][
        "options"
    ]["path"]
    assert {str(Path(path).parent) for path in mounted["grafana"]} >= {folder}


def test_compose_is_whole() -> None:
    result = compose()
    secrets = {name for service in result["services"].values() for name in service.get("secrets", ())}
    assert secrets == set(result["secrets"])
    # Made by whoever runs it, and never part of the clone.
    for item in result["secrets"].values():
        assert item["file"].startswith("./secrets/")
    ignored = subprocess.run(["git", "check-ignore", "-q", "deploy/secrets/keys"], cwd=ROOT, check=False)
    assert ignored.returncode == 0, "deploy/secrets/ must be in .gitignore"
    for service in result["services"].values():
        assert set(service.get("depends_on", ())) <= set(result["services"])
        # Nothing is open to other machines; a proxy with TLS is.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        if build := service.get("build"):
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    serve = result["services"]["kernelcast"]
    assert serve["read_only"] is True
    assert serve["command"] == ["serve"]
    assert Settings.from_env(serve["environment"]).workers == 2


def test_the_extras_of_the_images_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    query = {service["build"]["args"]["EXTRAS"] for service in compose()["services"].values()
             if "args" in service.get("build", {})}  # fmt: skip
    assert query == {"registry"}
    assert query | set(re.findall(r"EXTRAS=(\w+)", FILE)) <= set(extras)


def manifests() -> dict[str, Any]:
    result = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    assert len({item["kind"] for item in result}) == len(result)
    return {item["kind"]: item for item in result}


def container() -> Any:
    (result,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    return result


def test_kubernetes_parts_fit_together() -> None:
    result = manifests()
    deployment = result["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == result["Service"]["spec"]["selector"] == labels
    assert result["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert result["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert [port["targetPort"] for port in result["Service"]["spec"]["ports"]] == list(ports) == ["http"]
    assert ports["http"] == int(last("EXPOSE"))
    assert {item["configMapRef"]["name"] for item in container()["envFrom"]} == {
        result["ConfigMap"]["metadata"]["name"]
    }
    Settings.from_env(result["ConfigMap"]["data"])
    volumes = {item["name"] for item in deployment["template"]["spec"]["volumes"]}
    assert {item["name"] for item in container()["volumeMounts"]} == volumes
    assert last("VOLUME") in {item["mountPath"] for item in container()["volumeMounts"]}


def test_kubernetes_probes_and_limits() -> None:
    paths = {name: container()[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    # Alive though no model is loaded: a restart would not bring one.
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    assert container()["resources"]["limits"]["memory"]
    assert set(container()["resources"]["requests"]) == {"cpu", "memory"}
    pod, user = manifests()["Deployment"]["spec"]["template"]["spec"], last("USER").split(":")
    assert [pod["securityContext"][name] for name in ("runAsUser", "runAsGroup")] == [int(word) for word in user]
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert pod["terminationGracePeriodSeconds"] > 5 + 10
