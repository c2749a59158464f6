"""Recorders that ship their sessions to a store: each session once, whatever fails, and nothing else."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.recorder.processes import Recorders, wait_until
from tests.sdk.store_servers import environment_of, fetch_session, store_url

from tape2048.errors import ConfigError, ShippingError, StoreError
from tape2048.session.layout import NUMBER_BITS
from tape2048.session.session import Session, sessions
from tape2048.stores.objects import Store, open_store
from tape2048.stores.remote import RemoteName, list_sessions
from tape2048_recorder import shipping
from tape2048_recorder.record_options import RecorderConfig, load_config
from tape2048_recorder.recorder import run
from tape2048_recorder.shipping import read_settings, take_lease
from tape2048_recorder.status.status_report import read_snapshot

from .checks import Listener

PLAYED: dict[str, Any] = {
    "player": "random",
    "seed": 77,
    "storage": "tape",
    "rotate_steps": 20_000,
    "workers": 1,
    "min_free_mb": 0,
}
TOML = 'player = "random"\nseed = 77\nstorage = "tape"\nrotate_steps = 20_000\n'


@pytest.fixture(autouse=True)
def _one_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_LAST_TRIES", 1)


def record(out: Path, **settings: Any) -> Listener:
    """Record in this process."""
    listener = Listener()
    sha256 = settings.pop("settings_sha256", None)
    config = RecorderConfig(**{**PLAYED, "out_dir": str(out), "max_games": 400, **settings})
    run(config, listener, settings_sha256=sha256)
    return listener


def test_an_unreadable_directory_does_not_look_empty(tmp_path: Path) -> None:
    config = RecorderConfig(**PLAYED, to=str(tmp_path / "store"))
    spool = tmp_path / "spool"
    (spool / "20260101T000000Z_model=random").mkdir(parents=True)  # it cannot be shipped
    shipper = shipping.Shipper(config, spool, Listener().event)
    shipper.finish(lambda: False, by_signal=False)
    assert shipper.status().sessions_waiting == 1
    spool.rename(tmp_path / "away")
    status = shipper.status()
    assert status.sessions_waiting == 1
    assert status.error


def ids_in(store: Store, into: Path) -> list[int]:
    """The ids of all games in the store, after each session was fetched and verified."""
    ids: list[int] = []
    for name in list_sessions(store):
        found = Session.open(fetch_session(store, name, into)).runs["run_id"].tolist()
        parsed = RemoteName.parse(name)
        assert parsed is not None
        assert {run >> NUMBER_BITS for run in found} == {int(parsed.label, 16)}
        ids += found
    return sorted(ids)


@pytest.mark.parametrize("kind", ["directory", "moto"])
def test_every_session_arrives_once_and_is_removed_here(kind: str, tmp_path: Path) -> None:
    with store_url(kind, tmp_path / "store") as url:
        listener = record(tmp_path / "out", to=url, lease=3)
        assert ids_in(open_store(url), tmp_path / "got") == [(3 << NUMBER_BITS) + i for i in range(400)]
    assert sessions(tmp_path / "out") == []
    assert len([text for text in listener.messages("info") if text.startswith("shipped ")]) >= 2
    last = read_snapshot(tmp_path / "out", "default").status
    assert last.shipping is not None
    assert (last.shipping.sessions_waiting, last.shipping.error) == (0, None)


def test_a_session_that_was_shipped_and_not_removed_is_not_shipped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt  # ends the thread, as a kill would

    with monkeypatch.context() as patch:
        patch.setattr(shipping, "remove_sessions", dies)
        patch.setattr(threading, "excepthook", lambda _: None)
        record(tmp_path / "out", to=store.url)
    waiting = sessions(tmp_path / "out")
    assert len(waiting) >= 2
    assert len(list_sessions(store)) == 1
    record(tmp_path / "out", to=store.url, max_games=1)
    assert sessions(tmp_path / "out") == []
    assert ids_in(store, tmp_path / "got") == [*range(401)]


def test_a_lease_has_one_holder_and_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    url = str(tmp_path / "store")
    drawn = iter([4, 4, 4, 8, 9])
    monkeypatch.setattr(shipping.secrets, "randbelow", lambda _: next(drawn))
    assert take_lease(url, tmp_path / "a", "default") == 5
    assert take_lease(url, tmp_path / "a", "default") == 5  # from the file
    assert take_lease(url, tmp_path / "b", "default") == 9  # 5 is taken
    names = open_store(url).names

    def seen_late(self: Store, directory: str) -> dict[str, int]:
        found = names(directory)
        return {**found, "another.json": 1} if directory.endswith("00000a") else found

    monkeypatch.setattr(type(open_store(url)), "names", seen_late)
    drawn = iter([9, 19])
    assert take_lease(url, tmp_path / "c", "default") == 20  # another claim of 10 was seen
    assert take_lease(f"{url}/", tmp_path / "a", "default") == 5  # the same store
    with pytest.raises(ShippingError, match="found a lease of "):
        take_lease(str(tmp_path / "elsewhere"), tmp_path / "a", "default")
    for damaged in ("<html>", ""):
        (tmp_path / "a/.recorder/default.lease.json").write_text(damaged)
        with pytest.raises(ShippingError, match="not a lease"):
            take_lease(url, tmp_path / "a", "default")


def test_lease_auto_plays_the_games_of_the_lease(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))
    for out in ("a", "b"):
        record(tmp_path / out, to=store.url, lease=None, max_games=5)
    ids = ids_in(store, tmp_path / "got")
    assert len(ids) == len(set(ids)) == 10
    assert len({run >> NUMBER_BITS for run in ids}) == 2
    with pytest.raises(ConfigError, match="auto without a store"):
        load_config({"lease": "auto", "seed": "1"}, {})
    with pytest.raises(ConfigError, match="auto without a seed"):
        load_config({"lease": "auto", "to": "s3://b/x"}, {})
    with pytest.raises(ConfigError, match="a store cannot hold columns"):
        load_config({"columns": "loss", "to": "s3://b/x"}, {})


def test_a_session_that_does_not_fit_stays_and_the_others_go(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store, out = open_store(str(tmp_path / "store")), tmp_path / "out"
    record(out, lease=4, max_games=3)
    (other,) = sessions(out)
    listener = record(out, to=store.url, lease=3, max_games=3, drain_timeout_s=0)
    assert sessions(out) == [other]
    assert ids_in(store, tmp_path / "got") == [(3 << NUMBER_BITS) + i for i in range(3)]
    text = "games of the leases [4]; expected only 3, this recorder's lease. The session is not shipped"
    assert any(text in message for message in listener.messages("warning"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"settings_sha256": "0" * 64}, "settings_sha256 = 000000"),
        ({"settings_sha256": None}, "settings_sha256 = None"),
        ({"player": "greedy"}, "the group's player"),
    ],
)
def test_a_group_has_one_file_of_settings_and_one_player(
    settings: dict[str, Any], text: str, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    store, out = open_store(str(tmp_path / "store")), tmp_path / "out"
    store.put("recorder.toml", TOML.encode())
    loaded = load_config({"to": store.url}, {}, tmp_path / "store/recorder.toml")
    group = {"to": store.url, "settings_sha256": loaded.sha256, "max_games": 2}
    record(tmp_path / "first", **group)
    (name,) = list_sessions(store)
    facts = Session.open(fetch_session(store, name, tmp_path / "got")).meta
    assert facts["settings_sha256"] == loaded.sha256
    assert "to" not in facts["config"]
    listener = record(out, **{**group, **settings})
    assert any(text in message for message in listener.messages("warning")), listener.events
    assert list_sessions(store) == [name]
    assert len(sessions(out)) == 1
    record(tmp_path / "first", **group)  # the rejected recorder does not stop the others
    assert len(list_sessions(store)) == 2


def test_an_unforeseen_error_is_reported_and_shipping_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    errors, put_session = [RuntimeError("unforeseen")], shipping.put_session

    def fail_once(*args: Any) -> str:
        if errors:
            raise errors.pop()
        return put_session(*args)

    monkeypatch.setattr(shipping, "put_session", fail_once)
    listener = record(tmp_path / "out", to=str(tmp_path / "store"), max_games=2)
    assert "not shipped yet: RuntimeError: unforeseen" in listener.messages("warning")
    assert sessions(tmp_path / "out") == []


def test_a_session_that_is_published_while_others_are_shipped_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir()
    asked, finish, put_session = threading.Event(), shipping.Shipper.finish, shipping.put_session

    def finish_and_say(*args: Any, **how: Any) -> None:
        threading.Timer(0.2, asked.set).start()
        finish(*args, **how)

    def put_when_asked_to_end(*args: Any) -> str:
        assert asked.wait(60)
        return put_session(*args)

    monkeypatch.setattr(shipping.Shipper, "finish", finish_and_say)
    monkeypatch.setattr(shipping, "put_session", put_when_asked_to_end)
    record(tmp_path / "out", to=str(tmp_path / "store"))
    assert len(list_sessions(open_store(str(tmp_path / "store")))) == 3
    assert sessions(tmp_path / "out") == []


def test_sessions_of_another_seed_stay(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store, out = open_store(str(tmp_path / "store")), tmp_path / "out"
    store.put("recorder.toml", TOML.encode())
    sha256 = load_config({"to": store.url}, {}, tmp_path / "store/recorder.toml").sha256
    store.put("recorder.toml", TOML.replace("77", "78").encode())
    record(out, to=store.url, max_games=2, settings_sha256=sha256)  # the group's file was changed meanwhile
    store.put("recorder.toml", TOML.encode())
    listener = record(out, to=store.url, max_games=2, seed=78, settings_sha256=sha256)
    assert any("the seed 77; expected 78" in text for text in listener.messages("warning")), listener.events
    assert len(sessions(out)) == 1


def test_an_unreachable_store_pauses_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions wait up to ``spool_max_mb``, the status says why, and all arrive once the store is back."""
    (tmp_path / "away").write_text("")
    url, out = str(tmp_path / "away/store"), tmp_path / "out"
    monkeypatch.setattr(shipping, "RETRY_S_MAX", 2.0)
    with Recorders(out) as recorders:
        started = recorders.start(**PLAYED, to=url, spool_max_mb=1, rotate_s=0.5)

        def paused() -> bool:
            with contextlib.suppress(Exception):
                status = read_snapshot(out, "default").status
                return status.state == "paused" and "the spool is full" in (status.why or "")
            return False

        wait_until(paused)
        status = read_snapshot(out, "default").status.shipping
        assert status is not None
        assert status.sessions_waiting >= 1
        assert "away" in (status.error or "")
        (tmp_path / "away").unlink()
        (tmp_path / "away/store").mkdir(parents=True)
        wait_until(lambda: started.count("shipping works again"))
        started.stop()
    ids = ids_in(open_store(url), tmp_path / "got")
    assert len(ids) == len(set(ids)) > 0


