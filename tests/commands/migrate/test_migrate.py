"""`pd-router migrate`: what other routers publish becomes a file that `serve` accepts."""

from collections.abc import Mapping

import pytest
import yaml

from router import cli
from router.commands.migrate import OTHERS
from router.settings import Settings, examine
from tests.commands.migrate.published import FILES, FLAGS, LINES, Published
from tests.docs.blocks import ROOT, blocks, commands

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def migrate(capsys, tmp_path):
    """Runs the command; returns what is written, the names that are lost, and the status."""

    def run(text: str, *options: str, lines: bool = True):
        if lines:
            arguments = [*options, "--", *text.replace('"', "").split()]
        else:
            (tmp_path / "theirs").write_text(text)
            arguments = [*options, str(tmp_path / "theirs")]
        status = cli.main(["migrate", *arguments])
        out, err = capsys.readouterr()
        (tmp_path / "router.yaml").write_text(out)
        lost = [line.partition(": ")[2] for line in err.splitlines() if line.startswith("not ")]
        return yaml.safe_load(out), lost, status

    return run


def source(published: Published) -> str:
    """How pytest names a case."""
    return published.source


def check(published: Published, written, lost, tmp_path, status) -> None:
    """The settings are those that are expected, and `serve` accepts the file."""
    other = OTHERS[published.router]
    defaults = {name: value for name, value in other.defaults.items() if name in written}
    assert written == {**defaults, **published.settings}
    assert [line.partition(":")[0] for line in lost] == list(published.lost)
    assert examine({}, tmp_path / "router.yaml")[1] == []
    assert status == 0


@pytest.mark.parametrize("published", [p for p in LINES if "(" not in p.text], ids=source)
def test_published_flag_lines_become_files_that_serve_accepts(published, migrate, tmp_path):
    written, lost, status = migrate(published.text)
    check(published, written, lost, tmp_path, status)


@pytest.mark.parametrize("published", [*LINES, *FILES], ids=source)
def test_published_scripts_and_files_become_files_that_serve_accepts(published, migrate, tmp_path):
    text = published.text
    if published in LINES:
        text = "#!/bin/sh\n# routes\n" + text.replace("\n", " \\\n")
    written, lost, status = migrate(text, lines=False)
    check(published, written, lost, tmp_path, status)


@pytest.mark.parametrize("name", FLAGS)
def test_every_published_flag_has_a_row(name):
    flags = [f"--{flag}" for flag in FLAGS[name].split()]
    assert [flag for flag in flags if not OTHERS[name].about(flag)] == []


def test_the_file_in_the_document_is_the_one_that_is_written(migrate):
    command, written = list(blocks(ROOT / "docs/migrate.md"))[:2]
    words = commands(command)[0].words
    text = " ".join(words[words.index("--") + 1 : words.index(">")])
    assert migrate(text)[0] == yaml.safe_load(written.text)


def test_every_row_is_of_a_setting_and_its_choices_are_accepted():
    for row in (row for other in OTHERS.values() for row in other.rows):
        assert row.ours is None or row.ours in Settings.model_fields
        if row.ours is not None and isinstance(row.reading, Mapping):
            for value in row.reading.values():
                Settings(**{row.ours: value})


def test_the_flags_tell_which_of_two_programs_with_one_name_it_is(migrate):
    assert migrate("vllm-router --worker-urls http://a:1")[0]["port"] == 30000
    assert migrate("vllm-router --static-backends http://a:1")[0]["port"] == 8001
    assert migrate("--worker-urls http://a:1", "--from", "smg")[0].get("host") is None


def test_a_value_that_no_setting_accepts_is_left_out_and_named(migrate):
    written, lost, status = migrate(
        "smg --worker-urls grpc://a:1 http://b:1 --tls-cert-path /no/such.pem --queue-size -1"
    )
    assert set(written) == {"port"}
    assert [line.partition(": ")[0] for line in lost] == [
        "--worker-urls",
        "--tls-cert-path",
        "--queue-size",
    ]
    assert status == 1


def test_no_word_that_may_be_a_secret_is_shown(migrate, capsys):
    migrate("--worker-urls http://a:1 --api-key s3cret --jwt-issuer s3cret", "--from", "smg")
    cli.main(["migrate", "--from", "smg", "--", "--api-key", "s3 cret"])
    out, err = capsys.readouterr()
    assert "s3" not in out + err


def test_a_path_below_which_all_routes_are_becomes_the_prefix(migrate):
    engines, proxy = "upstream a { server a:1; }", "proxy_pass http://a/;"
    for path, prefix in (("/", None), ("/llm/", "/llm"), ("/v1/", None)):
        written, lost, _ = migrate(
            f"{engines} server {{ location {path} {{{proxy}}} }}", lines=False
        )
        assert written.get("path_prefix") == prefix
        assert bool(lost) == (path == "/v1/")
    assert migrate("--static-backends http://a:1 --root-path /vllm")[0]["path_prefix"] == "/vllm"


def test_a_name_cannot_break_the_file_that_is_written(migrate):
    text = 'routing_logic: session\nstatic_backends: http://a:1\n"x\\ny: 1\\0": 2\n'
    written, lost, _ = migrate(text, lines=False)
    assert set(written) == {"port", "decode", "load_balancing_strategy"}
    assert [line.partition(": ")[0] for line in lost] == [r"--x\ny"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a FILE, or give the other router's flags behind --"),
        (("no-such-file",), "cannot read no-such-file"),
        (("x", "--", "--worker-urls", "http://a"), "name a FILE"),
        (("--", "--no-such-flag"), "of no router that is known here"),
        (("--from", "litellm", str(ROOT / "LICENSE")), "holds no keys and values"),
    ],
)
def test_wrong_use_ends_with_2_and_one_line(arguments, said, capsys):
    assert cli.main(["migrate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_its_choices_are_the_routers_of_the_tables(capsys):
    cli.main(["migrate", "--from", "none"])
    assert ", ".join(map(repr, OTHERS)) in capsys.readouterr().err
