"""Envoy as a peer: least request over the decode engines, one worker thread as nginx has one.

Its limits on requests in progress, 1024 by default, are lifted; it logs nothing.
"""

from pathlib import Path
from string import Template
from urllib.parse import urlsplit

from benchmarks.routers.fleet import Fleet
from benchmarks.routers.peers import ENVOY

CONFIGURATION = Template("""\
static_resources:
  listeners:
    - name: clients
      address: {socket_address: {address: 127.0.0.1, port_value: $port}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: clients
                route_config:
                  virtual_hosts:
                    - name: engines
                      domains: ["*"]
                      routes:
                        - match: {prefix: /}
                          route: {cluster: engines, timeout: 0s}
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: engines
      type: STATIC
      lb_policy: LEAST_REQUEST
      circuit_breakers:
        thresholds: [{max_connections: 65536, max_pending_requests: 65536, max_requests: 65536}]
      load_assignment:
        cluster_name: engines
        endpoints:
          - lb_endpoints:
$endpoints
""")  # noqa: E501 - names of types
ENDPOINT = (
    "              - endpoint: {{address: {{socket_address: "
    "{{address: {url.hostname}, port_value: {url.port}}}}}}}"
)


def configuration(fleet: Fleet, port: int) -> str:
    """The text of envoy.yaml."""
    endpoints = "\n".join(ENDPOINT.format(url=urlsplit(url)) for url in fleet.decode)
    return CONFIGURATION.substitute(port=port, endpoints=endpoints)


def command(fleet: Fleet, port: int, place: Path) -> list[str]:
    """Write the configuration to `place` and return the command line."""
    path = place / "envoy.yaml"
    path.write_text(configuration(fleet, port))
    return [
        *(str(ENVOY.executable), "--concurrency", "1", "--log-level", "error"),
        # Else a second Envoy on this machine finds the first one's shared memory.
        *("--use-dynamic-base-id", "--disable-hot-restart"),
        *("-c", str(path)),
    ]
