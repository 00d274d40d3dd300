"""Begins a program in a process that is forked, as its own: `begin.py ADDRESS WORDS...`.

It prints the number of the new process on stderr, passes SIGTERM and SIGINT on to it, and ends when
the process ends, with the same status.
"""

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
    line.connect(f"\0{sys.argv[1]}")
    request = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109
    socket.send_fds(line, [request], [0, 1, 2])
    server = int(line.recv(100))
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, _: os.kill(server, number))
    os.write(2, b"server %d\n" % server)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    code = line.recv(1)
    line.recv(1)
sys.exit(code[0] if code else 1)
