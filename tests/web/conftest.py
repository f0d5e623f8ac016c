"""The harness of tests/net, for the router's HTTP interface."""

from tests.net.conftest import certificate, complaints, harness, pytest_asyncio_loop_factories

__all__ = ["certificate", "complaints", "harness", "pytest_asyncio_loop_factories"]