class _Portal(BaseHTTPRequestHandler):
    """Answers every request as the login page of a network does."""

    def do_GET(self) -> None:
        body = b"<!DOCTYPE html><html><body>Please sign in</body></html>"
        self.send_response(200)
        for name, value in {"ETag": '"1"', "Last-Modified": "Sat, 28 Nov 2026 22:00:00 GMT"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("obstore")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Portal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in environment_of("s3", f"http://127.0.0.1:{server.server_port}").items():
            monkeypatch.setenv(name, value)
        yield "s3://bucket/games"
        server.shutdown()


def test_a_login_page_is_no_answer_of_a_store(portal: str, tmp_path: Path) -> None:
    """It is no listing, no lease, no settings and no order. Nothing is removed, and signals end with 0."""
    store = open_store(portal)
    with pytest.raises(StoreError, match="DOCTYPE html"):
        store.names("sessions")
    with pytest.raises(StoreError, match="DOCTYPE html"):
        take_lease(portal, tmp_path / "out", "default")
    with pytest.raises(StoreError, match="found HTML; expected TOML"):
        read_settings(f"{portal}/recorder.toml")
    with Recorders(tmp_path / "out") as recorders:
        started = recorders.start(**PLAYED, to=portal, rotate_s=0.5)
        started.wait_for_event("published")
        assert "found HTML" in started.wait_for_event("not shipped yet: ")
        started.signal(signal.SIGTERM)
        started.wait_for_status(lambda status: status["why"] == "shipping")
        since = time.monotonic()
        started.stop()  # the second signal ends the attempts
        assert time.monotonic() - since < shipping.LAST_S / 2
        assert started.count(
            "not shipped to s3://bucket/games; the next start with this directory ships them"
        )
    assert sessions(tmp_path / "out")
    document = json.dumps(Session.open(sessions(tmp_path / "out")[0]).meta["config"])
    assert "bucket" not in document
