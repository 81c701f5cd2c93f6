"""A client of the relay service whose child, forked by C, also holds its connection. It prints the
child's process."""

import ctypes
import socket
import sys
import time

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    connection.sendall(bytes.fromhex(sys.argv[2]))
    connection.recv(1)  # of a grant
    child = ctypes.CDLL(None).fork()
    if child:
        print(child, flush=True)
    time.sleep(60)
