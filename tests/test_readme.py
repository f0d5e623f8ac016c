"""What the README says is what the code says."""

from pathlib import Path

from router.commands.settings_table import block, table

README = Path(__file__).parents[1] / "README.md"


def test_the_settings_table_is_the_one_that_the_settings_make():
    """If not: python -m router.commands.settings_table --write"""
    assert block(README.read_text(encoding="utf-8")) == table()
