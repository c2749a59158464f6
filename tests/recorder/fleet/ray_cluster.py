"""A Ray cluster of fake nodes on this machine, in a process of its own, with a token.

    python ray_cluster.py     # reads commands from its input, one a line, and answers each with a line

``add NAME CPUS`` adds a node, ``kill NAME`` kills its raylet and nothing else, ``remove NAME`` ends all that
Ray runs there. The answer is the pid of the node's raylet, or 0. The end of the input ends the cluster. Nodes
count as dead after 3 s.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.recorder.processes import environment

#: Ray's store of objects, which hold none of our rows; its least.
_OBJECTS_BYTES = 78_643_200


class Cluster:
    """A cluster; its head has no CPUs."""

    raylet: int  # pid of the raylet of the node ``a``

    def __init__(self, directory: Path) -> None:
        self.token = directory / "token"
        self.token.write_text(secrets.token_hex(16))
        self.env = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(self.token))
        with (directory / "cluster.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=self.env,
            )  # fmt: skip
        self.address = self._answer()

    def _answer(self) -> str:
        answer = self._process.stdout.readline().strip()
        assert answer, "the cluster has ended"
        return answer

    def ask(self, *words: str) -> int:
        """Have a command done."""
        self._process.stdin.write(f"{' '.join(words)}\n")
        self._process.stdin.flush()
        return int(self._answer())

    def close(self) -> None:
        """End the cluster."""
        self._process.communicate(timeout=60)


@contextlib.contextmanager
def ray_cluster(directory: Path) -> Iterator[Cluster]:
    """Run a cluster until the block ends."""
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.close()


def main() -> None:
    """Be the process that has the cluster."""
    from ray import cluster_utils

    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    head = {
        "num_cpus": 0,
        "object_store_memory": _OBJECTS_BYTES,
        "include_dashboard": False,
        "_system_config": quick,
    }
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    nodes = {}
    answer = cluster.address
    while True:
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
        what, *words = sys.stdin.readline().split() or ["end"]
        answer = "0"
        if what == "end":
            break
        if what == "add":
            name, cpus = words
            nodes[name] = cluster.add_node(
                num_cpus=int(cpus), object_store_memory=_OBJECTS_BYTES, node_name=name
            )
            answer = str(nodes[name].all_processes["raylet"][0].process.pid)
        elif what == "kill":
            os.kill(nodes[words[0]].all_processes["raylet"][0].process.pid, signal.SIGKILL)
        elif what == "remove" and words[0] in nodes:
            cluster.remove_node(nodes.pop(words[0]), allow_graceful=False)
    cluster.shutdown()


if __name__ == "__main__":
    main()
