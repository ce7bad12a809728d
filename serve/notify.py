"""What whoever started us is told of our state: sd_notify's protocol, a datagram to $NOTIFY_SOCKET."""

import os
import socket


def notify(*lines):
    """Nothing where nobody asked. That nobody listens is no reason to stop."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.connect(address)
            s.send("\n".join(lines).encode())
    except OSError:
        pass
