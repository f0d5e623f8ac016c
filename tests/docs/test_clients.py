"""The table of docs/clients.md has the pinned clients; `make test-clients` tests its claims."""

from tests.clients.clients import CASES, CLIENTS, DOCUMENT
from tests.docs.blocks import tables


def test_the_table_has_each_pinned_client_and_each_case() -> None:
    ((head, *rows),) = tables(DOCUMENT.read_text(encoding="utf-8"))
    assert head == ["client", *CASES]
    assert [cells[0] for cells in rows] == [f"{each.name} {each.version}" for each in CLIENTS]
    assert {cell for cells in rows for cell in cells[1:]} == {"yes", ""}
    for cells in rows:
        assert cells.count("yes") > 4
