"""The command line of `python -m benchmarks.overload`."""

import pytest

from benchmarks.overload.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--help"], 0), (["other"], 2), (["bodies", "many"], 2), (["goodput", "5"], 2)],
)
def test_help_and_bad_usage_are_told(
    arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
    assert "python -m benchmarks.overload" in "".join(capsys.readouterr())
