from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.profiles import PLATFORMS, PROFILES, InvalidProfile, Profile, find, read


@pytest.mark.parametrize(
    ("gpus", "concurrency", "requests"), [(8, 2048, 16_384), (4, 1024, 8192), (1, 256, 2048)]
)
def test_the_default_is_the_validators_workload(gpus: int, concurrency: int, requests: int) -> None:
    knee = PROFILES["knee"]
    assert knee.concurrency(gpus) == knee.warmup_count(gpus) == concurrency
    assert knee.request_count(gpus) == requests
    assert (knee.input_tokens, knee.output_tokens) == (128, 128)
    assert (knee.prompts, knee.seed, knee.temperature) == (100, 100, 0.0)


def test_half_the_concurrency_is_below_the_knee() -> None:
    assert PROFILES["sub-knee"].concurrency(8) == 1024


def test_a_thousand_requests_are_the_least() -> None:
    assert Profile("few", concurrency_per_gpu=10).request_count(1) == 1000


def test_smoke_is_a_matter_of_seconds() -> None:
    smoke = PROFILES["smoke"]
    assert smoke.request_count(2) * smoke.output_tokens < 1000
    assert smoke.request_count(2) > smoke.concurrency(2)
    assert 1 <= smoke.min_seconds <= 5


def test_prompts_are_repeated_and_the_report_notes_it() -> None:
    assert PROFILES["knee"].reuse(8) == pytest.approx(184.32)


def test_a_file_overrides_only_the_settings_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: sub-knee\nrequests: 500\nwarmup: 0\n")
    found = find(str(path))
    assert found == Profile("mine", concurrency_per_gpu=128, requests=500, warmup=0)
    assert (found.request_count(8), found.warmup_count(8)) == (500, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("requests: 0", "requests"),
        ("requests: many", "requests"),
        ("concurrency_per_gpu: 1.5", "concurrency_per_gpu"),
        ("concurrency_per_gpu: true", "concurrency_per_gpu"),
        ("concurrency_per_gpu: null", "concurrency_per_gpu"),
        ("output_tokens: -1", "output_tokens"),
        ("temperature: .inf", "temperature"),
        ("timeout: .nan", "timeout"),
        ("extends: hills", "extends"),
        ("extends: [knee]", "extends"),
        ("concurency: 5", "unknown field concurency"),
        ("- 1", "not a mapping"),
        ("{", "mine.yaml"),
        ("", "not a mapping"),
    ],
)
def test_bad_file_names_field_before_traffic(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InvalidProfile, match=words):
        read(path)


@pytest.mark.parametrize("name", ["hills", "/no/such.yaml", ""])
def test_invalid_profiles_are_reported(name: str) -> None:
    with pytest.raises(InvalidProfile):
        find(name)


@given(
    st.dictionaries(
        st.sampled_from([field.name for field in fields(Profile)]),
        st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats() | st.text(max_size=3),
    )
)
def test_any_file_either_runs_or_is_refused(tmp_path_factory, changes) -> None:
    path = tmp_path_factory.mktemp("profile") / "mine.yaml"
    path.write_text(yaml.safe_dump(changes), encoding="utf-8")
    try:
        found = read(path)
    except InvalidProfile:
        return
    assert found.request_count(8) >= 1
    assert found.concurrency(8) >= 8
    assert found.warmup_count(8) >= 0
    assert found.timeout > 0


def test_constraints_are_as_published() -> None:
    asked = Constraints(">= 50000", "<= 2000")
    names = ("h100-eks", "h100-gke", "h100-aks", "gb200", "rtx-pro-6000")
    from_platforms = {name: PLATFORMS[name].constraints for name in names}
    assert from_platforms == dict.fromkeys(names, asked)
    assert PLATFORMS["gb200"].gpus == 4
