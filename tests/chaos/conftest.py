"""The harness of tests/net, and the event loop that the router runs on."""

from tests.net.conftest import certificate, complaints, harness, pytest_asyncio_loop_factories

__all__ = ["certificate", "complaints", "harness", "pytest_asyncio_loop_factories"]
