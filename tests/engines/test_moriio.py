"""Why MoRIIOConnector's READ mode is not supported: it answers direct requests wrongly. WRITE mode
is in test_connector_matrix.py.

The connector is vLLM's; only the library below it is a stand-in (`standins/mori/io.py`), as there
is no AMD GPU.
"""

from collections.abc import Iterator

import aiohttp
import pytest

from tests.engines import observe
from tests.engines.conftest import Engines, fleet_of
from tests.engines.fleet import MORIIO_SPECS, service
from tests.engines.layout import layout
from tests.engines.traffic import COMPLETIONS, LONG_PROMPTS, ask, body


@pytest.fixture
async def _whole_fleet() -> None:
    """These tests have engines of their own."""


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """A prefill engine, the decode engine that it writes to, and one in READ mode."""
    where = layout()
    yield from fleet_of([service(spec, where) for spec in MORIIO_SPECS])


async def test_a_direct_request_in_read_mode_is_answered_wrongly_and_counts_as_loaded(
    session: aiohttp.ClientSession, engines: Engines
) -> None:
    """Its counter shows it to `check --try`."""
    request = body(COMPLETIONS, LONG_PROMPTS[0])
    right, wrong = [await ask(session, each.url, COMPLETIONS, request) for each in engines.decodes]
    assert wrong.status == right.status == 200
    assert wrong.token_ids != right.token_ids
    assert (await observe.load(session, engines.decodes[1])).transferred == wrong.prompt_tokens - 1
