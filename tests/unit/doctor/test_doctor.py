"""What `escapement doctor` says about places, limits, clocks and servers that tests do not have."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from escapement.doctor.data_directory import Place, _file_system, judge, look_at
from escapement.doctor.database import judge_skew
from escapement.doctor.finding import Severity
from escapement.doctor.machine import judge_descriptors
from escapement.storage.engine.mysql.fitness import durability_risks

GIB = 1024**3
GOOD = Place(
    path=Path("/data"),
    where=Path("/data"),
    exists=True,
    is_directory=True,
    writable=True,
    mode=0o700,
    owned=True,
    file_system="ext4",
    free_bytes=100 * GIB,
    free_files=1_000_000,
)
SAFE = {"innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "1"}


def worst(place: Place, *, holds_log: bool = True) -> tuple[Severity, str]:
    """Return the severity and the text of the only finding that is not ok, or of the first one."""
    found = list(judge(place, holds_log=holds_log))
    assert [one.check for one in found] == ["permissions", "file system", "disk space"]
    assert all(one.remedy for one in found if one.is_bad)
    others = [one for one in found if one.severity is not Severity.OK] or found[:1]
    assert len(others) == 1
    return others[0].severity, others[0].text


def test_good_data_directory_has_no_finding() -> None:
    assert worst(GOOD)[0] is Severity.OK


@pytest.mark.parametrize(
    ("change", "severity", "text"),
    [
        ({"is_directory": False}, "error", "is not a directory"),
        ({"writable": False}, "error", "may not write to /data"),
        ({"exists": False}, "notice", "the broker creates it"),
        ({"mode": 0o777}, "warning", "may change"),
        ({"mode": 0o755}, "notice", "may read messages"),
        ({"owned": False}, "notice", "belongs to another user"),
        ({"file_system": "tmpfs"}, "error", "all messages are lost"),
        ({"file_system": "nfs4"}, "error", "network file system (nfs4)"),
        ({"file_system": "overlay"}, "warning", "in the container itself"),
        ({"free_bytes": GIB}, "warning", "only 1.0 GiB"),
        ({"free_bytes": 0}, "error", "only 0.0 GiB"),
        ({"free_files": 10}, "error", "only 10 more files"),
        ({"free_files": None}, "ok", "only user"),
    ],
)
def test_finding_of_a_data_directory(
    change: Mapping[str, object], severity: str, text: str
) -> None:
    """O7"""
    found = worst(replace(GOOD, **change))  # type: ignore[arg-type]
    assert found[0] == severity
    assert text in found[1]


@pytest.mark.parametrize("file_system", ["tmpfs", "nfs"])
def test_index_in_a_bad_place_is_only_a_warning(file_system: str) -> None:
    found = worst(replace(GOOD, file_system=file_system), holds_log=False)
    assert found[0] is Severity.WARNING


def test_missing_directory_is_judged_by_its_nearest_parent(tmp_path: Path) -> None:
    place = look_at(tmp_path / "a" / "b")
    assert (place.exists, place.where, place.writable) == (False, tmp_path, True)
    assert look_at(Path("/dev/shm")).file_system == "tmpfs"
    assert place.free_bytes > 0


def test_innermost_and_last_mount_decides(tmp_path: Path) -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:2 / {tmp_path} rw shared:1 - tmpfs tmpfs rw\n"
        f"3 1 0:3 / {tmp_path} rw - nfs4 host:/x rw\n"
        f"4 1 0:4 / {tmp_path}/with\\040space rw - xfs /dev/b rw\n"
    )
    assert _file_system(tmp_path / "x", mounts) == "nfs4"
    assert _file_system(tmp_path / "with space", mounts) == "xfs"
    assert _file_system(tmp_path.parent, mounts) == "ext4"


def test_few_descriptors_are_a_warning() -> None:
    """O7"""
    assert judge_descriptors(20_000, 20_000, 10_000).severity is Severity.OK
    assert judge_descriptors(resource.RLIM_INFINITY, 9, 10_000).severity is Severity.OK
    found = judge_descriptors(1024, 1_048_576, 10_000)
    assert found.severity is Severity.WARNING
    assert "about 512 clients" in found.text
    assert "LimitNOFILE=20000" in found.remedy
    assert "ulimit" in found.remedy
    assert "root" in judge_descriptors(1024, 4096, 10_000).remedy


@pytest.mark.parametrize(
    ("skew_s", "uncertainty_s", "text"),
    [(5.0, 0.1, "5.0 s ahead of"), (-3.0, 0.1, "3.0 s behind")],
)
def test_skew_of_the_clock_is_a_warning(skew_s: float, uncertainty_s: float, text: str) -> None:
    """O7"""
    found = judge_skew("log", skew_s, uncertainty_s)
    assert found.severity is Severity.WARNING
    assert text in found.text


def test_skew_within_a_slow_round_trip_is_none() -> None:
    assert judge_skew("log", 0.4, 0.01).severity is Severity.OK
    assert judge_skew("log", -4.0, 3.5).severity is Severity.OK


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ({}, []),
        ({"innodb_flush_log_at_trx_commit": "3"}, []),
        ({"innodb_flush_log_at_trx_commit": "0"}, ["innodb_flush_log_at_trx_commit"]),
        ({"innodb_flush_log_at_trx_commit": "2"}, ["innodb_flush_log_at_trx_commit"]),
        ({"sync_binlog": "0"}, ["sync_binlog"]),
        ({"sync_binlog": "100"}, ["sync_binlog"]),
        ({"sync_binlog": "0", "log_bin": "OFF"}, []),
        ({"innodb_flush_method": "nosync"}, ["innodb_flush_method"]),
        ({"innodb_flush_method": "O_DIRECT_NO_FSYNC"}, []),
        ({"innodb_doublewrite": "OFF"}, ["innodb_doublewrite"]),
    ],
)
def test_settings_that_can_lose_commits_are_risks(
    change: Mapping[str, str], settings: list[str]
) -> None:
    """O7"""
    assert [risk.setting for risk in durability_risks({**SAFE, **change})] == settings
