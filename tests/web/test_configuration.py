"""A configuration is applied as a whole or not at all, and mistakes are reported."""

import logging
from pathlib import Path

import pytest

from router.settings import Settings, SettingsSource, load
from router.web.configuration import Configuration

D0 = {"decode": "http://d0"}


class Desk:
    """A configuration file, and what was made of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("routing_threshold: 1")
        self.applied: list[Settings] = []
        self.reloads = [0, 0, 0]
        self.now = 0.0
        self.configuration = Configuration(
            load(D0, path), SettingsSource(D0, path), self._apply, self.reloads, lambda: self.now
        )

    def write(self, text: str) -> None:
        """Replace the file, as `mv` does: there is another inode."""
        other = self.path.with_suffix(".new")
        other.write_text(text)
        other.replace(self.path)

    def _apply(self, settings: Settings) -> None:
        self.applied.append(settings)


@pytest.fixture
def desk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Desk:
    caplog.set_level(logging.INFO, "router.web.configuration")
    return Desk(tmp_path / "router.yaml")


def test_a_file_that_has_changed_is_applied_once(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.configuration.look()
    assert desk.applied == []
    desk.write("routing_threshold: 2\nqueue_size: 7")
    desk.configuration.look()
    desk.configuration.look()
    [settings] = desk.applied
    assert (settings.routing_threshold, settings.queue_size) == (2, 7)
    assert desk.configuration.settings is settings
    assert desk.reloads == [1, 0, 1]
    [record] = caplog.records
    assert record.__dict__["fields"] == {"changed": "--routing-threshold, --queue-size"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("routing_threshold: -1", "routing_threshold: must be a number of tokens"),
        ("routing_treshold: 2", "no such setting, did you mean routing_threshold?"),
        ("routing_threshold: 2\nport: 9", "--port: needs a restart"),
        ("routing_threshold: 2\nport: 9\nworkers: 2", "--port, --workers: needs a restart"),
        ("{", "is not YAML"),
    ],
)
def test_a_wrong_file_is_rejected_as_a_whole_with_one_line(
    desk: Desk, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    before = desk.configuration.settings
    desk.write(text)
    desk.configuration.look()
    desk.configuration.look()
    desk.write(text)  # by what copies it every minute, say
    desk.configuration.look()
    assert desk.applied == []
    assert desk.configuration.settings is before
    assert desk.reloads == [0, 1, 0]
    [line] = caplog.messages
    assert line.startswith("configuration rejected, the old one remains: ")
    assert reason in line


def test_repeated_mistake_is_logged_anew(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    for text in ("{", "routing_threshold: 3", "{"):
        desk.write(text)
        desk.configuration.look()
    assert [line.startswith("configuration rejected") for line in caplog.messages] == [
        *(True, False, True)
    ]


def test_a_good_one_after_a_wrong_one_shows_that_all_is_well(desk: Desk) -> None:
    desk.write("{")
    desk.configuration.look()
    desk.write("routing_threshold: 3")
    desk.configuration.look()
    assert desk.reloads == [1, 1, 1]


def test_a_configuration_without_a_reload_is_not_rejected(desk: Desk) -> None:
    assert desk.reloads == [0, 0, 1]


def test_a_rejected_configuration_is_applied_when_its_missing_file_exists(
    desk: Desk, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    desk.write(f"api_key_file: {keys}")
    desk.configuration.look()
    assert desk.reloads == [0, 1, 0]
    for desk.now in (9.0, 10.0, 19.0):
        desk.configuration.look()
    assert desk.reloads == [0, 1, 0]
    assert len(caplog.messages) == 1  # logged once
    keys.write_text("team-a abcdefghijklmnopqrstuvwx")
    desk.configuration.look()
    assert desk.applied == []
    for desk.now in (20.0, 99.0):
        desk.configuration.look()
    assert len(desk.applied) == 1
    assert desk.reloads == [1, 1, 1]


def test_a_new_reason_is_logged_and_the_same_one_is_shown_on_request(
    desk: Desk, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    desk.write(f"api_key_file: {keys}")
    desk.configuration.look()
    keys.write_text("team-a")
    desk.now = 10.0
    desk.configuration.look()
    desk.configuration.reload()
    assert desk.reloads == [0, 3, 0]
    first, second, third = caplog.messages
    assert first != second == third


def test_one_that_cannot_be_applied_is_rejected(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Settings) -> None:
        raise OSError("no such key file")

    monkeypatch.setattr(desk.configuration, "_apply", fail)
    desk.write("routing_threshold: 3")
    desk.configuration.look()
    assert desk.reloads == [0, 1, 0]
    assert desk.configuration.settings.routing_threshold == 1
    assert caplog.messages[0].endswith("no such key file")


def test_a_reload_reads_again_even_if_the_file_is_the_same(desk: Desk) -> None:
    desk.configuration.reload()
    assert len(desk.applied) == 1
    assert desk.reloads == [1, 0, 1]


def test_no_value_of_a_setting_is_logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.write("engine_api_key: s3cret")
    desk.configuration.look()
    desk.write("engine_api_key: s3cret word")
    desk.configuration.look()
    assert len(caplog.messages) == 2
    assert "s3cret" not in caplog.text


def test_a_router_without_a_file_reads_its_settings_again_too() -> None:
    applied: list[Settings] = []
    settings = load(D0)
    configuration = Configuration(settings, SettingsSource(D0), applied.append, [0, 0, 1])
    configuration.look()
    assert applied == []
    configuration.reload()
    assert applied == [settings]


def test_settings_that_cannot_be_read_now_change_nothing() -> None:
    reloads = [0, 0, 1]
    Configuration(load(D0), SettingsSource({}), lambda _: None, reloads).reload()
    assert reloads == [0, 1, 0]
