"""Queries DNS servers with dnspython.

Unlike the system's resolver it returns the TTL of an answer, supports SRV records and needs no
thread.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from router.core.membership.engine_names import DnsName
from router.discovery.dns_answers import Answer, Host

__all__ = ["LookupFailed", "Question", "Resolver", "SystemResolver"]

LOOKUP_TIMEOUT_SECONDS = 5.0
"""Time-out in seconds for one question, with all servers, search domains and retries."""

SERVERS = "the DNS servers in /etc/resolv.conf"

Question = Literal["A", "AAAA", "SRV"]


class LookupFailed(Exception):
    """There is no answer. `kind` is from a fixed set, and each kind is logged once."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Resolver(Protocol):
    """Queries DNS servers."""

    async def ask(self, name: DnsName, question: Question) -> Answer:
        """The records of a name. Addresses get the name's port, SRV records have their own. Raises
        LookupFailed."""


class SystemResolver:
    """Queries the servers in /etc/resolv.conf, with its search domains. `resolver`: a dnspython
    resolver to use instead.

    Raises ImportError, whose message names the extra to install, and ValueError if that file names
    no server.
    """

    def __init__(self, resolver: Any = None) -> None:
        try:
            import dns.asyncresolver  # noqa: PLC0415 - an extra
            import dns.exception  # noqa: PLC0415
        except ImportError as error:
            raise ImportError(
                f"discovery by DNS needs {error.name}: pip install 'pd-router[dns]'"
            ) from None
        self._dns = dns
        try:
            self._resolver = resolver or dns.asyncresolver.Resolver()
        except dns.exception.DNSException as error:
            raise ValueError(f"discovery by DNS: {error}; check /etc/resolv.conf") from None

    async def ask(self, name: DnsName, question: Question) -> Answer:
        """See `Resolver`."""
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_SECONDS):
                answer = await self._resolver.resolve(
                    name.host,
                    question,
                    raise_on_no_answer=False,
                    search=True,
                    lifetime=LOOKUP_TIMEOUT_SECONDS,
                )
        except self._dns.resolver.NXDOMAIN:
            raise LookupFailed("nxdomain", f"there is no name {name.host}; check it") from None
        except (TimeoutError, self._dns.exception.Timeout):
            text = f"no answer for {name.host} in {LOOKUP_TIMEOUT_SECONDS:g} s; check {SERVERS}"
            raise LookupFailed("unanswered", text) from None
        except (self._dns.exception.DNSException, OSError) as error:
            text = f"no answer for {name.host} ({error}); check {SERVERS}"
            raise LookupFailed("unanswered", text) from None
        if answer.rrset is None:
            return Answer((), 0.0)
        return Answer(tuple(_hosts(answer.rrset, name.port)), float(answer.rrset.ttl))


def _hosts(records: Any, port: int | None) -> Iterator[Host]:
    for record in records:
        if port is not None:
            yield Host(str(record.address), port)
        elif (host := record.target.to_text(omit_final_dot=True).lower()) not in ("", "."):
            yield Host(host, int(record.port))  # a target "." means that there is no such service
