"""The search for AIPerf, and the message without it."""

from pathlib import Path

import pytest

from benchmarks.gate.aiperf import environment


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PD_ROUTER_AIPERF", str(tmp_path))
    return tmp_path


def put(home: Path, version: str) -> None:
    (home / f"aiperf/lib/python3.11/site-packages/aiperf-{version}.dist-info").mkdir(parents=True)
    (home / "aiperf/bin").mkdir()
    environment.executable().touch()


def test_another_version_is_none(home: Path) -> None:
    put(home, "0.12.0")
    with pytest.raises(environment.NotInstalled, match="python -m benchmarks aiperf install"):
        environment.check()


def test_without_the_tokenizer_it_would_ask_the_network(home: Path) -> None:
    put(home, environment.VERSION)
    with pytest.raises(environment.NotInstalled):
        environment.check()
    # The name that tiktoken gives it: the SHA-1 of its address.
    (home / "tiktoken").mkdir()
    (home / "tiktoken/9b5ad71b2ce5302211f9c61530b329a4922fc6a4").touch()
    environment.check()
    assert environment.variables()["TIKTOKEN_CACHE_DIR"] == str(home / "tiktoken")


def test_certificates_are_verified_by_default(home: Path) -> None:
    assert "AIPERF_HTTP_SSL_VERIFY" not in environment.variables()
    assert environment.variables(verify=False)["AIPERF_HTTP_SSL_VERIFY"] == "false"


def test_installing_twice_does_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(home, environment.VERSION)
    environment._vocabulary().parent.mkdir()
    environment._vocabulary().touch()
    assert environment.main(["install"]) == 0
    assert f"already in {home}" in capsys.readouterr().out
