"""Storage that a job would lose, without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cluster import check_job_storage, check_kept_storage
from workers.errors import ClusterError

JOB = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}


@pytest.mark.parametrize("uri", ["/shared/luca", "s3://bucket/x", "file:///shared", "~/luca"])
def test_storage_that_outlives_a_job_is_accepted(uri: str) -> None:
    check_kept_storage(uri)
    check_job_storage(uri, JOB)


@pytest.mark.parametrize("uri", ["luca-storage", "./here", "../there"])
def test_a_relative_path_is_refused_in_a_job_and_nowhere_else(uri: str) -> None:
    check_job_storage(uri, {})
    with pytest.raises(ClusterError, match=r"a relative path.*storage=/shared/luca") as caught:
        check_job_storage(uri, JOB)
    assert "\n" not in str(caught.value)


def test_a_jobs_unpacked_folder_is_refused_by_whatever_name(tmp_path: Path) -> None:
    unpacked = tmp_path / "session_1" / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    unpacked.mkdir(parents=True)
    (tmp_path / "link").symlink_to(unpacked)
    for uri in (f"{unpacked}/storage", f"file://{unpacked}/storage", f"{tmp_path}/link/storage"):
        check_job_storage(uri, {})
        with pytest.raises(ClusterError, match="unpacked into and lose"):
            check_job_storage(uri, JOB)
