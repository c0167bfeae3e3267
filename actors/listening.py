"""Who listens on a port of this host: the processes of a server that somebody else started."""

from __future__ import annotations

import psutil


def listening_pids(port: int) -> list[int]:
    """The processes of this network namespace that listen on a TCP port.

    Empty where nobody does, or only such whose files this user may not look at: in a container, or another user's.
    """
    try:
        sockets = psutil.net_connections("tcp")
    except psutil.Error:
        return []
    return sorted(
        {
            one.pid
            for one in sockets
            if one.pid and one.status == psutil.CONN_LISTEN and one.laddr[1:2] == (port,)
        }
    )
