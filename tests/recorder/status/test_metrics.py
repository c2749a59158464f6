"""What Prometheus sees: names by its conventions, values of the snapshot, over HTTP and in a file."""

import contextlib
import importlib.util
import json
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.sdk.store_servers import free_port

from tape2048.errors import ConfigError, MissingPackageError, RecorderError
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.status import prometheus as module, server
from tape2048_recorder.status.prometheus import Metrics, families
from tape2048_recorder.status.status_report import Counts, Snapshot

from ..checks import descriptors
from ..processes import wait_until
from ..statuses import snapshot_now, status_now

MONITORING = Path(__file__).resolve().parents[3] / "tools/tape2048_tools/machine/monitoring"

#: Every metric has a sample in this one.
FULL = snapshot_now(
    instance="main",
    status=status_now(
        by_highest_tile={2048: 5, 4096: 7},
        disk_full_s=3600.0,
        counts=Counts(
            blocks=3, pauses={"disk_full": 2}, publish_s=1.5, publish_last_s=0.5, worker_restarts=4
        ),
    ),
)


def no_warning(text: str) -> None:
    pytest.fail(text)


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Samples by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def names(snapshot: Snapshot) -> set[str]:
    return {sample.name for family in families(snapshot) for sample in family.samples}


def written(snapshot: Snapshot, path: Path) -> str:
    metrics = Metrics(RecorderConfig(metrics_textfile=str(path)), no_warning)
    metrics.show(snapshot)
    metrics.close()
    return path.read_text()


def test_names_keep_the_conventions() -> None:
    units = ("seconds", "bytes", "ratio")
    for family in families(FULL):
        assert re.fullmatch(r"tape2048_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample.name
            assert sample.labels["recorder"] == "main"
        word = family.name.rpartition("_")[2]
        assert word not in {"s", "ms", "mb", "second", "byte"}, f"units are whole words: {units}"


def test_the_textfile_holds_the_snapshot(tmp_path: Path) -> None:
    found = values(written(FULL, tmp_path / "tape2048.prom"))
    here = ("recorder", "main")
    assert found["tape2048_steps_total", (here,)] == 15_000_000
    assert found["tape2048_recorded_games_total", (("highest_tile", "4096"), here)] == 7
    assert found["tape2048_pauses_total", (("reason", "disk_full"), here)] == 2
    assert found["tape2048_state", (here, ("state", "recording"))] == 1
    assert found["tape2048_state", (here, ("state", "stopped"))] == 0
    assert found["tape2048_disk_full_seconds", (here,)] == 3600
    assert found["tape2048_worker_restarts_total", (here,)] == 4
    (facts,) = [dict(labels) for name, labels in found if name == "tape2048_build_info"]
    assert facts["player"] == "ntuple:look=16"
    assert {name for name, _ in found} == names(FULL)
    assert [path.name for path in tmp_path.iterdir()] == ["tape2048.prom"]


def test_the_textfile_is_written_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.prom"
    metrics = Metrics(RecorderConfig(metrics_textfile=str(path)), no_warning)
    metrics.show(FULL)
    metrics.show(msgspec.structs.replace(FULL, status=status_now(steps=1)))
    assert 'tape2048_steps_total{recorder="main"} 1.5e+07' in path.read_text()
    metrics.show(msgspec.structs.replace(FULL, status=status_now(steps=2, state="stopped")))
    assert 'tape2048_steps_total{recorder="main"} 2.0' in path.read_text()
    metrics.close()


def test_an_unwritable_textfile_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEXTFILE_INTERVAL_S", 0.0)
    warnings: list[str] = []
    metrics = Metrics(RecorderConfig(metrics_textfile=str(tmp_path / "no" / "x.prom")), warnings.append)
    for _ in range(3):
        metrics.show(FULL)
    assert len(warnings) == 1
    assert "metrics_textfile cannot be written" in warnings[0]
    (tmp_path / "no").mkdir()
    metrics.show(FULL)
    assert (tmp_path / "no" / "x.prom").exists()
    metrics.close()


def test_http_serves_the_last_snapshot_and_ends() -> None:
    port = free_port()
    config = RecorderConfig(metrics_listen=f"127.0.0.1:{port}")
    metrics = Metrics(config, no_warning)
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert "tape2048" not in answer.read().decode()  # nothing is known yet
    metrics.show(msgspec.structs.replace(FULL, status=status_now(steps=1)))
    metrics.show(FULL)
    with urllib.request.urlopen(url, timeout=60) as answer:
        found = values(answer.read().decode())
    assert found["tape2048_steps_total", (("recorder", "main"),)] == 15_000_000
    said = r"metrics_listen: found '127.0.0.1:\d+', on which the recorder cannot listen"
    with pytest.raises(RecorderError, match=said):
        Metrics(config, no_warning)  # no ConfigError, by which a service stays down
    metrics.close()
    Metrics(config, no_warning).close()  # the port is free again


def test_a_signal_while_a_connection_is_answered_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler of a signal can raise where a thread is started, after its connection has ended."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        thread.join()
        raise SystemExit(143)

    found = server.BoundedServer("127.0.0.1", 0, None)
    with found, socket.create_connection(found.server_address) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(SystemExit):
            found.handle_request()


@pytest.mark.parametrize(
    ("address", "kind"), [("203.0.113.1:9105", RecorderError), ("127.0.0.1:99999", ConfigError)]
)
def test_an_address_that_is_not_ours_is_refused(address: str, kind: type[Exception]) -> None:
    """At boot, an address may be ours a little later."""
    with pytest.raises(kind, match="on which the recorder cannot listen"):
        Metrics(RecorderConfig(metrics_listen=address), no_warning)


def test_without_the_package_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError) as caught:
        Metrics(RecorderConfig(metrics_textfile="x.prom"), no_warning)
    assert "tape2048[metrics]" in (caught.value.hint or "")
    Metrics(RecorderConfig(), no_warning).show(FULL)  # not wanted, not missed


