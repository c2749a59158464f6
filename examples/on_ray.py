"""Run a tape2048 command as tasks of a Ray cluster, one per shard or one per node.

    python on_ray.py --shards 8 -- tape2048 repack /nfs/selfplay --storage tape --out /nfs/on-tape
    python on_ray.py --nodes 4 --cpus 32 -- tape2048 record --out /data/selfplay \
        --to s3://bucket/selfplay --lease auto --config s3://bucket/selfplay/recorder.toml

With --shards, each task gets `--shard I/N`. If a command fails, or its worker or node dies, Ray repeats the
task. RAY_ADDRESS selects the cluster. SIGTERM or Ctrl-C sends SIGTERM to the commands, which then finish.
"""

import argparse
import signal
import subprocess
import time

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote(retry_exceptions=True)
def run(command: list[str]) -> None:
    """Run a command on a worker. Ray shows its output."""
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *command])  # ends with its worker
    try:
        while process.poll() is None:
            time.sleep(0.2)
    except KeyboardInterrupt:  # the task is cancelled
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ray cancels again and again
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        time.sleep(3)  # until Ray repeats the task
        raise RuntimeError(f"exit code {process.returncode}")


def main() -> int:
    """Run the tasks, print how each ends, and return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    count = parser.add_mutually_exclusive_group(required=True)
    count.add_argument("--shards", type=int, metavar="N", help="run N tasks, with --shard 1/N to --shard N/N")
    count.add_argument("--nodes", type=int, metavar="N", help="run the command once on each of N nodes")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of a task (default 1)")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a task (default 0)")
    parser.add_argument("--retries", type=int, default=8, help="repetitions of a failed task (default 8)")
    parser.add_argument("--grace-s", type=float, default=300, help="seconds to finish (default 300)")
    parser.add_argument("command", nargs="+", help="the command, after --")
    args = parser.parse_args()
    number = max(args.shards or 0, args.nodes or 0) or parser.error("expected at least 1 task")
    ray.init()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    how = {"num_cpus": args.cpus, "num_gpus": args.gpus, "max_retries": args.retries}
    if args.nodes:
        needs = {"CPU": args.cpus, "GPU": args.gpus}
        nodes = ray.util.placement_group([needs] * args.nodes, strategy="STRICT_SPREAD")
        how["scheduling_strategy"] = PlacementGroupSchedulingStrategy(nodes)
    tasks = {}
    for shard in (f"{index}/{number}" for index in range(1, number + 1)):
        words = [*args.command, "--shard", shard] if args.shards else args.command
        tasks[run.options(name=shard, **how).remote(words)] = shard
    failed, waiting = 0, list(tasks)
    try:
        while waiting:
            (task,), waiting = ray.wait(waiting)
            try:
                print(tasks[task], ray.get(task) or "ended", flush=True)
            except ray.exceptions.RayError as error:
                failed += 1
                print(tasks[task], "failed:", str(error).strip().splitlines()[-1], flush=True)
    except KeyboardInterrupt:
        for task in waiting:
            ray.cancel(task)
        ray.wait(waiting, num_returns=len(waiting), timeout=args.grace_s)
        failed = len(waiting)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
