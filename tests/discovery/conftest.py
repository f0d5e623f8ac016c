"""The event loop and the harness of tests/net."""

from tests.net.conftest import certificate, complaints, harness, pytest_asyncio_loop_factories

__all__ = ["certificate", "complaints", "harness", "pytest_asyncio_loop_factories"]
