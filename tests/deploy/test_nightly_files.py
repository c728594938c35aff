"""What starts a night without anyone there: unit and timer, cron, CronJob, and the plan that all of them name."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from kernelcast.api.settings import Settings
from kernelcast.commands import app
from kernelcast.commands.measure.nightly import NIGHT_RUNNING
from kernelcast.files import HOME_ENV
from kernelcast.nightly.record.plan import Plan
from kernelcast.nightly.record.plan_file import plan_of, read_plan

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICE, TIMER = (DEPLOY / "systemd" / f"kernelcast-nightly.{kind}" for kind in ("service", "timer"))
PLAN, CRON, CLUSTER = DEPLOY / "nightly-plan.yaml", DEPLOY / "cron" / "kernelcast", DEPLOY / "kubernetes-nightly.yaml"
PROGRAM, PLACE = "/opt/kernelcast/bin/kernelcast", "/etc/kernelcast/nightly-plan.yaml"


def unit(path: Path) -> dict[str, list[str]]:
    result: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", "[")):
            name, equals, value = line.partition("=")
            assert equals, line
            result[name].append(value)
    return result


def cron_lines() -> list[str]:
    """The lines of the crontab that start something."""
    lines = [line for line in CRON.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [line for line in lines if not re.match(r"[A-Z_]+=", line)]


def documents() -> dict[str, Any]:
    return {item["kind"]: item for item in yaml.safe_load_all(CLUSTER.read_text(encoding="utf-8"))}


def pod() -> dict[str, Any]:
    result: dict[str, Any] = documents()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return result


def commands() -> Iterator[tuple[str, list[str]]]:
    yield "systemd", shlex.split(unit(SERVICE)["ExecStart"][0])[1:]
    (line,) = cron_lines()
    words = shlex.split(line)
    yield "cron", words[words.index(PROGRAM) + 1 :]
    yield "kubernetes", pod()["containers"][0]["args"]


@pytest.mark.parametrize(("where", "words"), list(commands()))
def test_what_is_started_is_a_command_with_its_options(where: str, words: list[str], tmp_path: Path) -> None:
    group = typer.main.get_command(app)
    assert words[:2] == ["measure", "nightly"]
    measure = group.get_command(typer.Context(group), "measure")  # type: ignore[attr-defined]
    command = measure.get_command(typer.Context(measure), "nightly")
    plan = tmp_path / "nightly-plan.yaml"
    shutil.copy(PLAN, plan)
    raw = [str(plan) if word == PLACE else word for word in words[2:]]
    assert str(plan) in raw, where
    # The command's own parser takes the words; nothing is run.
    context = command.make_context("nightly", raw)
    assert context.params["plan_file"] == plan


def test_the_plan_is_one_and_says_what_it_does() -> None:
    plan = read_plan(PLAN)
    assert (plan.name, plan.minutes, plan.collector) == ("nightly", 60.0, "cpu")
    # But for its minutes it is what a plan of one line has: whoever deletes a key changes nothing.
    assert plan == Plan(minutes=60.0)


def test_the_cluster_has_the_same_plan() -> None:
    text = documents()["ConfigMap"]["data"]["nightly-plan.yaml"]
    assert plan_of(yaml.safe_load(text)) == read_plan(PLAN)
    assert text == "\n".join(PLAN.read_text(encoding="utf-8").splitlines()[2:]) + "\n"


def analyze(*options: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run([program, *options], capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units with this environment's program in the place of the one in /opt; the path of the timer."""
    program = str(Path(sys.executable).with_name("kernelcast"))
    for path in (SERVICE, TIMER):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8").replace(PROGRAM, program), encoding="utf-8")
    return tmp_path / TIMER.name


def test_systemd_takes_both(units: Path) -> None:
    for path in (units, units.with_suffix(".service")):
        done = analyze("verify", "--man=no", str(path))
        message = [line for line in done.stderr.splitlines() if "kernelcast-nightly" in line]
        assert (done.returncode, message) == (0, [])


def test_the_night_is_exposed_to_little(units: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", "--threshold=30", str(units.with_suffix(".service")))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a file")
    result = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert result, done.stderr
    # systemd calls up to 2 OK; kernels are compiled as they are measured, which the service's unit forbids.
    assert float(result[1]) <= 1.7


