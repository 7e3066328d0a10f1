"""`vlbatch doctor` looks, says, and fails when the self-test does."""

from __future__ import annotations

import json

import pytest
from conftest import Cli

from vlbatch import doctor


def test_doctor_json(cli: Cli) -> None:
    ran = cli("doctor", "--json")
    found = json.loads(ran.stdout)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert list(states) == ["versions", "memory", "devices", "kernels", "model hub", "demo model"]
    assert ran.code == 0
    assert found["ok"]
    assert states["demo model"] == "ok"
    assert "2 sample captions right" in found["checks"][-1]["detail"]


def test_a_wrong_caption_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dict(list(doctor.samples().items())[:2])
    first = next(iter(right))
    monkeypatch.setattr(doctor, "samples", lambda: right | {first: "A wrong caption."})
    check = list(doctor.run_checks())[-1]
    assert check.state == "fail"
    assert first in check.detail


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_demo", lambda: doctor.Check("demo model", "ok", ""))

    def broken() -> doctor.Check:
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "_memory", broken)
    check = list(doctor.run_checks())[1]
    assert (check.name, check.state) == ("memory", "fail")
    assert "no such thing" in check.detail