def mentioned(text: str) -> set[str]:
    return set(re.findall(r"\btape2048_[a-z_]+\b", text))


def expressions(found: object) -> list[str]:
    """Every PromQL expression of a document, wherever it stands."""
    if isinstance(found, dict):
        own = [value for key, value in found.items() if key == "expr"]
        return own + [text for value in found.values() for text in expressions(value)]
    return [text for value in found for text in expressions(value)] if isinstance(found, list) else []


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    asked = expressions(dashboard)
    assert len(asked) >= len(dashboard["panels"]) >= 8
    assert mentioned(" ".join(asked)) <= names(FULL)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_rules_ask_for_metrics_that_exist() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) >= 6
    assert mentioned(" ".join(expressions(rules))) <= names(FULL)
    for alert in alerts:
        assert alert["expr"].count("(") == alert["expr"].count(")")
        assert set(alert) >= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert set(alert["annotations"]) == {"summary", "description"}
    assert len({alert["alert"] for alert in alerts}) == len(alerts)


class TestVisitors:
    """Connections that send half a request and wait."""

    @pytest.fixture
    def address(self) -> Iterator[tuple[str, int]]:
        address = ("127.0.0.1", free_port())
        metrics = Metrics(RecorderConfig(metrics_listen=f"{address[0]}:{address[1]}"), no_warning)
        metrics.show(FULL)
        yield address
        metrics.close()

    def visit(self, address: tuple[str, int]) -> socket.socket:
        visitor = socket.create_connection(address, timeout=30)
        visitor.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        return visitor

    def scrape(self, address: tuple[str, int]) -> str:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    def test_take_sixteen_threads_and_delay_no_scrape(
        self, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another connection ends the oldest one that has not sent its request."""
        monkeypatch.setattr(server, "REQUEST_S", 60.0)
        before, threads = descriptors(), threading.active_count()
        with contextlib.ExitStack() as stack:
            visitors = [stack.enter_context(self.visit(address)) for _ in range(60)]
            wait_until(lambda: threading.active_count() == threads + server.CONNECTIONS_MAX)
            assert descriptors() <= before + len(visitors) + server.CONNECTIONS_MAX + 1
            began = time.monotonic()
            assert "tape2048_steps_total" in self.scrape(address)
            assert time.monotonic() - began < 20
            assert visitors[0].recv(1) == b""

    def test_are_waited_for_a_limited_time(
        self, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(server, "REQUEST_S", 0.05)
        # Who was so slow that his half of a request came after the end hears of that.
        with self.visit(address) as visitor, contextlib.suppress(ConnectionResetError):
            assert visitor.recv(1) == b""
        assert capfd.readouterr().err == ""


def test_a_link_in_place_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".x.prom.next").symlink_to("precious")
    assert "tape2048_steps_total" in written(FULL, tmp_path / "x.prom")
    assert (tmp_path / "precious").read_text() == "mine"