def test_the_timer_comes_every_night_and_makes_up_for_it() -> None:
    timer = unit(TIMER)
    assert (timer["Persistent"], timer["WantedBy"]) == (["true"], ["timers.target"])
    assert "Unit" not in timer  # the service of the same name
    for name, value, message in (("calendar", timer["OnCalendar"][0], "Normalized form"),
                              ("timespan", timer["RandomizedDelaySec"][0], "Human: 30min")):  # fmt: skip
        done = analyze(name, value)
        assert done.returncode == 0, done.stderr
        assert message in done.stdout


def test_the_unit_shares_the_services_folder_and_ends() -> None:
    night, service = unit(SERVICE), unit(DEPLOY / "systemd" / "kernelcast.service")
    assert night["Type"] == ["oneshot"]
    assert night["StateDirectory"] == service["StateDirectory"]
    assert night["User"] == ["kernelcast"]  # what the dynamic user of kernelcast.service is called
    home = [line for line in service["Environment"] if line.startswith(HOME_ENV)]
    assert home[0] in night["Environment"]
    assert night["SuccessExitStatus"] == [str(NIGHT_RUNNING)]
    assert night["TimeoutStartSec"] == ["6h"]
    assert "MemoryDenyWriteExecute" not in night
    # All else that holds the service in holds the night in as well.
    stored = {
        name for name in service if name.startswith(("Protect", "Private", "Restrict", "SystemCall", "Lock", "NoNew"))
    }
    assert stored <= set(night)


FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))


def test_the_crontab_is_one() -> None:
    text = CRON.read_text(encoding="utf-8")
    assert text.endswith("\n")  # cron leaves out a last line without an end
    (line,) = cron_lines()
    assert "%" not in line  # cron's own sign for a new line
    times, (user, *command) = line.split()[:5], line.split()[5:]
    for value, (name, low, high) in zip(times, FIELDS, strict=True):
        assert value == "*" or (value.isdigit() and low <= int(value) <= high), name
    assert times[2:] == ["*", "*", "*"]
    assert user == "kernelcast"
    assert command[0] == "timeout"
    named = dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))
    assert HOME_ENV in named
    # `timeout` is found by the PATH that the file sets.
    assert shutil.which("timeout", path=named["PATH"])


CRON_JOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "batch/v1"},
        "spec": {
            "type": "object",
            "required": ["schedule", "jobTemplate"],
            "additionalProperties": False,
            "properties": {
                "schedule": {"type": "string", "pattern": r"^(\S+ ){4}\S+$"},
                "timeZone": {"type": "string"},
                "concurrencyPolicy": {"const": "Forbid"},
                "startingDeadlineSeconds": {"type": "integer", "minimum": 10},
                "successfulJobsHistoryLimit": {"type": "integer"},
                "failedJobsHistoryLimit": {"type": "integer"},
                "jobTemplate": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "spec": {
                            "type": "object",
                            "required": ["template", "activeDeadlineSeconds", "backoffLimit"],
                            "properties": {"activeDeadlineSeconds": {"type": "integer"}, "backoffLimit": {"const": 0}},
                        }
                    },
                },
            },
        },
    },
}
"""What of the API's schema of a CronJob (batch/v1) such a file can get wrong, and what this one is to say."""


def test_the_cron_job_is_one() -> None:
    import jsonschema

    jsonschema.Draft202012Validator(CRON_JOB).validate(documents()["CronJob"])
    spec = documents()["CronJob"]["spec"]
    assert set(documents()) == {"PersistentVolumeClaim", "ConfigMap", "CronJob"}
    assert spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] > 2 * read_plan(PLAN).budget_s
    assert pod()["restartPolicy"] == "Never"
    (container,) = pod()["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
    assert set(mounted) == {item["name"] for item in pod()["volumes"]}
    env = {item["name"]: item["value"] for item in container["env"]}
    assert env[HOME_ENV] == mounted["home"]
    assert env["HOME"] == mounted["tmp"]
    volumes = {item["name"]: item for item in pod()["volumes"]}
    assert (
        volumes["home"]["persistentVolumeClaim"]["claimName"]
        == documents()["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert volumes["plan"]["configMap"]["name"] == documents()["ConfigMap"]["metadata"]["name"]
    assert f"{mounted['plan']}/{PLAN.name}" == PLACE
    limits = container["resources"]
    assert limits["requests"] == limits["limits"]


def test_what_the_files_set_is_a_setting() -> None:
    known = {f"KERNELCAST_{name.upper()}" for name in Settings.__slots__} | {HOME_ENV}
    for path in (SERVICE, TIMER, CRON, CLUSTER, PLAN):
        assert set(re.findall(r"KERNELCAST_\w+", path.read_text(encoding="utf-8"))) <= known, path
