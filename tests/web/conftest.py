"""The house of tests/net, for what the router says at its front door."""

from tests.net.conftest import certificate, complaints, harness, pytest_asyncio_loop_factories

__all__ = ["certificate", "complaints", "harness", "pytest_asyncio_loop_factories"]
