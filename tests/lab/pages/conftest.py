"""A real browser for the pages: Chromium without a window, over its debugging pipe.

No package is needed for that. The protocol is https://chromedevtools.github.io/devtools-protocol: JSON messages, each with a
zero byte behind.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120  # seconds until a silent browser counts as hung; a busy machine starts it slowly

# Chromium reads the pipe at descriptor 3 and writes at 4; the way there leads over two that are neither.
LAUNCH = """
import os, sys
read, write = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
while min(read, write) <= 4:
    read, write = os.dup(read), os.dup(write)
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    def __init__(self, profile: Path) -> None:
        theirs_in, self.to = os.pipe()
        self.out, theirs_out = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        flags += ["--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), CHROMIUM, *flags],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.buffer, self.count, self.pages = b"", 0, {}

    def send(self, method: str, session: str | None = None, **params: object) -> dict:
        """Call a method and wait for its answer; events that come before it go to the pages they belong to."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            if answer.get("sessionId") in self.pages:
                self.pages[answer["sessionId"]].hear(answer["method"], answer["params"])

    def receive(self) -> dict:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.out], [], [], PATIENCE)
            chunk = os.read(self.out, 1 << 20) if ready else b""
            if not chunk:
                raise RuntimeError(f"{CHROMIUM} {'closed its pipe' if ready else f'was silent for {PATIENCE} s'}")
            self.buffer += chunk
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path, *, dark: bool = False, width: int = 1280, height: int = 900) -> Page:
        """Load a file in a fresh tab and wait until its scripts have run."""
        return self.open_address(path.resolve().as_uri(), dark=dark, width=width, height=height)

    def open_address(self, address: str, *, dark: bool = False, width: int = 1280, height: int = 900) -> Page:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        page.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.media(dark)
        page.send("Page.navigate", url=address)
        while not page.loaded:
            message = self.receive()
            if message.get("sessionId") == session and "method" in message:
                page.hear(message["method"], message["params"])
        return page

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self.send("Browser.close")
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.out)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.loaded = False

    def hear(self, method: str, params: dict) -> None:
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def send(self, method: str, **params: object) -> dict:
        return self.browser.send(method, self.session, **params)

    def js(self, expression: str) -> object:
        """The value of an expression in the page; promises are waited for."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until a condition holds. The guard is far beyond what a busy machine needs."""
        script = f"""new Promise((done, fail) => {{ let left = 6000;
            const look = () => ({condition}) ? done() : left-- > 0 ? setTimeout(look, 10) : fail(new Error("in vain"));
            look(); }})"""
        self.js(script)

    def wait_through_reload(self, condition: str) -> None:
        """The same for a page that may load itself anew meanwhile, which ends what is being evaluated."""
        for _ in range(600):
            script = f"document.readyState === 'complete' && ({condition})"
            answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
            if answer["result"].get("value") is True:
                return
            time.sleep(0.1)
        raise AssertionError(f"in vain: {condition}")

    def media(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def centre(self, selector: str) -> tuple[float, float]:
        script = f"""(() => {{ const node = document.querySelector({json.dumps(selector)});
            node.scrollIntoView({{block: "center", behavior: "instant"}});
            const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
        x, y = self.js(script)
        return x, y

    def mouse(self, kind: str, x: float, y: float) -> None:
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click(self, selector: str) -> None:
        x, y = self.centre(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def key(self, name: str) -> None:
        typed = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=KEYS[name], **typed)

    def screenshot(self, path: Path) -> None:
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Escape": 27, "Enter": 13}


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    running = Browser(tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()
