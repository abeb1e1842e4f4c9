"""``arturo watch``: the report while runs train, with and without a real browser."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from arturo_lab import cli
from arturo_lab.report.watch import LiveReport, report_of, server, signature


@pytest.fixture
def served(tmp_path: Path):
    live = LiveReport(tmp_path, lambda root: report_of(root, "arturo watch", None, "adamw"))
    running = server(live, "127.0.0.1", 0)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield tmp_path, f"http://127.0.0.1:{running.server_address[1]}/"
    running.shutdown()
    running.server_close()
    thread.join()


def get(address: str) -> str:
    with urllib.request.urlopen(address) as answer:
        return answer.read().decode()


def test_an_empty_folder_waits(served) -> None:
    root, address = served
    text = get(address)
    assert "0 runs, 0 tasks" in text and "holds no run folders" in text
    assert get(address + "signature") == signature(root) and f'data-signature="{signature(root)}"' in text


def test_nothing_else_is_served(served) -> None:
    root, address = served
    (root / "secret").write_text("x")
    for path in ("secret", "../etc/passwd", "report.html"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(address + path)
    assert [path.name for path in root.iterdir()] == ["secret"]  # and nothing is written


def test_a_new_epoch_is_another_signature(served, make_run) -> None:
    root, address = served
    folder = make_run(root, "sgd", 0, status="unfinished", done=2)
    before, text = get(address + "signature"), get(address)
    assert "SGD, seed 0: unfinished, 2 of 8 epochs" in text and get(address + "signature") == before
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "test_accuracy": 0.5}\n')
    assert get(address + "signature") != before and "unfinished, 3 of 8 epochs" in get(address)


def test_the_page_follows_and_keeps_its_view(browser, served, make_run) -> None:
    root, address = served
    make_run(root, "sgd", 0, final=0.8)
    page = browser.open_address(address)
    assert "1 run, 1 task" in page.js("document.querySelector('.masthead').innerText") and page.errors == []
    page.click("[data-scale='log']")
    page.click("#theme")
    page.js("document.querySelector('#task-0 details').open = true")
    make_run(root, "adam", 0, final=0.9)
    page.wait_through_reload("document.querySelector('.masthead').innerText.includes('2 runs, 1 task')")
    assert page.js("document.querySelector('[data-scale=log]').ariaPressed") == "true"
    assert "log scale" in page.js("document.querySelector('figure.curves svg').textContent")
    assert page.js("document.querySelector('#task-0 details').open")
    assert page.js("document.documentElement.dataset.theme") == "dark"
    assert page.errors == [] and all(request.startswith(address) for request in page.requests)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["watch", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"arturo: DIR: {tmp_path / 'file'} is not a folder\n"
    assert cli.main(["watch", str(tmp_path), "--host", "256.0.0.1"]) == 2
    assert capsys.readouterr().err.startswith("arturo: port: cannot listen on 256.0.0.1:8321")
