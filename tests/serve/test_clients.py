"""Clients as people install them, from npm, unmodified, against the demonstration model.

They are installed once per run, into a temporary directory, or taken from WASTE_TEST_CLIENTS, a
directory that has node_modules. Without node, npm or a registry these are skipped.
"""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from serving import PATIENCE, Server, clean_env, node_major, seeing_model, server  # noqa: F401

CLIENTS = pathlib.Path(__file__).parent / "clients"
CHECKS = re.findall(r"^    async (\w+)\(\) \{", (CLIENTS / "check.mjs").read_text(), re.M)


@pytest.fixture(scope="session")
def clients(tmp_path_factory):
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node, or no npm")
    path = tmp_path_factory.mktemp("clients")
    shutil.copytree(CLIENTS, path, dirs_exist_ok=True)
    if os.environ.get("WASTE_TEST_CLIENTS"):
        (path / "node_modules").symlink_to(
            pathlib.Path(os.environ["WASTE_TEST_CLIENTS"]) / "node_modules")
        return path
    done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"],
                          cwd=path, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip("npm install: " + done.stderr.strip()[-200:])
    return path


@pytest.fixture(scope="module")
def seeing(seeing_model):  # noqa: F811
    with Server("--vision", model=seeing_model) as s:
        yield s.ready()


@pytest.mark.parametrize("check", CHECKS)
def test_a_real_client(request, clients, check):
    asked = request.getfixturevalue("seeing" if check.startswith("sees_") else "server")
    older = ["--experimental-global-webcrypto"] if node_major() < 20 else []  # a client wants crypto
    done = subprocess.run(["node", *older, "check.mjs", f"http://127.0.0.1:{asked.port}", check],
                          cwd=clients, capture_output=True, text=True, timeout=PATIENCE,
                          env=clean_env())
    assert done.returncode == 0, done.stderr
