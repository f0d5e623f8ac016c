"""nginx as a peer: least_conn over the decode engines, nothing buffered.

One worker by default: it counts connections exactly, and uses one core like our router. Several
share counts (`zone`), and each has its own listening socket (`reuseport`).
"""

import getpass
import grp
import os
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.routers.fleet import Fleet
from benchmarks.routers.peers import NGINX

CONFIGURATION = """\
{user}daemon off;
worker_processes {workers};
pid {place}/nginx.pid;
error_log stderr error;
events {{ worker_connections 32768; }}
http {{
  access_log off;
  client_body_temp_path {place}/body;
  proxy_temp_path {place}/proxy;
  fastcgi_temp_path {place}/fastcgi;
  uwsgi_temp_path {place}/uwsgi;
  scgi_temp_path {place}/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  upstream engines {{
    least_conn;
{zone}{servers}
    keepalive 512;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096{reuseport};
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def configuration(fleet: Fleet, port: int, place: Path, workers: int = 1) -> str:
    """The text of nginx.conf."""
    servers = "\n".join(f"    server {urlsplit(url).netloc};" for url in fleet.decode)
    return CONFIGURATION.format(
        user=_user(),
        place=place,
        servers=servers,
        port=port,
        workers=workers,
        zone="    zone engines 256k;\n" if workers > 1 else "",
        reuseport=" reuseport" if workers > 1 else "",
    )


def _user() -> str:
    """With root as its starter, its worker would run as the user `nobody`, which cannot read our
    directory."""
    if os.geteuid() != 0:
        return ""
    return f"user {getpass.getuser()} {grp.getgrgid(os.getegid()).gr_name};\n"


def command(fleet: Fleet, port: int, place: Path, workers: int = 1) -> list[str]:
    """Write the configuration to `place` and return the command line."""
    path = place / "nginx.conf"
    path.write_text(configuration(fleet, port, place, workers))
    return [str(NGINX.executable), "-p", str(place), "-e", "stderr", "-c", str(path)]
