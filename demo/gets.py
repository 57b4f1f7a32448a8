#!/usr/bin/python3
"""Prints how many keys a memcached server on this host was asked for: demo/gets.py PORT."""

import socket
import sys

with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5) as server:
    server.sendall(b"stats\r\nquit\r\n")
    answer = b"".join(iter(lambda: server.recv(4096), b"")).decode()
print(next(line.split()[2] for line in answer.splitlines() if line.startswith("STAT cmd_get ")))
