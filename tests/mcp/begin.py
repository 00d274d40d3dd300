"""Begins a server in a process that is forked, as its own: `begin.py ADDRESS WORDS...`.

It says the server's number on stderr, passes on what would end it, and ends with it.
"""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
    line.connect(f"\0{sys.argv[1]}")
    request = json.dumps([sys.argv[2:], dict(os.environ)]).encode()
    socket.send_fds(line, [request], [0, 1, 2])
    server = int(line.recv(100))
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: os.kill(server, number))
    os.write(2, b"server %d\n" % server)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    line.recv(1)
