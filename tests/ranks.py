"""Several processes on this machine, as torchrun would start them, for the tests of what they do together."""

import multiprocessing
import os
import queue
import socket
import time
import traceback

TIMEOUT_SECONDS = 300  # a hang is a failure; far above what a busy machine needs


def free_ports(number):
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def environment(rank, port, size=2):
    """What torchrun sets."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in places.items()}


def run(function, *arguments, size=2, num_worlds=1):
    """Call `function(worlds, *arguments)` in `size` processes; what each returned, in the order of ranks.

    `worlds` yields as often as the processes are to meet: each meeting has a port of its own.
    """
    context = multiprocessing.get_context("spawn")
    ports, answers = free_ports(num_worlds), context.Queue()
    processes = [
        context.Process(target=_child, args=(function, arguments, rank, size, ports, answers)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        return _results(processes, answers)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _results(processes, answers):
    results, deadline = {}, time.monotonic() + TIMEOUT_SECONDS
    while len(results) < len(processes):
        assert time.monotonic() < deadline, f"only ranks {sorted(results)} came to an end"
        try:
            rank, result, error = answers.get(timeout=1)
        except queue.Empty:
            ended = [rank for rank, process in enumerate(processes) if rank not in results and process.exitcode]
            assert not ended, f"ranks {ended} ended without an answer"
            continue
        assert error is None, f"rank {rank}: {error}"
        results[rank] = result
    return [results[rank] for rank in sorted(results)]


def _child(function, arguments, rank, size, ports, answers):
    def worlds():
        for port in ports:
            os.environ.update(environment(rank, port, size))
            yield rank

    try:
        answers.put((rank, function(worlds(), *arguments), None))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
